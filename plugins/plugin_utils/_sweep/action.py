# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Journal functions that several actions share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from . import journal


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a sweep's journal; none if it does not exist. Raise AnsibleActionFail if it is damaged."""
    try:
        return journal.read(Path(path)).records
    except journal.JournalDamaged as error:
        raise AnsibleActionFail(str(error)) from error


def existing_journal(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of an existing journal. Otherwise raise AnsibleActionFail, naming the journals beside it."""
    file = Path(path)
    if not file.is_file():
        others = ", ".join(sorted(p.name for p in file.parent.glob("*.jsonl"))) or "no journal"
        remedy = f"Name one that a sweep wrote; this directory has {others}."
        raise AnsibleActionFail(f"{path}: this journal does not exist. {remedy}")
    return read_journal(file)
