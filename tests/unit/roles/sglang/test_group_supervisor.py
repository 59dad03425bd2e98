# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the supervisor restarts a group, and when it leaves it alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[4] / "roles/sglang/files/group_supervisor.py"
SPEC = importlib.util.spec_from_file_location("group_supervisor", FILE)
assert SPEC is not None and SPEC.loader is not None
supervisor = importlib.util.module_from_spec(SPEC)
sys.modules["group_supervisor"] = supervisor
SPEC.loader.exec_module(supervisor)

LIMITS = supervisor.Limits(stuck_after=40, part_after=30, backoff_first=30, backoff_most=100, calm_after=600)


def group(*incarnations: str, started: bool = True, running: bool = True) -> list[Any]:
    return [supervisor.Seen(f"g-{n}-0", started, running, text, "10.0.0.1") for n, text in enumerate(incarnations)]


def run(steps: list[tuple[float, list[Any], bool | None]], memory: Any = None) -> list[str]:
    memory = memory or supervisor.Memory()
    return [supervisor.decide(seen, healthy, memory, LIMITS, now) for now, seen, healthy in steps]


def test_a_healthy_group_is_left_alone() -> None:
    assert run([(t, group("a", "b"), True) for t in range(0, 200, 5)]) == [""] * 40


def test_a_loading_group_is_left_alone_however_long() -> None:
    assert run([(t, group("a", "b", started=False), None) for t in range(0, 7200, 60)]) == [""] * 120


def test_a_stuck_head_ends_the_group_after_a_while() -> None:
    said = run(
        [
            (0, group("a", "b"), True),
            (5, group("a", "b"), False),
            (44, group("a", "b"), False),
            (45, group("a", "b"), False),
        ]
    )
    assert said[:3] == ["", "", ""]
    assert "stuck for 40 s" in said[3]


def test_one_healthy_answer_forgives() -> None:
    same = group("a", "b")
    assert run([(0, same, False), (39, same, True), (41, same, False), (80, same, False)]) == ["", "", "", ""]


def test_a_group_that_restarted_by_itself_is_left_alone() -> None:
    steps = [(0.0, group("a/0", "b/0"), True)]
    steps += [(float(t), group("a/1", "b/1", started=False), None) for t in range(5, 300, 5)]
    assert set(run(steps)) == {""}


def test_a_rank_that_came_back_to_an_old_group_ends_it() -> None:
    steps = [(0.0, group("a/0", "b/0"), True)]
    steps += [(float(t), group("a/0", "b/1", started=False), None) for t in (5, 34, 35)]
    said = run(steps)
    assert said[:3] == ["", "", ""]
    assert "g-0-0 still belong to the old group" in said[3]


def test_a_missing_rank_is_waited_for() -> None:
    """A drained node: the pod is pending, and deleting the others would not bring it back."""
    gone = [*group("a/0"), supervisor.Seen("g-1-0")]
    steps = [(0.0, group("a/0", "b/0"), True), *((float(t), gone, None) for t in range(5, 900, 5))]
    assert set(run(steps)) == {""}


def test_restarts_back_off_and_calm_resets() -> None:
    memory = supervisor.Memory()
    pauses = [supervisor.acted(memory, LIMITS, float(n)) for n in range(4)]
    assert pauses == [30, 60, 100, 100]
    same = group("a", "b")
    assert run([(4, same, False), (60, same, False)], memory) == ["", ""]
    run([(200, same, True), (800, same, True)], memory)
    assert memory.restarts == 0


@pytest.mark.parametrize("leaving", [True, False])
def test_reading_a_pod(leaving: bool) -> None:
    pod = {
        "metadata": {"uid": "u", **({"deletionTimestamp": "now"} if leaving else {})},
        "status": {
            "podIP": "10.42.0.7",
            "containerStatuses": [{"name": "sglang", "restartCount": 2, "started": True, "state": {"running": {}}}],
        },
    }
    seen = supervisor.read_pod("g-0-0", pod)
    assert seen == (supervisor.Seen("g-0-0") if leaving else supervisor.Seen("g-0-0", True, True, "u/2", "10.42.0.7"))


def test_logs_are_kept_but_not_for_ever(tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"20260101T00000{n:x}Z-g-0-0.log").write_text("old", encoding="utf-8")

    class Api:
        def log(self, name: str, lines: int) -> str:
            return f"{name} {lines}\n"

    supervisor.keep_logs(Api(), ["g-0-0", "g-1-0"], tmp_path, 9)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len({name.partition("-")[0] for name in kept}) == supervisor.KEPT_SETS
    assert (tmp_path / kept[-1]).read_text(encoding="utf-8") == "g-1-0 9\n"
