# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar says about the load of its rank, the memory of its node, and the answers of its server."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import Limits
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import ANSWERS, LOAD, MEMORY
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar, watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod import watch as answers
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import Load, NodeMemory
from gate_rank import FakeApi, page_of

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


def test_a_step_that_the_api_server_did_not_get_is_written_again(node: Node) -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        "!!!!!!!!!!!!!!!!",
        "! ! ! !",
        "0000000000000000",
        "the the the the the the",
        "foo, foo, foo, foo, foo, foo, ",
        "\ufffd\ufffd\ufffd\ufffd a",
        "\x00\x01\x02\x03abcdefg",
        "\x00\x01\x02abcdefg",
        "????\n????",
        "aaaaaaaaaaaaaaaa",
    ],
)
def test_noise_is_found(text: str) -> None:
    assert answers.garbled(text)


FINE = ["", "23", "**23**", "The sum of 11 and 12 is 24.", "Okay, let me think. 11 plus 12 ...", "…", "答案是二十三"]
UNFINISHED = [
    "\U0001f600",
    "<think>\nThe user wants",
    "I can't help with that",
    "no no no",
    "$11 + 12 = ",
    "1.........",
    "ab\ufffd\ufffd",
    "\ufffd\ufffd\ufffdabcdefghijkl",
]


@pytest.mark.parametrize("text", [*FINE, *UNFINISHED])
def test_a_wrong_or_unfinished_answer_is_no_noise(text: str) -> None:
    assert not answers.garbled(text)


class Server:
    """Answers each question with the next text; ``SUM`` stands for the right number, ``error:`` begins an error."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, port: int, body: dict[str, Any], limit: float, show: Any) -> dict[str, Any]:
        self.asked.append(body)
        a, b = map(int, re.findall(r"\d+", body["messages"][0]["content"]))
        text = self.said[min(len(self.asked), len(self.said)) - 1].replace("SUM", str(a + b))
        error = text[6:] if text.startswith("error:") else ""
        return {"text": "" if error else text, "thought": "", "error": error}


NOISE = "!" * 16


def asking(
    monkeypatch: pytest.MonkeyPatch, server: Server, enforce: bool = False, base: Path = Path("/none")
) -> answers.Answers:
    monkeypatch.setattr(answers, "ask", server)
    monkeypatch.setattr(answers.time, "monotonic", lambda: 0.0)
    return answers.Answers(base, 9, FakeApi(ANSWERS), {"instance": "g", "rank": "0"}, enforce)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "reasons", "events"),
    [
        (["SUM"] * 3, ["Words"], []),
        (["error:[Errno 111] Connection refused", "SUM"], ["NotAnswered", "Words"], []),
        (["SUM", "error:not complete after 60 s", "error:HTTP 503: busy"], ["Words"], []),
        (["99999", "I think"], ["Words"], []),
        (["SUM", NOISE, "error:not complete after 60 s", NOISE], ["Words", "Garbage"], ["AnswersGarbage"]),
        (["SUM", NOISE, "SUM", NOISE], ["Words"], []),
        (
            ["SUM", NOISE, NOISE, "error:not complete after 60 s", "SUM"],
            ["Words", "Garbage", "Words"],
            ["AnswersGarbage", "AnswersWords"],
        ),
        ([NOISE, NOISE], ["NotAnswered", "Garbage"], ["AnswersGarbage"]),
    ],
)
def test_only_two_answers_of_noise_in_a_row_are_a_finding(
    said: list[str], reasons: list[str], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(*said)
    watch = asking(monkeypatch, server)
    api: Any = watch._api
    monkeypatch.setattr(answers, "timestamp", lambda: str(len(api.times)))
    for number in range(len(said)):
        watch.step(4000.0 * (number + 1))
    assert [condition.reason for condition in api.conditions] == reasons
    since = "0"
    for number, condition in enumerate(api.conditions):
        since = since if condition.proven == api.conditions[max(number - 1, 0)].proven else str(number)
        assert api.times[number] == since
    assert api.events == events
    assert len({body["messages"][0]["content"] for body in server.asked}) == len(said)
    assert all(body["max_tokens"] < 20 and body["temperature"] == 0 for body in server.asked)
    assert not any(value for body in server.asked for value in body["chat_template_kwargs"].values())
    assert sum(map(int, re.findall(r"questions_total{.*} (\d+)", watch.text))) == len(said)
    assert ('gb10_answers_garbage{instance="g",rank="0"} 1' in watch.text) is (reasons[-1] == "Garbage")


@pytest.mark.parametrize(
    ("said", "pause"),
    [("SUM", 300), (NOISE, 20), ("error:refused", 20), ("error:not complete", 300), ("error:HTTP 401: key", 3600)],
)
def test_a_question_is_asked_rarely(said: str, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(said)
    watch = asking(monkeypatch, server)
    for now, asked in ((1.0, 1), (pause - 1.0, 1), (pause + 0.0, 2)):
        watch.step(now)
        assert len(server.asked) == asked


def test_an_answer_of_a_client_that_repeats_one_character_makes_it_ask_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server owns the file: it may be a link to nothing, and it may be touched all the time."""
    server = Server("SUM")
    watch = asking(monkeypatch, server, base=tmp_path)
    watch.step(1.0)
    asked = []
    for now in range(2, 60):
        if now == 10:
            (tmp_path / answers.SUSPECT).symlink_to("nothing")
        if now > 40:
            os.utime(tmp_path / answers.SUSPECT, ns=(now, now), follow_symlinks=False)
        before = len(server.asked)
        watch.step(float(now))
        asked += [now] * (len(server.asked) - before)
    assert asked == [21, 41]
    (tmp_path / answers.SUSPECT).unlink()
    watch.step(100.0)
    assert len(server.asked) == 3


@pytest.mark.parametrize(("enforce", "status"), [(True, 503), (False, 200)])
def test_garbage_takes_the_head_out_of_the_service_only_if_that_is_wanted(
    enforce: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = asking(monkeypatch, Server(NOISE, NOISE, "SUM"), enforce)
    gate = sidecar.Gate("g", 0, ("g-0",), (), None, False, 9, 0, "/sys")
    page = page_of(monkeypatch, gate, None, answers=watch)
    seen = []
    for number in range(3):
        watch.step(4000.0 * (number + 1))
        seen.append(page("/ready")[0])
        assert (page("/live"), page("/other")) == ((200, ""), (404, ""))
    assert seen == [200, status, 200]
    assert "gb10_answers_questions_total" in page("/metrics")[1]
    api: Any = watch._api
    (found,) = (condition for condition in api.conditions if not condition.proven)
    assert found.reason == ("GarbageOut" if enforce else "Garbage")
    assert "What is 12 plus 13? Answer with the number only. The answer was '!!!!!!!!!!!!!!!!'." in found.message
    assert ("supervisor restarts it once" in found.message) is enforce
    assert ("restart the group" in found.message) is not enforce
