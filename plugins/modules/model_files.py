#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_files
short_description: List, verify or remove the models on a node
version_added: 0.1.0
description:
  - Lists the models in a directory with their sizes, commits and what is missing, and the free space of the disk.
  - Compares the files with the digests that M(gb10.cluster.model_stage) recorded. A damaged file is removed from that
    record, so that the next download fetches it again. Models that were copied have no digests; their files must have
    the sizes that their headers state.
  - Removes one model, unless a program on the node was started with it, or models are being fetched.
author: The gb10.cluster authors (@gb10)
attributes:
  check_mode:
    description: Removes nothing, and reports what would be removed.
    support: full
  diff_mode:
    description: The module has no diff output.
    support: none
  idempotent:
    description: A model that is not there is not removed again.
    support: full
options:
  path:
    description: Directory that contains one directory per model.
    type: path
    required: true
  state:
    description: What to do with the models.
    type: str
    choices: [listed, verified, absent]
    default: listed
  repo:
    description: The model, C(organisation/name). If empty, all of them; required for V(absent).
    type: str
    default: ""
  progress:
    description: The result of the slice before, which the action of this name passes on.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: List the models
  gb10.cluster.model_files:
    path: /srv/models

- name: Remove a model
  gb10.cluster.model_files:
    path: /srv/models
    repo: google/gemma-4-31B-it
    state: absent
"""

RETURN = r"""
models:
  description: Name, directory, commit, size in bytes and fault of each model.
  returned: always
  type: list
  elements: dict
free_bytes:
  description: Free space of the disk.
  returned: always
  type: int
damaged:
  description: Damaged files, as C(organisation/name/file).
  returned: always
  type: list
  elements: str
done:
  description: Whether all files are verified.
  returned: always
  type: bool
progress:
  description: The files that were verified so far.
  returned: always
  type: dict
msg:
  description: What is there, or what is wrong and what to do.
  returned: always
  type: str
"""

import shutil
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import staged, store

PROC = Path("/proc")
SLICE_SECONDS = 20


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


def verify(models: list[staged.Staged], progress: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Return the result of one slice; change the records of models with damaged files."""
    deadline = time.monotonic() + SLICE_SECONDS
    checked, damaged = list(progress.get("checked", [])), list(progress.get("damaged", []))
    changed = False
    for model in models:
        before = [name.removeprefix(f"{model.repo}/") for name in checked + damaged]
        good, bad, whole = staged.verify(model, before, lambda: time.monotonic() < deadline)
        checked += [f"{model.repo}/{name}" for name in good]
        damaged += [f"{model.repo}/{name}" for name in bad]
        if bad and not check_mode:
            staged.forget(model, bad)
            changed = True
        if not whole:
            count = sum(len(each.recorded) for each in models)
            message = f"{len(checked) + len(damaged)} of {count} files are verified, {len(damaged)} are damaged."
            progress = {"checked": checked, "damaged": damaged}
            return {"changed": changed, "done": False, "damaged": damaged, "progress": progress, "msg": message}
    broken = [
        model for model in models if model.fault and not any(name.startswith(f"{model.repo}/") for name in damaged)
    ]
    faults = [f"{model.repo}: {model.fault}" for model in broken]
    result = {"changed": changed, "done": True, "damaged": damaged, "progress": {}}
    if not damaged and not faults:
        return result | {"msg": f"{len(checked)} files of {len(models)} models match their digests."}
    wrong = [f"damaged: {', '.join(damaged)}"] * bool(damaged) + faults
    remedy = "Playbook models with models_state=fetched gets again what is missing; copy again what was copied"
    return result | {"failed": True, "msg": f"{'. '.join(wrong)}. {remedy}."}


def remove(root: Path, models: list[staged.Staged], repo: str, there: str, check_mode: bool) -> dict[str, Any]:
    """Return the result of removing one model; refuse one that a program uses. ``there`` names all models."""
    if not models:
        return {"changed": False, "msg": f"{repo} is not in {root}. There: {there}."}
    (model,) = models
    using = staged.users(model, commands())
    if using:
        who = "; ".join(using)
        message = f"{repo} is in use by {who}, which could not start again without it. Stop it: playbook serve_stop."
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
            "state": {"type": "str", "choices": ["listed", "verified", "absent"], "default": "listed"},
            "repo": {"type": "str", "default": ""},
            "progress": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    options = module.params
    root, repo, state = Path(options["path"]), options["repo"], options["state"]
    result: dict[str, Any] = {
        "changed": False,
        "models": [],
        "free_bytes": 0,
        "damaged": [],
        "done": True,
        "progress": {},
    }
    if state == "absent" and not repo:
        module.fail_json(msg="repo is empty. Name the model to remove, such as google/gemma-4-31B-it.", **result)
    try:
        found = staged.read_models(root)
        disk = shutil.disk_usage(root)
        models = [model for model in found if repo in ("", model.repo)]
        result |= {"models": [model.as_dict() for model in models], "free_bytes": disk.free}
        there = ", ".join(model.repo for model in found) or "no models"
        if state == "absent":
            result |= remove(root, models, repo, there, module.check_mode)
        elif repo and not models:
            result |= {"failed": True, "msg": f"{repo} is not in {root}. There: {there}."}
        elif state == "verified":
            result |= verify(models, options["progress"], module.check_mode)
        else:
            free = f"{store.human(disk.free)} of {store.human(disk.total)} free in {root}"
            lines = [f"models: {len(models)}, {store.human(sum(model.size for model in models))}; {free}"]
            result["msg"] = "\n".join([*lines, *map(str, models)])
    except FileNotFoundError:
        advice = "Set gb10_models_dir to the directory with the models; the first download creates it"
        module.fail_json(**{**result, "msg": f"{root} does not exist. {advice}."})
    except OSError as error:
        advice = f"Set ansible_become: true, and check the disk of {root}"
        module.fail_json(**{**result, "msg": f"The models can't be read: {error}. {advice}."})
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
