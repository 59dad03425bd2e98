#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_files
short_description: Remove a model from a node, or the digests of damaged files from its record
version_added: 0.1.0
description:
  - Removes one model, unless a program on the node was started with it.
  - Removes the digests of damaged files from the record of their download; the next download fetches them again.
  - M(gb10.cluster.model_files_info) lists the models and finds damaged files.
author: The gb10.cluster authors (@gb10)
attributes:
  check_mode:
    description: Changes nothing, and reports what would change.
    support: full
  diff_mode:
    description: The module has no diff output.
    support: none
  idempotent:
    description: A model that is not there is not removed again, nor is a digest.
    support: full
options:
  path:
    description: Directory that contains one directory per model.
    type: path
    required: true
  state:
    description: V(absent) removes the model O(repo); V(damaged) removes the digests of O(files).
    type: str
    choices: [absent, damaged]
    default: absent
  repo:
    description: The model, C(organisation/name).
    type: str
    default: ""
  files:
    description: Damaged files, as C(organisation/name/file).
    type: list
    elements: str
    default: []
seealso:
  - module: gb10.cluster.model_files_info
"""

EXAMPLES = r"""
- name: Remove a model
  gb10.cluster.model_files:
    path: /srv/models
    repo: google/gemma-4-31B-it
    state: absent

- name: Let the next download fetch damaged files again
  gb10.cluster.model_files:
    path: /srv/models
    state: damaged
    files: "{{ found.damaged }}"
"""

RETURN = r"""
msg:
  description: What was removed, or what is wrong and what to do.
  returned: always
  type: str
"""

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.module_utils._models.store import Staged

PROC = Path("/proc")


def forget(models: Iterable[Staged], files: Collection[str], check_mode: bool) -> dict[str, Any]:
    """Remove the digests of damaged files from the records of their downloads."""
    forgotten = 0
    for model in models:
        damaged = {name for name, value in model.recorded.items() if value and f"{model.repo}/{name}" in files}
        forgotten += len(damaged)
        if damaged and not check_mode:
            kept = {name: "" if name in damaged else value for name, value in model.recorded.items()}
            store.write_marker(model.directory, model.repo, model.commit, kept, complete=False)
    return {"changed": forgotten > 0, "msg": f"{forgotten} files are fetched again by the next download."}


def users(model: Staged, commands: Iterable[list[str]]) -> list[str]:
    """Return the programs whose command line names the directory of the model, in the host's or a pod's file system."""
    name = model.directory.name
    using = (argv for argv in commands if any(name in PurePosixPath(word).parts for word in argv))
    return sorted({" ".join(argv[:3]) for argv in using})


def commands() -> list[list[str]]:
    """Return the command lines of all programs on the node, those in pods included."""
    found = []
    for path in PROC.glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(encoding="utf-8", errors="replace").split("\0"))
        except OSError:
            # The process ended meanwhile.
            continue
    return found


def remove(root: Path, found: list[Staged], repo: str, check_mode: bool) -> dict[str, Any]:
    """Return the result of removing one model; refuse one that a program uses."""
    model = next((each for each in found if each.repo == repo), None)
    if model is None:
        return {"changed": False, "msg": store.unknown(root, repo, found)}
    using = users(model, commands())
    if using:
        who = "; ".join(using)
        advice = "Stop it first; a group by playbooks/serve_stop.yml -e instance=NAME."
        message = f"{repo} is in use by {who}, which could not start again without it. {advice}"
        return {"changed": False, "failed": True, "msg": message}
    if not check_mode:
        if model.directory.is_symlink():
            # The directory that it points to belongs to somebody else.
            model.directory.unlink()
        else:
            shutil.rmtree(model.directory)
    verb = "would be" if check_mode else "is"
    return {"changed": True, "msg": f"{repo} {verb} removed from {root}: {store.human(model.size)}."}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["absent", "damaged"], "default": "absent"},
            "repo": {"type": "str", "default": ""},
            "files": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    root, repo = Path(options["path"]), options["repo"]
    if options["state"] == "absent" and not repo:
        module.fail_json(msg="repo is empty. Name the model to remove, such as google/gemma-4-31B-it.")
    try:
        found = store.read_models(root)
        if options["state"] == "absent":
            result = remove(root, found, repo, module.check_mode)
        else:
            result = forget(found, options["files"], module.check_mode)
    except OSError as error:
        module.fail_json(msg=store.unreadable(root, error))
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
