#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_files_info
short_description: List the models on a node, and compare their files with the digests of the download
version_added: 0.1.0
description:
  - Lists the models in a directory with their sizes, commits and what is missing, and the free space of the disk.
  - With O(digests), reads every file and compares it with the digest that M(gb10.cluster.model_share) recorded. Models
    that were copied have no digests; their files must have the sizes that their headers state.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  path:
    description: Directory that contains one directory per model.
    type: path
    required: true
  repo:
    description: The model, C(organisation/name). If empty, all of them.
    type: str
    default: ""
  digests:
    description: Whether to read every file. At 2 GB/s a disk takes 50 s for 100 GB.
    type: bool
    default: false
  progress:
    description: The result of the slice before, which the action of this name passes on.
    type: dict
    default: {}
seealso:
  - module: gb10.cluster.model_files
"""

EXAMPLES = r"""
- name: List the models
  gb10.cluster.model_files_info:
    path: /srv/models

- name: Compare the files of all models with their digests
  gb10.cluster.model_files_info:
    path: /srv/models
    digests: true
  register: found
  failed_when: found is failed or not found.intact
"""

RETURN = r"""
models:
  description: Name, directory, commit, size in bytes and fault of each model.
  returned: success
  type: list
  elements: dict
free_bytes:
  description: Free space of the disk.
  returned: success
  type: int
damaged:
  description: Damaged files, as C(organisation/name/file).
  returned: success
  type: list
  elements: str
intact:
  description: Whether no model has a fault, and none of the files that were read is damaged.
  returned: success
  type: bool
done:
  description: Whether all files are verified.
  returned: success
  type: bool
progress:
  description: The files that were verified so far.
  returned: success
  type: dict
"""

import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.module_utils._models.store import Staged

SLICE_SECONDS = 20


def verify_model(
    model: Staged, checked: Collection[str], alive: Callable[[], bool]
) -> tuple[list[str], list[str], bool]:
    """Compare files with their digests; return those that match, those that do not, and whether none is left.

    ``checked`` are names to leave out. At least one file is read, even if ``alive`` returns False at once.
    """
    good: list[str] = []
    damaged: list[str] = []
    for name, expected in sorted(model.recorded.items()):
        if name in checked:
            continue
        if (good or damaged) and not alive():
            return good, damaged, False
        # A SHA-256 has 64 digits, the SHA-1 of a git blob 40.
        algorithm = "sha256" if len(expected) == 64 else "git"
        path = model.directory / name
        right = path.is_file() and store.digest(path, algorithm) == expected
        (good if right else damaged).append(name)
    return good, damaged, True


def verify(models: list[Staged], progress: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one slice."""
    deadline = time.monotonic() + SLICE_SECONDS
    checked, damaged = list(progress.get("checked", [])), list(progress.get("damaged", []))
    for model in models:
        before = [name.removeprefix(f"{model.repo}/") for name in checked + damaged]
        good, bad, whole = verify_model(model, before, lambda: time.monotonic() < deadline)
        checked += [f"{model.repo}/{name}" for name in good]
        damaged += [f"{model.repo}/{name}" for name in bad]
        if not whole:
            count = sum(len(each.recorded) for each in models)
            message = f"{len(checked) + len(damaged)} of {count} files are verified, {len(damaged)} are damaged."
            progress = {"checked": checked, "damaged": damaged}
            return {"done": False, "damaged": damaged, "intact": not damaged, "progress": progress, "msg": message}
    broken = [
        model for model in models if model.fault and not any(name.startswith(f"{model.repo}/") for name in damaged)
    ]
    faults = [f"{model.repo}: {model.fault}" for model in broken]
    if not damaged and not faults:
        return {"msg": f"{len(checked)} files of {len(models)} models match their digests."}
    wrong = [f"damaged: {', '.join(damaged)}"] * bool(damaged) + faults
    fetch = "playbooks/models.yml -e models_state=fetched -e models_repo=NAME"
    remedy = f"For each model that came from a hub, run {fetch}; copy again what was copied"
    return {"damaged": damaged, "intact": False, "msg": f"{'. '.join(wrong)}. {remedy}."}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "repo": {"type": "str", "default": ""},
            "digests": {"type": "bool", "default": False},
            "progress": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    root, repo = Path(module.params["path"]), module.params["repo"]
    try:
        found = store.read_models(root)
        disk = shutil.disk_usage(root)
        models = [model for model in found if repo in ("", model.repo)]
        if repo and not models:
            module.fail_json(msg=store.unknown(root, repo, found))
        result = {"damaged": [], "done": True, "progress": {}, "intact": not any(model.fault for model in models)}
        if module.params["digests"]:
            result |= verify(models, module.params["progress"])
        else:
            free = f"{store.human(disk.free)} of {store.human(disk.total)} free in {root}"
            lines = [f"models: {len(models)}, {store.human(sum(model.size for model in models))}; {free}"]
            result["msg"] = "\n".join([*lines, *map(str, models)])
    except OSError as error:
        module.fail_json(msg=store.unreadable(root, error))
    listed = [model.as_dict() for model in models]
    module.exit_json(changed=False, models=listed, free_bytes=disk.free, **result)


if __name__ == "__main__":
    main()
