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
      owner:
        description: Number of the user and of the group to whom the directory belongs. If omitted, its owner stays.
        type: int
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
"""

import filecmp
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system

HIDDEN = ("earlier content, which is not shown\n", "wanted content, which is not shown\n")


@dataclass(frozen=True)
class Found:
    """A path as it is: its permission bits, None if there is nothing, its owner, and the text of a file.

    ``same`` tells that it is a directory, or a file and no link, with the wanted content.
    """

    mode: int | None
    owner: tuple[int, int] | None
    same: bool
    is_file: bool
    is_link: bool
    text: str


@dataclass(frozen=True)
class Step:
    """What to do with one path, with the text for --diff before and after."""

    action: Literal["mkdir", "chmod", "copy", "write", "unlink"]
    path: Path
    before: str
    after: str
    mode: int = 0
    source: str = ""
    owner: int | None = None


def observe(kind: str, wanted: Mapping[str, Any]) -> Found:
    """Read a path of one of the options. Raise OSError."""
    path, content, source = Path(wanted["path"]), wanted.get("content"), wanted.get("source")
    status = path.stat() if path.exists() else None
    mode, owner = (status.st_mode & 0o7777, (status.st_uid, status.st_gid)) if status else (None, None)
    same, text = path.is_dir(), ""
    if mode is not None and source:
        same = filecmp.cmp(source, path, shallow=False)
    elif mode is not None and content is not None:
        text = path.read_text(encoding="utf-8", errors="replace")
        same = path.read_bytes() == content.encode()
    link = path.is_symlink()
    return Found(mode, owner, same and (kind == "directories" or not link), path.is_file(), link, text)


def steps(kind: str, wanted: Mapping[str, Any], found: Found) -> Step | None:
    """Return the one step that brings a path about; None if it is as wanted."""
    path, old = Path(wanted["path"]), found.mode
    if kind == "absent":
        return None if old is None and not found.is_link else Step("unlink", path, "present\n", "")
    mode = int(wanted["mode"], 8)
    if kind == "directories":
        before, owner = "" if old is None else f"directory, mode {old:04o}", wanted.get("owner")
        after, right = f"directory, mode {mode:04o}", found.same and old == mode
        if owner is not None:
            before += f", owner {'{}:{}'.format(*found.owner)}" if found.owner else ""
            after, right = f"{after}, owner {owner}:{owner}", right and found.owner == (owner, owner)
        made = Step("mkdir", path, f"{before}\n" if before else "", f"{after}\n", mode, owner=owner)
        return None if right else made
    if wanted["keep"] and found.is_file:
        right = old == mode
        made = Step("chmod", path, f"mode {old:04o}\n", f"mode {mode:04o}\n", mode)
    elif wanted.get("source"):
        right = found.same and old == mode
        before = "" if old is None else f"file, mode {old:04o}\n"
        made = Step("copy", path, before, f"copy of {wanted['source']}, mode {mode:04o}\n", mode, wanted["source"])
    else:
        right = found.same and old == mode
        note = f"# mode {old:04o}, wanted {mode:04o}\n" if old not in (None, mode) else ""
        made = Step("write", path, note + found.text, wanted["content"], mode)
    return None if right else made


def apply(todo: Step) -> None:
    """Carry out a step. Raise OSError or HostError."""
    path = todo.path
    if todo.action == "mkdir":
        system.make_parents(path)
        path.mkdir(exist_ok=True)
    if todo.owner is not None:
        os.chown(path, todo.owner, todo.owner)
    if todo.action in ("mkdir", "chmod"):
        path.chmod(todo.mode)
    elif todo.action == "copy":
        staged = path.with_name(f".{path.name}.gb10-new")
        try:
            shutil.copyfile(todo.source, staged)
            staged.chmod(todo.mode)
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
    elif todo.action == "write":
        system.write_atomic(path, todo.after, todo.mode)
    else:
        path.unlink()


def main() -> None:
    mode = {"type": "str"}
    path = {"type": "path", "required": True}
    module = AnsibleModule(
        argument_spec={
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"path": path, "mode": mode | {"default": "0755"}, "owner": {"type": "int"}},
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
    wanted = [(kind, entry) for kind in ("directories", "files", "secret_files") for entry in options[kind]]
    wanted += [("absent", {"path": name}) for name in options["absent"]]
    try:
        planned = [(kind, steps(kind, entry, observe(kind, entry))) for kind, entry in wanted]
        for _kind, todo in planned if act else ():
            if todo:
                apply(todo)
    except (OSError, system.HostError) as error:
        reason = system.explain(error) if isinstance(error, OSError) else str(error)
        module.fail_json(msg=f"{reason} What was changed before this path stays as wanted; run again after the repair.")
    changes = [
        (todo, HIDDEN if kind == "secret_files" else (todo.before, todo.after)) for kind, todo in planned if todo
    ]
    paths = [str(todo.path) for todo, _texts in changes]
    module.exit_json(
        changed=bool(changes),
        paths=paths,
        msg="; ".join(paths) or "All paths are as wanted.",
        diff=[
            {"before": before, "after": after, "before_header": str(todo.path), "after_header": str(todo.path)}
            for todo, (before, after) in changes
        ],
    )


if __name__ == "__main__":
    main()
