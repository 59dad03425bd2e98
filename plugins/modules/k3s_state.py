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
      - V(replaced) exchanges the state for the one in O(src), V(aside) moves O(names) away.
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
  names:
    description: Parts of the state that V(aside) moves away.
    type: list
    elements: str
    choices: [db, tls, cred, token]
    default: [db, tls, cred]
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
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive

_BESIDE = ".gb10-restore"
_PLAN = "existed.json"


@dataclass(frozen=True)
class Place:
    """Files and directories that are exchanged, by their names in ``directory``."""

    directory: Path
    names: tuple[str, ...]

    @property
    def beside(self) -> Path:
        """The directory on the same file system for the new and the old state, which K3s does not read."""
        return self.directory / _BESIDE

    @property
    def old(self) -> Path:
        """Where the old state is kept."""
        return self.beside / "old"


def places(root: Path, data_dir: str) -> list[Place]:
    """Return the places of a server: its state, its configuration, and the password of its node."""
    return [
        Place(root / data_dir.strip("/") / "server", k3s_archive.STATE),
        *(
            Place((root / path).parent, ((root / path).name,))
            for path in (k3s_archive.CONFIG_DIR, k3s_archive.PASSWORD)
        ),
    ]


def replace(root: Path, data_dir: str, source: Path) -> str:
    """Replace the state by that of the archive; return the path of its newest snapshot below ``root``, or "".

    Raise archive.Refused or archive.Damaged before anything of the state has moved. An older exchange that was neither
    settled nor put back is put back first.
    """
    found = places(root, data_dir)
    put_back(found)
    server = found[0].directory
    for place in found:
        place.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(place.beside, ignore_errors=True)
        (place.beside / "new").mkdir(parents=True, mode=0o700)
        place.beside.chmod(0o700)
    below = {place: str(place.directory.relative_to(root)) for place in found}
    targets = {f"{below[place]}/{name}": place.beside / "new" for place in found for name in place.names}
    try:
        content = k3s_archive.unpack(source, data_dir, targets)
    except (k3s_archive.Refused, k3s_archive.Damaged, OSError):
        for place in found:
            shutil.rmtree(place.beside, ignore_errors=True)
        raise
    for place in found:
        new = place.beside / "new" / below[place]
        # An archive of before the password was saved leaves that of the node; one without configuration, too.
        names = place.names if place.directory == server else tuple(n for n in place.names if (new / n).exists())
        _set_aside(place, names)
        for name in names:
            if (new / name).exists():
                (new / name).rename(place.directory / name)
    newest = k3s_archive.snapshots(content, data_dir)[-1:]
    return str(server / k3s_archive.SNAPSHOTS / newest[0]) if newest else ""


def set_aside(root: Path, data_dir: str, names: Sequence[str]) -> bool:
    """Move these parts of the server's state away; an older state that was kept stays the kept one. Tell of a change.

    K3s refuses to join a restored cluster with certificates, credentials or a datastore of before.
    """
    place = Place(root / data_dir.strip("/") / "server", tuple(names))
    if (place.old / _PLAN).exists():
        left = [place.directory / name for name in names]
        changed = any(path.exists() for path in left)
        for path in left:
            _remove(path)
        return changed
    if not any((place.directory / name).exists() for name in names):
        return False
    _set_aside(place, names)
    return True


def _set_aside(place: Place, names: Sequence[str]) -> None:
    place.old.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.beside.chmod(0o700)
    existed = {name: (place.directory / name).exists() for name in names}
    # Written before anything moves, so that an interrupted exchange is known.
    plan = place.old / _PLAN
    plan.with_suffix(".part").write_text(json.dumps(existed), encoding="utf-8")
    plan.with_suffix(".part").rename(plan)
    for name in names:
        if existed[name]:
            (place.directory / name).rename(place.old / name)


def put_back(found: Sequence[Place]) -> bool:
    """Return to the state that was kept, whatever stands in its place now; tell whether there was one."""
    changed = False
    for place in found:
        plan = place.old / _PLAN
        if plan.exists():
            for name, existed in json.loads(plan.read_text(encoding="utf-8")).items():
                if (place.old / name).exists():
                    _remove(place.directory / name)
                    (place.old / name).rename(place.directory / name)
                elif not existed:
                    _remove(place.directory / name)
            changed = True
        shutil.rmtree(place.beside, ignore_errors=True)
    return changed


def settle(found: Sequence[Place]) -> bool:
    """Delete the state that was kept, except snapshots of etcd that the new one lacks; tell of a change."""
    changed = False
    for place in found:
        kept, now = place.old / k3s_archive.SNAPSHOTS, place.directory / k3s_archive.SNAPSHOTS
        if kept.is_dir() and now.is_dir():
            for path in kept.iterdir():
                if not (now / path.name).exists():
                    path.rename(now / path.name)
        if place.beside.exists():
            shutil.rmtree(place.beside)
            changed = True
    return changed


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
            "names": {
                "type": "list",
                "elements": "str",
                "default": ["db", "tls", "cred"],
                "choices": [*k3s_archive.STATE],
            },
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "replaced", ["src"])],
        supports_check_mode=True,
    )
    root, data_dir, state = Path(module.params["root"]), module.params["data_dir"], module.params["state"]
    result: dict[str, Any] = {"changed": True, "snapshot": ""}
    if module.check_mode:
        module.exit_json(**result)
    found = places(root, data_dir)
    try:
        if state == "replaced":
            result["snapshot"] = replace(root, data_dir, Path(module.params["src"]))
        elif state == "aside":
            result["changed"] = set_aside(root, data_dir, module.params["names"])
        elif state == "kept":
            result["changed"] = put_back(found)
        else:
            result["changed"] = settle(found)
    except (k3s_archive.Refused, k3s_archive.Damaged, OSError) as error:
        module.fail_json(msg=f"The state of this server was not exchanged: {error}", changed=False)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
