# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar says about the memory of its node."""

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import Limits
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import MEMORY
from ansible_collections.gb10.cluster.plugins.module_utils._pod import watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import NodeMemory
from gate_rank import FakeApi

LIMITS = Limits(warn=5, stop=4, full=20, hold=10)


class Node:
    """A node of 100 GiB."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.api = proc, FakeApi(MEMORY)
        (proc / "pressure").mkdir()
        labels = {"instance": "g", "rank": "1"}
        self.phase = ""
        self.watch = NodeMemory(LIMITS, self.api, labels, proc, lambda: self.phase)  # type: ignore[arg-type]

    def step(self, now: float, available: float, full: float = 0, swap: float = 0) -> str:
        sizes = {"MemTotal": 100.0, "MemFree": available, "MemAvailable": available, "SwapFree": swap}
        (self.proc / "meminfo").write_text("".join(f"{name}: {int(gib * 2**20)} kB\n" for name, gib in sizes.items()))
        (self.proc / "pressure/memory").write_text(f"full avg10={full:.2f} avg60=0.00 avg300=0.00 total=0\n")
        return self.watch.step(now).reason


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("phase", "swap", "said"),
    [
        ("weights", 40, ["MemoryEnough"] * 3),
        ("weights", 3, ["MemoryLow"] * 2 + ["MemoryOut"]),
        # A server that has loaded is stopped, however much swap there is.
        ("", 40, ["MemoryLow"] * 2 + ["MemoryOut"]),
    ],
)
def test_a_load_may_use_the_swap_that_the_plan_wants(phase: str, swap: float, said: list[str], node: Node) -> None:
    node.watch = NodeMemory(replace(LIMITS, swap=48.0), node.api, {}, node.proc, lambda: phase)  # type: ignore[arg-type]
    assert [node.step(now, 0.5, full=50, swap=swap) for now in (0, 5, 15)] == said


def test_every_change_is_a_condition_and_an_event_with_figures_and_remedy(node: Node) -> None:
    steps = [(0, 50), (3, 50), (6, 3), (9, 3), (16, 3), (19, 3), (22, 50)]
    said = [node.step(now, gib) for now, gib in steps]
    assert said == ["MemoryEnough"] * 2 + ["MemoryLow"] * 2 + ["MemoryOut"] * 2 + ["MemoryEnough"]
    assert [one.reason for one in node.api.conditions] == ["MemoryEnough", "MemoryLow", "MemoryOut", "MemoryEnough"]
    assert [one.proven for one in node.api.conditions] == [True, False, False, True]
    assert node.api.events[:2] == ["MemoryLow", "MemoryOut"]
    low, out = node.api.conditions[1:3]
    assert "3.0 of 100.0 GiB are available" in low.message and "Below 4 % the group is stopped" in low.message
    assert "The whole group is stopped" in out.message and "lower mem_fraction_static" in out.message


def test_what_is_said_of_little_memory_names_the_phase_of_a_load(node: Node) -> None:
    node.phase = "graphs"
    for now, gib in ((0, 50), (3, 3), (13, 3)):
        node.step(now, gib)
    said = ["while the server loads (phase graphs)" in one.message for one in node.api.conditions]
    assert said == [False, True, True]


def test_a_warning_that_comes_and_goes_is_not_an_event_each_time(node: Node) -> None:
    for now in range(0, 60, 2):
        node.step(now, 4.5 if now % 4 else 50)
    assert node.api.events == ["MemoryLow"]
    # The first one was at 2 s.
    node.step(61.5, 4.5)
    assert len(node.api.events) == 1
    node.step(61.8, 50)
    node.step(62, 4.5)
    assert node.api.events == ["MemoryLow"] * 2
    node.step(200, 50)
    assert node.api.events[2:] == ["MemoryEnough"]


def test_a_node_that_has_little_memory_from_the_start_is_an_event(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter("abc")
    monkeypatch.setattr(watch, "timestamp", lambda: next(times))
    for now, gib in ((0, 4.5), (1, 3), (11, 3), (12, 50)):
        node.step(now, gib)
    assert node.api.events == ["MemoryLow", "MemoryOut"]
    # Little and no memory are the same status of the condition, so it has one time.
    assert node.api.times == ["a", "a", "b"]


def test_what_the_api_server_did_not_get_is_written_again(node: Node) -> None:
    node.step(0, 50)
    node.api.away = True
    for now in (1, 11):
        with pytest.raises(OSError, match="no route"):
            node.step(now, 3)
    node.api.away = False
    assert node.step(12, 3) == node.api.conditions[-1].reason == "MemoryOut"


def test_the_first_reading_replaces_the_condition_of_an_earlier_sidecar(node: Node) -> None:
    node.step(0, 50)
    assert [one.reason for one in node.api.conditions] == ["MemoryEnough"]
    assert node.api.events == []


def test_the_metrics_have_the_step_and_the_memory(node: Node) -> None:
    node.step(0, 4.5, full=90)
    node.step(10, 4.5, full=90)
    assert 'gb10_memory_step{instance="g",rank="1"} 2\n' in node.watch.text
    assert f'gb10_memory_available_bytes{{instance="g",rank="1"}} {int(4.5 * 2**30)}\n' in node.watch.text
