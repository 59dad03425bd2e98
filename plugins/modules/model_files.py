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
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import store

# List, verify and remove the models in a directory of this node.


@dataclass(frozen=True)
class Staged:
    """One model. ``size`` is in bytes; ``fault`` says what is missing or damaged, and is empty for a complete model.

    ``recorded`` maps the files that were verified at the download to their digests. It is empty for a copied model.
    """

    directory: Path
    repo: str
    commit: str
    size: int
    recorded: dict[str, str]
    fault: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, without the digests."""
        return {
            "repo": self.repo,
            "directory": str(self.directory),
            "commit": self.commit,
            "bytes": self.size,
            "downloaded": bool(self.recorded),
            "fault": self.fault,
        }

    def __str__(self) -> str:
        origin = f"commit {self.commit[:12]}" if self.commit else "copied, no digests"
        return f"{self.repo}: {store.human(self.size)}, {origin}, {self.fault or 'complete'}"


def read_models(root: Path) -> list[Staged]:
    """Return the models in ``root``, by name, also what a stopped download or removal left of one. Raise OSError."""
    return [_read(path) for path in sorted(root.iterdir()) if path.is_dir() and _is_model(path)]


def _is_model(path: Path) -> bool:
    return "--" in path.name or (path / store.MARKER).is_file() or (path / "config.json").is_file()


def _read(directory: Path) -> Staged:
    marker = store.read_marker(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    recorded = dict(marker.get("files") or {})
    repo = str(marker.get("repo") or directory.name.replace("--", "/", 1))
    size = sum(path.stat().st_size for path in files)
    if not recorded:
        fault = "; ".join(store.faults(directory))
    else:
        lacking = [name for name in recorded if not (directory / name).is_file()]
        fault = "" if marker.get("complete") else "the download is not finished"
        fault = f"missing: {', '.join(sorted(lacking))}" if lacking else fault
    return Staged(directory, repo, str(marker.get("commit") or ""), size, recorded, fault)


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


def forget(model: Staged, damaged: Collection[str]) -> None:
    """Record files without a digest, so that the next download fetches them again."""
    kept = {name: "" if name in damaged else value for name, value in model.recorded.items()}
    store.write_marker(model.directory, model.repo, model.commit, kept, complete=False)


def users(model: Staged, commands: Iterable[list[str]]) -> list[str]:
    """Return the programs whose command line names the directory of the model, in the host's or a pod's file system."""
    name = model.directory.name
    using = (argv for argv in commands if any(name in PurePosixPath(word).parts for word in argv))
    return sorted({" ".join(argv[:3]) for argv in using})


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


def verify(models: list[Staged], progress: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Return the result of one slice; change the records of models with damaged files."""
    deadline = time.monotonic() + SLICE_SECONDS
    checked, damaged = list(progress.get("checked", [])), list(progress.get("damaged", []))
    changed = False
    for model in models:
        before = [name.removeprefix(f"{model.repo}/") for name in checked + damaged]
        good, bad, whole = verify_model(model, before, lambda: time.monotonic() < deadline)
        checked += [f"{model.repo}/{name}" for name in good]
        damaged += [f"{model.repo}/{name}" for name in bad]
        if bad and not check_mode:
            forget(model, bad)
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


def remove(root: Path, models: list[Staged], repo: str, there: str, check_mode: bool) -> dict[str, Any]:
    """Return the result of removing one model; refuse one that a program uses. ``there`` names all models."""
    if not models:
        return {"changed": False, "msg": f"{repo} is not in {root}. There: {there}."}
    (model,) = models
    using = users(model, commands())
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
        found = read_models(root)
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
