# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of a sweep, and the classes of its failures."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._host import system

from .._controller.data import COLLECTION, SWEEPS, read_yaml


class JournalDamaged(ValueError):
    """A line other than an unfinished last one does not match its checksum, because of an edit or a disk error."""


def _checksum(record: dict[str, Any]) -> str:
    body = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(body.encode()).hexdigest()


def encode(record: dict[str, Any]) -> bytes:
    """Return the line of one record; ``sha256`` covers every other key."""
    return json.dumps(record | {"sha256": _checksum(record)}, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def append(path: Path, record: dict[str, Any]) -> None:
    """Write one record to the disk before returning; remove an unfinished last line of an earlier crash first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
    with path.open("ab") as log:
        log.truncate(whole)
        log.write(encode(record))
        log.flush()
        os.fsync(log.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Return every complete record. Raises JournalDamaged, naming the line, if a line does not match its checksum."""
    records = []
    data = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
            given = record.pop("sha256")
        except (ValueError, KeyError, AttributeError) as error:
            raise JournalDamaged(
                f"{path}:{number}: not a record ({error}). Restore the file or move it away."
            ) from error
        if given != _checksum(record):
            raise JournalDamaged(f"{path}:{number}: the checksum does not match. Restore the file or move it away.")
        records.append(record)
    return records


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
        return read(Path(path))
    except JournalDamaged as error:
        raise AnsibleActionFail(str(error)) from None


def existing_journal(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of an existing journal. Otherwise raise AnsibleActionFail, naming the journals beside it."""
    file = Path(path)
    if not file.is_file():
        others = ", ".join(sorted(p.name for p in file.parent.glob("*.jsonl"))) or "no journal"
        remedy = f"Name one that a sweep wrote; this directory has {others}."
        raise AnsibleActionFail(f"{path}: this journal does not exist. {remedy}")
    return read_journal(file)


# Classify a failed cell by what its ranks logged.
#
# The classes with their patterns and remedies are data: plugins/sweeps/data/failures.yml.


@dataclass(frozen=True)
class Failure:
    """The class of a failure, the log line that shows it, and what to do."""

    kind: str
    line: str
    remedy: str


@cache
def signatures() -> list[tuple[re.Pattern[str], str, str]]:
    """Return pattern, class and remedy of every known failure; earlier classes take precedence."""
    entries = read_yaml(SWEEPS / "data/failures.yml")
    return [(re.compile("|".join(e["patterns"]), re.IGNORECASE), e["kind"], e["remedy"]) for e in entries]


CONSEQUENCES = frozenset({"nccl", "infrastructure", "timeout"})
"""The classes that the surviving ranks report when another rank has died, whatever the cause."""

CRASH = re.compile(
    r"CUDA error: |Segmentation fault|core dumped|Fatal Python error|"
    r"(?:^|\]:?)\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)"
)
"""Lines with which a process reports its own death: a signal, the CUDA runtime, or the last line of a traceback."""

ECHO = re.compile(r"scheduler (?:is dead|died)|Initialization failed|EOFError|BrokenPipeError")
"""Lines with which SGLang's other processes report a dead one, without its cause (engine.py, http_server.py)."""


def quote(line: str) -> str:
    """Return a log line in the form in which records quote it."""
    return line.strip()[:500]


def crash_line(lines: Iterable[str]) -> str:
    """Return the first line that reports the process's own death and matches no signature; else an empty string."""
    return next((n for n in lines if CRASH.search(n) and not ECHO.search(n) and classify([n]) is None), "")


def classify(lines: Iterable[str]) -> Failure | None:
    """Return the failure that explains the others, or None if the lines show none.

    The order of the classes decides, not the order of the lines: a rejected argument on one rank explains the broken
    connections of the other ranks, never the reverse.
    """
    # "raise …" is a source line in a traceback; the message itself follows below it.
    said = [line for line in lines if not line.lstrip().startswith("raise ")]
    for pattern, kind, remedy in signatures():
        for line in said:
            if pattern.search(line):
                return Failure(kind, quote(line), remedy)
    return None
