#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exchange the state of a server for that of a backup, and keep the old one until the new one has proved itself.

Everything is renamed within its file system: the new state is complete before the old one moves. An interrupted
exchange is put back by the next one.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_state
short_description: Exchange the state of a stopped K3s server, and keep the old one
version_added: 0.1.0
description:
  - Unpacks a backup beside the state, checks every name in it, and renames it into place. The old state is kept until
    it is put back or deleted.
  - An exchange that was interrupted is put back by the next one.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
options:
  state:
    description:
      - V(replaced) exchanges the state for the one in O(src), V(aside) moves C(db), C(tls) and C(cred) away.
      - V(kept) puts the old state back, and V(settled) deletes it.
    type: str
    choices: [replaced, aside, kept, settled]
    required: true
  data_dir:
    description: The data directory of K3s.
    type: path
    required: true
  src:
    description: Archive of a backup, on the host.
    type: path
  root:
    description: Directory below which the paths of the host are.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Replace the state
  gb10.cluster.k3s_state:
    state: replaced
    data_dir: /var/lib/rancher/k3s
    src: /var/lib/gb10-k3s-backup.tar.gz
"""

RETURN = r"""
snapshot:
  description: Path of the newest snapshot of etcd in the archive; empty for a single server.
  returned: success
  type: str
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive

_BESIDE = ".gb10-restore"
_RECORD = "existed.json"


@dataclass(frozen=True)
class Place:
    """Files and directories below ``root`` that are exchanged, by their names in ``directory``.

    Names of a place that is not ``whole`` stay if the backup lacks them.
    """

    root: Path
    directory: Path
    names: tuple[str, ...]
    whole: bool = False

    @property
    def beside(self) -> Path:
        """The directory on the same file system for the new and the old state, which K3s does not read."""
        return self.directory / _BESIDE

    @property
    def old(self) -> Path:
        """Where the old state is kept."""
        return self.beside / "old"

    @property
    def new(self) -> Path:
        """Where the new state is unpacked."""
        return self.beside / "new" / self.directory.relative_to(self.root)


@dataclass(frozen=True)
class Seen:
    """The names that are in a place, in its old state and in its new one, and the snapshots that only the old one has.

    ``existed`` tells of each exchanged name whether it was there before; it is None if no exchange began.
    """

    here: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    staged: frozenset[str] = frozenset()
    existed: Mapping[str, bool] | None = None
    beside: bool = False
    snapshots: tuple[str, ...] = ()


class Step(NamedTuple):
    """One change: ``record`` writes what existed, ``move`` renames a path to its target, ``remove`` deletes it."""

    action: Literal["record", "move", "remove"]
    path: Path
    target: Path | None = None
    existed: Mapping[str, bool] | None = None


OLD_MEMBERSHIP = ("db", "tls", "cred")
"""What K3s has of an earlier cluster below its data directory, with which it refuses to join a restored one."""


def places(root: Path, data_dir: str, names: Sequence[str] = k3s_archive.STATE) -> list[Place]:
    """Return the places of a server: its state, its configuration, and the password of its node."""
    files = (root / k3s_archive.CONFIG_DIR, root / k3s_archive.PASSWORD)
    server = Place(root, root / data_dir.strip("/") / "server", tuple(names), whole=True)
    return [server, *(Place(root, path.parent, (path.name,)) for path in files)]


def observe(place: Place) -> Seen:
    """Return what there is of a place."""
    record, now = place.old / _RECORD, place.directory / k3s_archive.SNAPSHOTS
    existed = json.loads(record.read_text(encoding="utf-8")) if record.exists() else None
    names = {*place.names, *(existed or {})}
    here, kept, staged = (
        frozenset(name for name in names if os.path.lexists(directory / name))
        for directory in (place.directory, place.old, place.new)
    )
    snapshots = sorted(_names(place.old / k3s_archive.SNAPSHOTS) - _names(now)) if now.is_dir() else []
    return Seen(here, kept, staged, existed, place.beside.exists(), tuple(snapshots))


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def steps(state: str, found: Iterable[tuple[Place, Seen]]) -> Iterator[Step]:
    """Yield the steps to a state.

    The record stands before anything moves, so that ``kept`` repairs an exchange that was interrupted at any step. An
    older state that was kept stays the kept one when ``aside`` comes again: what is there now is the rest of a failure.
    """
    for place, seen in found:
        if state == "settled":
            snapshots = place.old / k3s_archive.SNAPSHOTS, place.directory / k3s_archive.SNAPSHOTS
            yield from (Step("move", snapshots[0] / name, snapshots[1] / name) for name in seen.snapshots)
        elif state == "kept":
            for name, existed in (seen.existed or {}).items():
                if name in seen.here and (name in seen.kept or not existed):
                    yield Step("remove", place.directory / name)
                if name in seen.kept:
                    yield Step("move", place.old / name, place.directory / name)
        elif state == "aside" and seen.existed is not None:
            yield from (Step("remove", place.directory / name) for name in place.names if name in seen.here)
        elif state == "replaced" or seen.here:
            names = [name for name in place.names if place.whole or name in seen.staged]
            yield Step("record", place.old / _RECORD, None, {name: name in seen.here for name in names})
            yield from (Step("move", place.directory / name, place.old / name) for name in names if name in seen.here)
            yield from (Step("move", place.new / name, place.directory / name) for name in names if name in seen.staged)
        if state in ("kept", "settled") and seen.beside:
            yield Step("remove", place.beside)


def apply(todo: Iterable[Step]) -> None:
    """Run the steps."""
    for action, path, target, existed in todo:
        if action == "record":
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.parent.chmod(0o700)
            path.with_suffix(".part").write_text(json.dumps(existed), encoding="utf-8")
            path.with_suffix(".part").rename(path)
        elif target:
            path.rename(target)
        else:
            _remove(path)


def unpack(found: Sequence[Place], data_dir: str, source: Path) -> str:
    """Unpack the new state beside the old one; return the path of its newest snapshot, or "".

    Raise archive.Refused or archive.Damaged, and leave nothing, if the archive is no backup.
    """
    for place in found:
        place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (place.beside / "new").mkdir(parents=True, mode=0o700)
        place.beside.chmod(0o700)
    server, root = found[0].directory, found[0].root
    targets = {
        f"{place.directory.relative_to(root)}/{name}": place.beside / "new" for place in found for name in place.names
    }
    try:
        content = k3s_archive.unpack(source, data_dir, targets)
    except (k3s_archive.Refused, k3s_archive.Damaged, OSError):
        apply(Step("remove", place.beside) for place in found)
        raise
    newest = k3s_archive.snapshots(content, data_dir)[-1:]
    return str(server / k3s_archive.SNAPSHOTS / newest[0]) if newest else ""


def converge(state: str, found: Sequence[Place], data_dir: str, source: Path | None, check: bool) -> tuple[bool, str]:
    """Bring the places to a state; return whether that changes something, and the newest snapshot of a backup."""
    snapshot = ""
    if state == "replaced":
        if check or source is None:
            return True, snapshot
        # An older exchange that was neither settled nor put back.
        apply([*steps("kept", [(place, observe(place)) for place in found])])
        snapshot = unpack(found, data_dir, source)
    todo = [*steps(state, [(place, observe(place)) for place in found])]
    if not check:
        apply(todo)
    return bool(todo), snapshot


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["replaced", "aside", "kept", "settled"], "required": True},
            "data_dir": {"type": "path", "required": True},
            "src": {"type": "path"},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "replaced", ["src"])],
        supports_check_mode=True,
    )
    params, source = module.params, module.params["src"]
    state, found = params["state"], places(Path(params["root"]), params["data_dir"])
    if state == "aside":
        found = places(Path(params["root"]), params["data_dir"], OLD_MEMBERSHIP)[:1]
    try:
        changed, snapshot = converge(state, found, params["data_dir"], source and Path(source), module.check_mode)
    except (k3s_archive.Refused, k3s_archive.Damaged, OSError) as error:
        module.fail_json(msg=f"The state of this server was not exchanged: {error}", changed=False)
    module.exit_json(changed=changed, snapshot=snapshot)


if __name__ == "__main__":
    main()
