#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_backup
short_description: Write the state of a running K3s server into an archive
version_added: 0.1.0
description:
  - Copies the SQLite database of a single server through SQLite, while K3s runs, and packs it with certificates, tokens
    and configuration. Of one of several servers, packs the snapshots of etcd that are there.
  - Reads the archive as a restore does, and keeps it only if it is whole.
author: The gb10.cluster authors (@gb10)
attributes:
  check_mode:
    description: Writes nothing.
    support: full
  diff_mode:
    description: The module has no diff output.
    support: none
  idempotent:
    description: Each run writes a new archive.
    support: none
options:
  data_dir:
    description: The data directory of K3s.
    type: path
    required: true
  dest:
    description: The archive, on the host. An existing one is replaced; it gets mode 0600.
    type: path
    required: true
  single:
    description: Whether this is the only server.
    type: bool
    required: true
  root:
    description: Directory below which the paths of the host are.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Save the state of the server
  gb10.cluster.k3s_backup:
    data_dir: /var/lib/rancher/k3s
    dest: /var/lib/gb10-k3s-backup.tar.gz
    single: true
"""

RETURN = r"""
size:
  description: Bytes of all files in the archive.
  returned: success
  type: int
"""

import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive

DATABASE = "db/state.db"
_OF_SQLITE = ("", "-wal", "-shm", "-journal")  # ends of the names of its files, which the copy replaces
_TRIES = 3
_SPARE = 2**30  # bytes that stay free on the disk


class Unusable(RuntimeError):
    """The state of this server cannot be saved; the text says why."""


def write(root: Path, data_dir: str, dest: Path, single: bool) -> k3s_archive.Content:
    """Write the archive of a server's state to ``dest``, for its owner alone; return what it contains.

    With ``single``, that is a copy of the SQLite database with certificates and tokens; otherwise the snapshots of etcd
    and the token. The archive is read as a restore reads it. Raise Unusable, archive.Refused, sqlite3.Error or OSError;
    then ``dest`` does not exist.
    """
    server = root / data_dir.strip("/") / "server"
    names = k3s_archive.STATE if single else (k3s_archive.SNAPSHOTS, "token")
    dest.unlink(missing_ok=True)
    scratch = dest.with_name(f"{dest.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        if single:
            copy_database(server / DATABASE, scratch / "state.db")
        for turn in range(_TRIES):
            try:
                _pack(root, server, names, scratch)
                break
            except OSError:
                # K3s renames files of certificates while they are read.
                if turn == _TRIES - 1:
                    raise
        content = k3s_archive.read(scratch / "archive", data_dir)
        if lacking := k3s_archive.lacks(content, data_dir):
            raise Unusable(f"{', '.join(lacking)} is missing")
        (scratch / "archive").chmod(0o600)
        (scratch / "archive").replace(dest)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return content


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database that K3s writes meanwhile; raise Unusable or sqlite3.Error.

    The copy is the database at one moment, since SQLite reads it in one transaction (https://sqlite.org/backup.html).
    """
    if not source.is_file():
        other = "etcd" if (source.parent / "etcd").is_dir() else "no SQLite database"
        raise Unusable(f"the only server has {other}, so there is no {source}; save its datastore with its own program")
    size, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if free < 2 * size + _SPARE:
        raise Unusable(f"{source} has {size} bytes, and {target.parent} has only {free} free")
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, timeout=60)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        told = copy.execute("PRAGMA quick_check(1)").fetchone()
        if told != ("ok",):
            raise Unusable(f"{source} is damaged: {told[0]}")


def _pack(root: Path, server: Path, names: tuple[str, ...], scratch: Path) -> None:
    """Write the archive of one try. Links are followed, because an archive with links is not restored."""
    below = str(server.relative_to(root))
    omitted = {f"{below}/{DATABASE}{end}" for end in _OF_SQLITE}

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name in omitted or not (member.isreg() or member.isdir()):
            return None
        member.mode &= 0o777
        return member

    # GNU's format, since a restore refuses the headers of others.
    with tarfile.open(scratch / "archive", "w:gz", format=tarfile.GNU_FORMAT, dereference=True) as made:
        for name in (k3s_archive.CONFIG_DIR, k3s_archive.PASSWORD):
            if (root / name).exists():
                made.add(root / name, name, filter=plain)
        for name in names:
            made.add(server / name, f"{below}/{name}", filter=plain)
        if (scratch / "state.db").exists():
            made.add(scratch / "state.db", f"{below}/{DATABASE}")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data_dir": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "single": {"type": "bool", "required": True},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    options = module.params
    if module.check_mode:
        module.exit_json(changed=True, size=0)
    try:
        content = write(Path(options["root"]), options["data_dir"], Path(options["dest"]), options["single"])
    except (Unusable, k3s_archive.Refused, k3s_archive.Damaged, sqlite3.Error, OSError) as error:
        module.fail_json(msg=f"The state of this server was not saved: {error}. K3s was not stopped.", changed=False)
    module.exit_json(changed=True, size=content.size)


if __name__ == "__main__":
    main()
