# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that no deletion and no drain waits for longer than 30 seconds without a line of output.

The modules of kubernetes.core print nothing until they end. A task therefore waits briefly and is repeated; Ansible
reports every repetition.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
LONGEST_SECONDS = 25


def tasks(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield entry
        for part in ("block", "rescue", "always"):
            yield from tasks(entry.get(part) or [])


def waits() -> Iterator[Any]:
    for path in sorted((*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml"))):
        for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8")) or []):
            drain = (task.get("kubernetes.core.k8s_drain") or {}).get("delete_options")
            options = task.get("kubernetes.core.k8s") or {}
            if drain or options.get("wait"):
                yield pytest.param(task, (drain or options).get("wait_timeout"), id=f"{path.parts[-3]}: {task['name']}")


WAITS = list(waits())


def test_the_waits_are_found() -> None:
    assert len(WAITS) >= 7


@pytest.mark.parametrize(("task", "seconds"), WAITS)
def test_a_wait_is_short_and_repeated(task: dict[str, Any], seconds: Any) -> None:
    assert isinstance(seconds, int), "a wait whose length a variable decides can be long and silent"
    assert seconds <= LONGEST_SECONDS
    assert "until" in task
    # A deletion that fails must not print the whole object.
    options = task.get("kubernetes.core.k8s") or {}
    assert not options or {"metadata", "spec", "status"} <= set(options["hidden_fields"])
