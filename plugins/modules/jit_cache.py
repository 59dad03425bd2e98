#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: jit_cache
short_description: Create a directory for compiled kernels, and delete old ones
version_added: 0.1.0
description:
  - Creates the directory O(key) in O(path) for the kernels that one SGLang image compiles on this node.
  - If all such directories together are larger than O(limit_gb), deletes those of other images, the one first that was
    not deployed for the longest time.
  - If the directory O(key) alone is larger, and no pod uses it, deletes those of its kernels that were not used for the
    longest time.
  - Never deletes anything that a running pod uses, or whose name is not such a key.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
attributes:
  diff_mode:
    description: The module has no diff output.
    support: none
options:
  path:
    description: Directory that contains one directory per key.
    type: path
    required: true
  key:
    description: Name of the directory, which ends with a dash and 12 hexadecimal digits.
    type: str
    required: true
  owner:
    description: Number of the user who owns the directory.
    type: int
    default: 0
  limit_gb:
    description: Gigabytes that all directories together may have.
    type: float
    default: 16
"""

EXAMPLES = r"""
- name: Create the directory for compiled kernels
  gb10.cluster.jit_cache:
    path: /var/lib/gb10/jit-cache
    key: 0.5.12-arm64-0123456789ab
"""

RETURN = r"""
removed:
  description: The deleted directories, relative to O(path).
  returned: always
  type: list
  elements: str
bytes:
  description: Size of all directories that remain.
  returned: always
  type: int
"""

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

KEY = re.compile(r"[\w.+-]+-[0-9a-f]{12}")
PROC = Path("/proc")
# The CUDA driver limits its own cache, and keeps an index of it.
CUDA = "cuda"


def size_of(directory: Path) -> int:
    """Return the bytes on disk of all files below a directory; files that vanish meanwhile count as empty."""
    total = 0
    for root, _directories, names in os.walk(directory):
        for name in names:
            try:
                total += Path(root, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def mounts() -> str:
    """Return the mounts of all processes; a directory that a pod mounts appears with its path on the host."""
    found = []
    for path in PROC.glob("[0-9]*/mountinfo"):
        try:
            found.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            # The process ended meanwhile.
            continue
    return "".join(set(found))


@dataclass(frozen=True)
class Part:
    """A directory of the cache: its bytes on disk, when it was deployed or used last, and whether a pod has it."""

    path: Path
    size: int
    used: float
    held: bool = False


def observe(root: Path, own: Path, limit: int) -> tuple[list[Part], list[Part]]:
    """Return the directories of all images, and the kernels of the own one if all together exceed the limit.

    A kernel is a directory without directories, in which a compiler looks for all files of it or none.
    """
    keyed = [path for path in root.glob("*") if KEY.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    images = [Part(path, size_of(path), path.stat().st_mtime) for path in keyed]
    if sum(image.size for image in images) <= limit:
        return images, []
    mounted = mounts()
    below = [Path(top) for top, directories, names in os.walk(own) if names and not directories]
    kernels = [Part(path, size_of(path), last_use(path)) for path in below if CUDA not in path.parts]
    return [replace(image, held=image.path.name in mounted) for image in images], kernels


def last_use(directory: Path) -> float:
    """Return when a file of a directory was read or written last. A file system with noatime knows only the writing."""
    return max((max(one.st_atime, one.st_mtime) for one in map(Path.lstat, directory.iterdir())), default=0)


def steps(images: Iterable[Part], kernels: Iterable[Part], own: Path, limit: int) -> tuple[list[Path], int]:
    """Return what to delete so that the rest fits the limit, oldest first, and the size of the rest."""
    images = sorted(images, key=lambda part: part.used)
    left, doomed, excess = sum(part.size for part in images), list[Path](), 0
    for image in images:
        if left > limit and image.path != own and not image.held:
            doomed.append(image.path)
            left -= image.size
    for image in images:
        if left > limit and image.path == own and not image.held:
            excess = image.size - limit
    for kernel in sorted(kernels, key=lambda part: part.used):
        if excess > 0:
            doomed.append(kernel.path)
            excess -= kernel.size
            left -= kernel.size
    return doomed, left


def apply(own: Path, owner: int, doomed: Iterable[Path]) -> None:
    """Create the directory and delete the others."""
    own.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.chown(own, owner, owner)
    # The time of the last deployment orders the directories by age.
    os.utime(own)
    for path in doomed:
        shutil.rmtree(path)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "key": {"type": "str", "required": True, "no_log": False},
            "owner": {"type": "int", "default": 0},
            "limit_gb": {"type": "float", "default": 16},
        },
        supports_check_mode=True,
    )
    options = module.params
    root, key, owner = Path(options["path"]), options["key"], options["owner"]
    limit = int(options["limit_gb"] * 1e9)
    result: dict[str, Any] = {"changed": False, "removed": [], "bytes": 0}
    if not KEY.fullmatch(key):
        module.fail_json(msg=f"key is {key!r}. It must end with a dash and 12 hexadecimal digits.", **result)
    own = root / key
    try:
        new = not own.is_dir() or own.stat().st_uid != owner
        images, kernels = observe(root, own, limit)
        doomed, left = steps(images, kernels, own, limit)
        if not module.check_mode:
            apply(own, owner, doomed)
    except OSError as error:
        advice = f"Set ansible_become: true, or choose another sglang_cache_dir than {root}"
        module.fail_json(msg=f"The directory for compiled kernels can't be prepared: {error}. {advice}.", **result)
    removed = [str(path.relative_to(root)) for path in doomed]
    part_of_own = [path for path in doomed if own in path.parents]
    result |= {"changed": new or bool(removed), "removed": removed, "bytes": left}
    if left > limit:
        held = ", ".join(sorted(image.path.name for image in images if image.held))
        why = (
            f"Pods use {held}, so these were kept. Raise the limit, or stop the group (playbook serve_stop) and serve "
            "again: kernels that were not used for the longest time are then deleted."
            if held
            else f"What is left are no kernels that can be deleted by age, such as those of the CUDA driver. Raise the "
            f"limit, or stop the group (playbook serve_stop), delete {own} on the host, and serve again."
        )
        module.warn(f"{root} has {left / 1e9:.1f} GB, and sglang_cache_limit_gb is {options['limit_gb']:g}. {why}")
    old = len(doomed) - len(part_of_own)
    deleted = f", {old} old one(s) deleted" if old else ""
    if part_of_own:
        deleted += f", {len(part_of_own)} of its kernels deleted that were not used for the longest time"
    module.exit_json(msg=f"{own} is ready{deleted}; {left / 1e9:.1f} GB in {root}.", **result)


if __name__ == "__main__":
    main()
