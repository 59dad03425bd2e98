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
msg:
  description: What was done.
  returned: always
  type: str
"""

import os
import re
import shutil
from collections.abc import Iterable
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


def surplus(directories: Iterable[Path], key: str, limit: int) -> tuple[list[Path], int]:
    """Return the directories to delete so that the rest fits ``limit``, and the size of the rest."""
    sizes = {path: size_of(path) for path in directories}
    total, doomed = sum(sizes.values()), []
    mounted = mounts() if total > limit else ""
    for path in sorted(sizes, key=lambda one: one.stat().st_mtime):
        if total > limit and path.name != key and path.name not in mounted:
            doomed.append(path)
            total -= sizes[path]
    return doomed, total


def last_use(directory: Path) -> float:
    """Return when a file of a directory was read or written last. A file system with noatime knows only the writing."""
    return max((max(one.st_atime, one.st_mtime) for one in map(Path.lstat, directory.iterdir())), default=0)


def unused_kernels(own: Path, excess: int) -> list[Path]:
    """Return the kernels that were not used for the longest time, so many that ``excess`` bytes become free.

    A kernel is a directory without directories, in which a compiler looks for all files of it or none. While a pod uses
    them, there is nothing to return.
    """
    if excess <= 0 or own.name in mounts():
        return []
    kernels = [
        Path(root) for root, below, names in os.walk(own) if names and not below and CUDA not in Path(root).parts
    ]
    doomed = []
    for kernel in sorted(kernels, key=last_use):
        if excess > 0:
            doomed.append(kernel)
            excess -= size_of(kernel)
    return doomed


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
        if not module.check_mode:
            own.mkdir(mode=0o755, parents=True, exist_ok=True)
            os.chown(own, owner, owner)
            # The time of the last deployment orders the directories by age.
            os.utime(own)
        keyed = [
            path for path in root.glob("*") if KEY.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        ]
        doomed, left = surplus(keyed, key, limit)
        kernels = unused_kernels(own, size_of(own) - limit if left > limit else 0)
        left -= sum(map(size_of, kernels))
        for path in () if module.check_mode else doomed + kernels:
            shutil.rmtree(path)
    except OSError as error:
        advice = f"Set ansible_become: true, or choose another sglang_cache_dir than {root}"
        module.fail_json(msg=f"The directory for compiled kernels can't be prepared: {error}. {advice}.", **result)
    removed = [str(path.relative_to(root)) for path in doomed + kernels]
    result |= {"changed": new or bool(removed), "removed": removed, "bytes": left}
    if left > limit:
        module.warn(
            f"{root} has {left / 1e9:.1f} GB of kernels, and sglang_cache_limit_gb is {options['limit_gb']:g}. "
            "Pods use them, so nothing more was deleted. Raise the limit, or stop the group (playbook serve_stop) and "
            "serve again: kernels that were not used for the longest time are then deleted."
        )
    deleted = f", {len(doomed)} old one(s) deleted" if doomed else ""
    deleted += f", {len(kernels)} of its kernels deleted that were not used for the longest time" if kernels else ""
    module.exit_json(msg=f"{own} is ready{deleted}; {left / 1e9:.1f} GB in {root}.", **result)


if __name__ == "__main__":
    main()
