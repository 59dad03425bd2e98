#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Write and remove several files of a host at once
version_added: 0.1.0
description:
  - Makes directories, writes files and removes files in one run.
  - A role that used one task per file would start Python on the host once or twice for every file.
  - A file is replaced as a whole, so a reader never sees half of it, and a secret is never readable by others.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
attributes:
  diff_mode:
    description: Shows the files that were given as O(files[].content).
    support: full
options:
  directories:
    description: Directories to make, with their parents. The mode of an existing directory is set too.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the directory.
        type: path
        required: true
      mode:
        description: Mode in octal digits.
        type: str
        default: "0755"
  files:
    description: Files to write. Their directories must exist or stand in O(directories).
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file.
        type: path
        required: true
      content:
        description: Text of the file. Give this or O(files[].source).
        type: str
      source:
        description: File of the host to copy.
        type: path
      mode:
        description: Mode in octal digits.
        type: str
        default: "0644"
      keep:
        description: Whether the content of an existing file stays. Its mode is set all the same.
        type: bool
        default: false
  secret_files:
    description: Files to write whose content is never shown, neither as a difference nor in the module's arguments.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file.
        type: path
        required: true
      content:
        description: Text of the file.
        type: str
        required: true
      mode:
        description: Mode in octal digits.
        type: str
        default: "0600"
      keep:
        description: Whether the content of an existing file stays. Its mode is set all the same.
        type: bool
        default: false
  absent:
    description: Files to remove.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Write the configuration of a service, and a token that stays as it is once it exists
  gb10.cluster.host_files:
    directories:
      - path: /etc/example
    files:
      - path: /etc/example/config.yaml
        content: "port: 6443\n"
    secret_files:
      - path: /etc/example/token
        content: "{{ lookup('ansible.builtin.password', '/dev/null', length=48) }}"
        keep: true
    absent: [/etc/example/config.old]
"""

RETURN = r"""
paths:
  description: Paths that were changed, or would be outside of check mode.
  returned: always
  type: list
  elements: str
msg:
  description: What was done.
  returned: always
  type: str
"""

import filecmp
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


@dataclass(frozen=True)
class Change:
    """One path that is not as wanted, with the text of the file, or a line about anything else, before and after."""

    path: Path
    before: str
    after: str


def mode_of(path: Path) -> int | None:
    """Return the permission bits of a path, or None if it does not exist."""
    return path.stat().st_mode & 0o7777 if path.exists() else None


def directory(path: Path, mode: int, act: bool) -> Change | None:
    """Make a directory, or set its mode; return None if it was as wanted. Raise OSError."""
    found = mode_of(path)
    if path.is_dir() and found == mode:
        return None
    if act:
        system.make_parents(path)
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    return Change(path, "" if found is None else f"directory, mode {found:04o}\n", f"directory, mode {mode:04o}\n")


def copied(path: Path, source: Path, mode: int, act: bool) -> Change | None:
    """Copy a file of this host; return None if it was as wanted. Raise OSError."""
    found = mode_of(path)
    same = found is not None and not path.is_symlink() and filecmp.cmp(source, path, shallow=False)
    if same and found == mode:
        return None
    if act:
        staged = path.with_name(f".{path.name}.gb10-new")
        try:
            shutil.copyfile(source, staged)
            staged.chmod(mode)
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
    return Change(path, "" if found is None else f"file, mode {found:04o}\n", f"copy of {source}, mode {mode:04o}\n")


def written(path: Path, content: str, mode: int, act: bool) -> Change | None:
    """Write a text; return None if the file was as wanted. Raise OSError."""
    if not path.is_symlink() and not system.differs(path, content, mode):
        return None
    found = mode_of(path)
    before = "" if found is None else path.read_text(encoding="utf-8", errors="replace")
    if act:
        system.write_atomic(path, content, mode)
    note = f"# mode {found:04o}, wanted {mode:04o}\n" if found not in (None, mode) else ""
    return Change(path, note + before, content)


def removed(path: Path, act: bool) -> Change | None:
    """Remove a file or link; return None if there was none. Raise OSError."""
    if not path.exists() and not path.is_symlink():
        return None
    if act:
        path.unlink()
    return Change(path, "present\n", "")


def file(wanted: dict[str, Any], act: bool) -> Change | None:
    """Bring one entry of O(files) about. Raise OSError."""
    path, mode = Path(wanted["path"]), int(wanted["mode"], 8)
    if wanted["keep"] and path.is_file():
        found = mode_of(path)
        if found == mode:
            return None
        if act:
            path.chmod(mode)
        return Change(path, f"mode {found:04o}\n", f"mode {mode:04o}\n")
    if wanted["source"]:
        return copied(path, Path(wanted["source"]), mode, act)
    return written(path, wanted["content"], mode, act)


def secret(wanted: dict[str, Any], act: bool) -> Change | None:
    """Bring one entry of O(secret_files) about. Raise OSError."""
    change = file(wanted | {"source": None}, act)
    return change and Change(
        change.path, "earlier content, which is not shown\n", "wanted content, which is not shown\n"
    )


def main() -> None:
    mode = {"type": "str"}
    path = {"type": "path", "required": True}
    module = AnsibleModule(
        argument_spec={
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"path": path, "mode": mode | {"default": "0755"}},
            },
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": path,
                    "content": {"type": "str"},
                    "source": {"type": "path"},
                    "mode": mode | {"default": "0644"},
                    "keep": {"type": "bool", "default": False},
                },
                "mutually_exclusive": [["content", "source"]],
                "required_one_of": [["content", "source"]],
            },
            "secret_files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                # Only the content is secret. The action of this module keeps all arguments out of the host's journal.
                "no_log": False,
                "options": {
                    "path": path,
                    "content": {"type": "str", "required": True, "no_log": True},
                    "mode": mode | {"default": "0600"},
                    "keep": {"type": "bool", "default": False},
                },
            },
            "absent": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    options, act = module.params, not module.check_mode
    for entry in options["directories"] + options["files"] + options["secret_files"]:
        if not set(entry["mode"]) <= set("01234567") or not entry["mode"]:
            advice = "give octal digits in quotes, as in '0644'"
            module.fail_json(msg=f"mode = {entry['mode']!r} of {entry['path']}: {advice}.")
    try:
        found = [directory(Path(entry["path"]), int(entry["mode"], 8), act) for entry in options["directories"]]
        found += [file(entry, act) for entry in options["files"]]
        found += [secret(entry, act) for entry in options["secret_files"]]
        found += [removed(Path(name), act) for name in options["absent"]]
    except (OSError, system.HostError) as error:
        reason = system.explain(error) if isinstance(error, OSError) else str(error)
        module.fail_json(msg=f"{reason} What was changed before this path stays as wanted; run again after the repair.")
    changes = [change for change in found if change]
    module.exit_json(
        changed=bool(changes),
        paths=[str(change.path) for change in changes],
        msg="; ".join(str(change.path) for change in changes) or "All paths are as wanted.",
        diff=[
            {
                "before": change.before,
                "after": change.after,
                "before_header": str(change.path),
                "after_header": str(change.path),
            }
            for change in changes
        ],
    )


if __name__ == "__main__":
    main()
