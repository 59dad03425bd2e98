# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar says about the load of its rank."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import LOAD
from ansible_collections.gb10.cluster.plugins.module_utils._pod import watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import Load
from gate_rank import FakeApi

PHASES = {"start": 12.5, "weights": 90.0, "draft": 92.25, "graphs": 101.5}


class Rank(FakeApi):
    """The sidecar of a rank, and the API server, which may be away."""

    def __init__(self, base: Path) -> None:
        super().__init__(LOAD)
        self.base, self.load = base, Load(base, self, {"rank": "1"})  # type: ignore[arg-type]

    def told(self, now: float, state: str, phases: int, **more: Any) -> None:
        names = list(PHASES)[:phases]
        taken = {name: {"seconds": 3, "taken_gib": PHASES[name], "cached_gib": 1} for name in names}
        told = {"state": state, "phase": names[-1], "seconds": now, "total_gib": 119.7, "before_gib": 9.8}
        told |= {"phases": taken, "drops": 0, "said": "", **more}
        (self.base / "load.json").write_text(json.dumps(told))
        self.load.step(now)


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_a_load_is_told_phase_by_phase_and_its_peaks_stay(rank: Rank) -> None:
    rank.load.step(0)
    for now, state, phases in ((1, "loads", 1), (4, "loads", 1), (5, "loads", 2), (9, "loads", 4), (12, "ready", 4)):
        rank.told(now, state, phases)
        assert rank.load.phase == ("" if state == "ready" else list(PHASES)[phases - 1])
    # The second look at the first phase told nothing new in time.
    assert [one.reason for one in rank.conditions] == ["Loading"] * 3 + ["Loaded"]
    assert all(one.proven for one in rank.conditions) and rank.events == []
    assert rank.conditions[-1].message == (
        "loaded in 12 s; 101.5 of the node's 119.7 GiB were taken at most, in the phase graphs (before it 9.8, start "
        "12.5, weights 90.0, draft 92.2, graphs 101.5)"
    )
    assert rank.conditions[1].message.startswith("the server loads for 5 s, now in the phase weights; 90.0 of")


def test_a_long_phase_is_told_again_after_a_while(rank: Rank) -> None:
    for now in (0, 30, 59, 60):
        rank.told(now, "loads", 2)
    assert len(rank.conditions) == 2


def test_a_load_that_was_ended_is_an_event_and_stays_known_until_one_ends_well(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter("abc")
    monkeypatch.setattr(watch, "timestamp", lambda: next(times))
    rank.told(5, "ended", 2, said="the load was ended in its phase weights", drops=7)
    rank.told(8, "ended", 2, said="the load was ended in its phase weights", drops=7)
    (rank.base / "load.json").unlink()
    rank.load.step(9)
    for now, state, phases, ended in ((10, "loads", 1, 1), (20, "ready", 4, 0), (30, "loads", 1, 0)):
        rank.told(now, state, phases)
        assert rank.load.text.endswith(f'\ngb10_load_ended{{rank="1"}} {ended}\n')
    assert [(one.reason, one.proven) for one in rank.conditions] == [
        ("LoadEnded", False),
        ("Loading", False),
        ("Loaded", True),
        ("Loading", True),
    ]
    assert rank.events == ["LoadEnded"] and rank.times == ["a", "a", "b", "b"]
    (rank.base / "load.json").unlink()
    rank.load.step(31)
    assert rank.load.phase == ""
    assert rank.conditions[0].message.startswith("the load was ended in its phase weights; 90.0 of the node's")
    assert rank.conditions[0].message.endswith("the models' pages were dropped 7 times")
    assert "the load before it: the load was ended in its phase weights" in rank.conditions[1].message
    assert "before it:" not in rank.conditions[2].message


def test_a_condition_that_grows_is_no_second_event(rank: Rank) -> None:
    for now, drops in ((0, 1), (70, 2)):
        rank.told(now, "ended", 2, drops=drops)
    assert (len(rank.conditions), rank.events) == (2, ["LoadEnded"])


def test_what_the_api_server_did_not_get_is_written_again(rank: Rank) -> None:
    rank.away = True
    for now in (1, 2):
        with pytest.raises(OSError, match="no route"):
            rank.told(now, "ended", 2)
    rank.away = False
    rank.told(3, "ended", 2)
    assert [one.reason for one in rank.conditions] == rank.events == ["LoadEnded"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": "x"}', '{"state": "ready", "phases": {}}'])
def test_a_file_that_the_watch_never_writes_says_nothing(rank: Rank, text: str) -> None:
    (rank.base / "load.json").write_text(text)
    with pytest.raises((LookupError, TypeError, ValueError)):
        rank.load.step(1)
    assert rank.conditions == []
    assert rank.load.phase == ""


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_server_cannot_make_the_sidecar_read_another_file_or_wait(rank: Rank, kind: str) -> None:
    told = rank.base / "load.json"
    os.mkfifo(told) if kind == "pipe" else told.symlink_to("/proc/self/status")
    with pytest.raises(OSError):
        rank.load.step(1)
