# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An append-only log that survives crashes: one checksummed JSON record per line."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._host import system

from .._paths import COLLECTION
from .._yaml import read_yaml


class JournalDamaged(ValueError):
    """A line other than an unfinished last one does not match its checksum, because of an edit or a disk error."""


@dataclass
class Journal:
    """The records that were read, and the number of bytes in an unfinished last line, which is ignored."""

    records: list[dict[str, Any]] = field(default_factory=list)
    torn_bytes: int = 0


def _checksum(record: dict[str, Any]) -> str:
    body = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(body.encode()).hexdigest()


def encode(record: dict[str, Any]) -> bytes:
    """Return the line of one record; ``sha256`` covers every other key."""
    return json.dumps(record | {"sha256": _checksum(record)}, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def append(path: Path, record: dict[str, Any]) -> None:
    """Write one record to the disk before returning; remove an unfinished last line of an earlier crash first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = read(path).torn_bytes if path.exists() else 0
    with path.open("ab") as log:
        if torn:
            log.truncate(path.stat().st_size - torn)
        log.write(encode(record))
        log.flush()
        os.fsync(log.fileno())


def read(path: Path) -> Journal:
    """Return every complete record. Raises JournalDamaged, naming the line, if a line does not match its checksum."""
    journal = Journal()
    data = path.read_bytes() if path.exists() else b""
    lines = data.split(b"\n")
    journal.torn_bytes = len(lines.pop())
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            given = record.pop("sha256")
        except (ValueError, KeyError, AttributeError) as error:
            raise JournalDamaged(
                f"{path}:{number}: not a record ({error}). Restore the file or move it away."
            ) from error
        if given != _checksum(record):
            raise JournalDamaged(f"{path}:{number}: the checksum does not match. Restore the file or move it away.")
        journal.records.append(record)
    return journal


def collection_version(root: Path = COLLECTION) -> str:
    """Return the collection's version from MANIFEST.json (installed collection) or galaxy.yml (checkout)."""
    manifest = root / "MANIFEST.json"
    if manifest.is_file():
        return str(json.loads(manifest.read_text(encoding="utf-8"))["collection_info"]["version"])
    return str(read_yaml(root / "galaxy.yml")["version"])


def commit(root: Path = COLLECTION) -> str:
    """Return the commit of a checkout; an empty string for an installed collection."""
    if not (root / ".git").exists():
        return ""
    return system.run(["git", "-C", str(root), "rev-parse", "HEAD"], check=False).stdout.strip()


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a sweep's journal; none if it does not exist. Raise AnsibleActionFail if it is damaged."""
    try:
        return read(Path(path)).records
    except JournalDamaged as error:
        raise AnsibleActionFail(str(error)) from error


def existing_journal(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of an existing journal. Otherwise raise AnsibleActionFail, naming the journals beside it."""
    file = Path(path)
    if not file.is_file():
        others = ", ".join(sorted(p.name for p in file.parent.glob("*.jsonl"))) or "no journal"
        remedy = f"Name one that a sweep wrote; this directory has {others}."
        raise AnsibleActionFail(f"{path}: this journal does not exist. {remedy}")
    return read_journal(file)
