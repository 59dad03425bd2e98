# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when the supervisor restarts a group, what it asks, keeps of the logs and says about a hang."""

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from email.message import Message
from http.client import BadStatusLine
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
import stored
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import ANSWERS, MEMORY
from ansible_collections.gb10.cluster.plugins.module_utils._pod import supervise
from ansible_collections.gb10.cluster.plugins.module_utils._pod.hang import judge
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import TIMEOUTS
from gate_rank import Server

COLLECTION = Path(__file__).resolve().parents[5]
LIMITS = supervise.Limits(40, first_step=40, part_after=30, backoff_first=30, backoff_most=100, calm_after=600)
COLD = supervise.Limits()
STATES: dict[str, dict[str, Any]] = {
    "~": {"started": False},
    "!": {"started": False, "running": False, "down": True},
    "?": {"started": False, "running": False},
    "#": {"memory": "the node runs out of memory"},
    "%": {"garbage": "nothing but !"},
    "-": {"started": False, "running": False},
}
SIGNS = "".join(STATES)
# Looks in turn: the second, or "first..last/pause" for many, then the pods, "ok" or "503" of the head, and what it and
# the starts say. A pod is its incarnation and signs: loading ~, ended !, pending ?, without memory #, noise %, gone -.
COURSES = {
    "a healthy group": "0..195 a b ok",
    "a head that is stuck": "0 a b ok; 5..45 a b 503",
    "one healthy answer resets the time": "0 a b 503; 39 a b ok; 41 a b 503; 80 a b 503",
    "a group that restarted by itself": "0 a/0 b/0 ok; 5..295 a/1~ b/1~",
    "a rank that came back to an old group": "0 a/0 b/0 c/0 ok; 5..35 a/0~ b/1~ c/0~",
    # The group was never healthy: the head waits for a worker that is not there any more.
    "a rank that came back to a group that loads": "0..55 a/0~ b/0~; 60..90 a/0~ b/1~",
    # Deleting the others would not bring it back.
    "a missing rank": "0 a/0 b/0 ok; 5..895 a/0 -",
    "a pending pod of a drained node": "0 a/0 b/0 ok; 5..895 a/0 new/0?",
    # The head stays "started" and answers 503; the worker is in CrashLoopBackOff and never runs for long.
    "a rank that cannot come back": "0 a/0 b/0 ok; 5..15 a/0 b/1!; 20..35 a/0 b/2!",
    # A container that can't be created counts as no restart, and the head that waits for it does not end.
    "a rank whose process cannot be started again": "0 a/0 b/0 ok; 5..365 a/0 b/0!",
    "a rank whose process is started again": "0 a/0 b/0 ok; 5..355 a/0 b/0!; 360 a/0 b/0~; 365 a/0 b/0!",
    "a second restart before the group is healthy": (
        "0 a/0 b/0 503; 40 a/0 b/0 503; 45 - -; 50..75 c/0~ d/0~; 80..110 c/0~ d/1~"
    ),
    "a long prefill: no token for minutes, yet the scheduler's counters move": (
        "0..575/25 a b 503 prefill=new; 600 a b 503 prefill=9; 640 a b 503 prefill=9"
    ),
    "restarts back off": "0..600 a b 503",
    "a restart in the first second that may have one": (
        "0 a b 503; 40 a b 503; 41 a b 503; 81 a b 503; 82 a b 503; 140 a b 503; 141 a b 503"
    ),
    "a short healthy time leaves the pause": "0..200 a b 503; 201 a b ok; 800 a b ok; 801 a b 503; 900 a b 503",
    "a long one resets it": "0..200 a b 503; 201 a b ok; 801 a b ok; 802 a b 503; 900 a b 503",
    "a node without memory, also of a group that loads": "0 a b ok; 5 a b# ok; 34 c~ d#; 35 c~ d#",
    "noise restarts a group once, until it was healthy without": (
        "0 a% b ok; 100 a% b ok; 800 a% b ok; 900 a b ok; 1600 a b ok; 1700 a% b ok"
    ),
    # The supervisor itself started later than the pods.
    "all ranks crash in their pods": (
        "0 a/7! b/1!; 10 a/8! b/2!; 20 a/9! b/3!; 30 a/10! b/4!; 40 a/11! b/5!; 50 a/12! b/6!; 60 a/13! b/7!; "
        # A pod that is not deleted yet still has its count.
        "70 a/13! b/8!; 200 c/1! d/1!"
    ),
    "one rank crashes in its pod": (
        "0 a/7 b/1!; 4 a/7 b/2!; 8 a/7 b/3!; 12 a/7 b/4!; 16 a/7 b/5!; 20 a/7 b/6!; 24 a/7 b/7!"
    ),
}
# With the limits of the program. The size of the weights may be unknown, and a cold cache compiles for long.
COLD_COURSES = {
    "a line an hour is progress": "0..200000/60 a~ b~ log=hourly",
    "a start that is silent, and the next one": "0..3600 a~ b~ log=1; 3605..7205 c~ d~ log=1",
    "a log that cannot be read": "0..20000/60 a~ b~",
    "silence counts only while all ranks run and one is loading": (
        "0 a~ b~ log=1; 3599 a~ -; 3600 a~ b~ log=1; 7199 a~ b~ log=1; 7200..20000/60 a b ok; 20000 a~ b~ log="
    ),
    "a first step of six minutes": "0 a b ok tokens=0; 5 a b ok tokens=50; 10..370 a b 503; 1809 a b 503; 1810 a b 503",
    "a rank that came back, by default": "0 a/0 b/0 ok; 5 a/0 b/1~; 34 a/0 b/1~; 35 a/0 b/1~",
    "restarts back off by default": "0..13200/60 a b 503",
    "a calm time by default": "0 a b 503; 1800 a b 503; 1801 a b ok; 2401 a b ok; 2402 a b 503; 4202 a b 503",
    "a head that generated for minutes": "0..300 a b ok tokens=busy; 305..425 a b 503",
    "a head that generated for a moment less": "0..295 a b ok tokens=busy; 300..420 a b 503",
    "health requests do not warm a head, and a restart cools it": (
        "0..300 a b ok tokens=busy; 305 c d ok tokens=3; 310..1310 c d ok tokens=idle prefill=new; 1315..1435 c d 503"
    ),
}


def look(text: str, now: int, history: Any, limits: supervise.Limits) -> str:
    """Return why the group is restarted now, and how long it then has to wait, or nothing."""
    _when, *words = text.split()
    values = dict(word.split("=") for word in words if "=" in word)
    pods = [word for word in words if "=" not in word and word not in ("ok", "503")]
    running = [supervise.Seen(f"g-{number}-0", True, True, word.rstrip(SIGNS)) for number, word in enumerate(pods)]
    seen = [replace(pod, **STATES.get(word[-1], {})) for pod, word in zip(running, pods, strict=True)]
    known = {"new": now, "busy": now // 5 * supervise.BUSY_TOKENS, "idle": now // 5, "hourly": f"shard {now // 3540}"}
    names = {"tokens": f'{supervise.GENERATED}{{model="m"}}', "prefill": "sglang:realtime_tokens_total"}
    work = "\n".join(f"{names[name]} {known.get(value, value)}" for name, value in values.items() if name in names)
    said = [str(known.get(values["log"], values["log"]))][: len(values["log"])] if "log" in values else None
    healthy = True if "ok" in words else False if "503" in words else None
    why = supervise.decide(seen, healthy, history, limits, float(now), work, said)
    return f"{why}; pause {supervise.acted(history, limits, float(now)):.0f}" if why else ""


def course(text: str, limits: supervise.Limits) -> list[str]:
    history, lines = supervise.History(), []
    for part in text.split(";"):
        when = part.split()[0]
        first, _dots, rest = when.partition("..")
        last, _slash, pause = rest.partition("/")
        times = range(int(first), int(last or first) + 1, int(pause or 5))
        found = [(now, look(part, now, history, limits)) for now in times]
        acts = [f"{f'at {now}: ' if rest else ''}{why}" for now, why in found if why]
        lines += [f"{part.strip()} → {acts[0] if acts else 'nothing'}", *(f"    → {more}" for more in acts[1:])]
    return lines


# What differs in the status of a pod: its server's container, and a condition.
CONTAINERS: dict[str, dict[str, Any]] = {
    "runs": {"state": {"running": {}}},
    "has started": {"state": {"running": {}}, "restartCount": 2, "started": True},
    "has ended": {"state": {"terminated": {"exitCode": 1}}, "restartCount": 1, "started": True},
    "without a state": {"state": {}},
}
for why in ("CrashLoopBackOff", "CreateContainerError", "RunContainerError", "CreateContainerConfigError", "Pulling"):
    CONTAINERS[f"waits: {why}"] = {"state": {"waiting": {"reason": why}}}
CONDITIONS = [(MEMORY, "False", "MemoryOut"), (MEMORY, "False", "MemoryLow"), (MEMORY, "True", "MemoryOut")]
CONDITIONS += [(ANSWERS, "False", "GarbageOut"), (ANSWERS, "False", "Garbage")]


def told(seen: supervise.Seen) -> dict[str, Any]:
    return {name: value for name, value in vars(seen).items() if value}


def test_when_a_group_is_restarted_is_as_stored() -> None:
    found = {title: course(text, LIMITS) for title, text in COURSES.items()}
    found |= {title: course(text, COLD) for title, text in COLD_COURSES.items()}
    statuses: dict[str, dict[str, Any]] = {"nothing": {}}
    for name, container in CONTAINERS.items():
        containers = [{"name": "transport", "state": {"waiting": {}}}, {"name": "sglang", **container}]
        statuses[name] = {"podIP": "10.42.0.7", "containerStatuses": containers}
    for kind, status, reason in CONDITIONS:
        said = {"type": kind, "status": status, "reason": reason, "message": "why"}
        statuses[f"{reason} {status}"] = {"conditions": [{"type": "Ready", "status": "False"}, said]}
    pods = {name: {"metadata": {"uid": "u"}, "status": status} for name, status in statuses.items()}
    pods["leaves"] = pods["has started"] | {"metadata": {"uid": "u", "deletionTimestamp": "now"}}
    found["how a pod is read"] = [f"{name}: {told(supervise.read_pod('g', pod))}" for name, pod in pods.items()]
    stored.compare("supervisor_decisions", found)


def test_every_default_limit_allows_a_first_step_of_six_minutes() -> None:
    defaults = yaml.safe_load((COLLECTION / "roles/sglang/defaults/main.yml").read_text(encoding="utf-8"))
    assert (defaults["sglang_stuck_after"], defaults["sglang_first_step_timeout"]) == (0, COLD.first_step)
    assert min(defaults["sglang_first_step_timeout"], defaults["sglang_startup_timeout"]) >= 3 * 360
    assert defaults["sglang_wait_timeout"] == 0
    assert all(int(seconds) >= 2 * 360 for seconds in TIMEOUTS.values())


def test_restarts_for_a_worker_that_dies_in_every_load_get_rarer() -> None:
    """Restarts must get rarer: a new pod has a crash count of 0, and the waiting controller needs this count."""
    history, acts, born = supervise.History(), [], 0
    for now in range(0, 7200, 5):
        # loads for 100 s, dies, comes back after 10 s; the head waits for ever
        cycle, into = divmod(now - born, 110)
        worker = supervise.Seen("g-1-0", False, into < 100, f"b{born}/{cycle}")
        head = supervise.Seen("g-0-0", False, True, f"a{born}/0")
        if supervise.decide([head, worker], None, history, COLD, float(now)):
            supervise.acted(history, COLD, float(now))
            acts.append(now)
            born = now
    gaps = [later - earlier for earlier, later in itertools.pairwise(acts)]
    assert gaps[0] < 200
    assert all(gap >= COLD.backoff_most for gap in gaps[5:])
    assert len(acts) < 20


def test_a_restart_in_place_is_counted_once_and_a_new_pod_is_not_counted() -> None:
    def crashed(looks: tuple[str, ...], before: dict[str, str]) -> list[str]:
        seen = [supervise.Seen(f"g-{n}-0", True, True, text) for n, text in enumerate(looks)]
        return supervise.crashed(seen, before)

    before: dict[str, str] = {}
    looks = [("u/0", "v/0"), ("u/0", "v/1"), ("u/0", "v/1"), ("u/0", ""), ("u/0", "w/0"), ("u/2", "w/0")]
    assert [crashed(look, before) for look in looks] == [[], ["g-1-0"], [], [], [], ["g-0-0"]]
    assert crashed(("x/1",), {}) == ["g-0-0"]


METRICS = """# HELP sglang:realtime_tokens_total Total tokens
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 8192.0
sglang:token_usage{tp_rank="0"} 0.25
sglang:http_requests_total{endpoint="/health"} 7.0
sglang:num_queue_reqs{tp_rank="0"} 3.0
"""
ERRORS = [ConnectionRefusedError("refused"), BadStatusLine("garbage")]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (204, False), *((error, False) for error in ERRORS)])
def test_only_200_and_the_scheduler_s_own_lines_count(
    status: Any, healthy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(url: str, timeout: float) -> BytesIO:
        if isinstance(status, Exception):
            raise status
        made = BytesIO(METRICS.encode())
        # With SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false, /health answers 200 while all ranks hang.
        made.status = 200 if url.endswith("/health") else status  # type: ignore[attr-defined]
        return made

    monkeypatch.setattr(supervise.HTTP, "open", answer)
    assert supervise.head_is_healthy("10.0.0.1", 30000) is healthy
    work = [] if isinstance(status, Exception) else METRICS.splitlines()[1:3]
    assert supervise.work_done("10.0.0.1", 30000).splitlines() == work


def test_what_the_supervisor_asks_the_api_is_as_stored(server: Server, tmp_path: Path) -> None:
    """There is one pod, whose sidecar has no log."""
    error: Exception = HTTPError("https://api", 404, "not found", Message(), None)
    logs, found = ["last line\n"], dict[str, list[str]]()
    api = supervise.SupervisorApi("s", 15, tmp_path)

    def answer(path: str) -> bytes:
        if path.startswith("pods/g-1-0") or "container=transport" in path:
            raise error
        return logs[-1].encode() if "/log?" in path else b'{"metadata": {"uid": "u"}}'

    def note(title: str, answer: object) -> None:
        found[f"{title}: {answer!r}"], server.asked = server.asked, []

    server.answer = answer
    note("see", told(api.see("g-0-0")))
    note("see a pod that does not exist", told(api.see("g-1-0")))
    note("delete", api.delete("g-1-0"))
    note("tell", api.tell(supervise.Seen("g-0-0", incarnation="u/3"), "GroupHung", "why"))
    note("last words", api.said(["g-0-0"]))
    failures = error, ERRORS[1]
    for error in failures:
        note("log before a crash", api.log("g-0-0", True))
        note(f"last words if a pod answers {error}", api.said(["g-0-0", "g-1-0"]))
    # In a warm-up that hangs, answers to probes are all that SGLang logs, for ever.
    access = '[2026-11-25 23:26:50] INFO:     10.42.0.1:4242 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    warm_up = f"shard 1\nshard 2\n{access}{access}Health check failed. Server couldn't get a response\n"
    for text in (warm_up, access * 50):
        logs.append(text)
        note("last words without answers to probes", api.said(["g-0-0"]))
    assert set(server.timeouts) == {15}
    stored.compare("supervisor_requests", found)


class Group:
    """Two ranks that were seen before and hang, and what was done to them."""

    def __init__(self, first: dict[str, Any] | None = None, **more: Any) -> None:
        self.done: list[str] = []
        self.first, self.more = first or {}, more

    def see(self, name: str) -> supervise.Seen:
        self.done.append(f"see {name}")
        if name == "fails":
            raise self.more["error"]
        seen = supervise.Seen(name, True, True, f"{name}/0", name)
        return replace(seen, **(self.more | (self.first if name == "g-0-0" else {})))

    def log(self, name: str, previous: bool) -> str:
        return f"first line\n{name} {previous}\n"

    def said(self, names: list[str]) -> list[str]:
        self.done.append(f"last words of {', '.join(names)}")
        return ["shard 1"]

    def delete(self, name: str) -> None:
        self.done.append(f"delete {name}")


def test_what_a_check_does_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that hangs is asked before its pods are deleted."""
    loading = Group({"started": True}, started=False, incarnation="u/1")
    cases: dict[str, tuple[Any, int | None, str, str]] = {
        "hangs": (Group(), 30002, "", "g-0-0/0"),
        "hangs, without a page of evidence": (Group(), None, "", "g-0-0/0"),
        "has no memory": (Group(memory="3 %"), 30002, "", "g-0-0/0"),
        "answers with noise": (Group(garbage="!"), 30002, "", "g-0-0/0"),
        "is partly new": (Group(), 30002, "", "old/0"),
        "does not run": (Group(running=False), 30002, "", "g-0-0/0"),
        "works": (Group(), 30002, "sglang:token_usage 0.5", "g-0-0/0"),
        "loads after a crash": (loading, 30002, "", "g-0-0/0"),
    }
    found = {}
    monkeypatch.setattr(supervise, "head_is_healthy", lambda address, *_words: address != "g-0-0")
    monkeypatch.setattr(supervise.time, "monotonic", lambda: 1000.0)
    for title, (group, port, work, known) in cases.items():
        logs = tmp_path / title
        logs.mkdir()
        monkeypatch.setattr(supervise, "say", lambda text, to=group.done: to.append(f"say {text.splitlines()[0]}"))
        monkeypatch.setattr(
            supervise, "explain", lambda _api, seen, _options, to=group.done: to.append(f"ask {len(seen)}")
        )
        monkeypatch.setattr(supervise, "work_done", lambda *_words, work=work: work)
        history = supervise.History(stuck_since=-1000.0, incarnations=(known, "g-1-0/0"))
        options = argparse.Namespace(evidence_port=port, port=1, logs=logs)
        before = {"g-0-0": "g-0-0/0", "g-1-0": "g-1-0/0"}
        supervise.check(group, ["g-0-0", "g-1-0"], history, before, options, COLD)
        kept = sorted(path.read_text().splitlines()[-1] for path in logs.iterdir())
        found[title] = ["; ".join(group.done), f"kept: {', '.join(kept)}; last words: {history.said}"]
    stored.compare("supervisor_checks", found)


@pytest.mark.parametrize("error", [*ERRORS, ValueError("no JSON")])
def test_a_failure_of_one_group_does_not_keep_it_from_the_others(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rest(_seconds: float) -> None:
        raise KeyboardInterrupt

    group: Any = Group(error=error)
    pulse = supervise.Pulse()
    monkeypatch.setattr(pulse, "beat", lambda: group.done.append("beat"))
    monkeypatch.setattr(supervise.time, "sleep", rest)
    options = argparse.Namespace(pods=[["fails"], ["fails", "g-1-0"]], interval=5)
    with pytest.raises(KeyboardInterrupt):
        supervise.watch(group, options, supervise.Limits(), pulse)
    assert group.done == ["see fails", "see fails", "beat"]
    assert f"fails and its group could not be checked, trying again: {error!r}" in capsys.readouterr().out


def test_logs_are_kept_but_not_for_ever_and_a_full_disk_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(supervise.KEPT_SETS + 2):
        (tmp_path / f"20260101T0000{n:02}Z-g-0-0.log").write_text("old", encoding="utf-8")
    supervise.keep_logs(Group(), ["g-0-0", "g-1-0"], tmp_path)  # type: ignore[arg-type]
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len({name.partition("-")[0] for name in kept}) == supervise.KEPT_SETS
    assert (tmp_path / kept[-1]).read_text(encoding="utf-8") == "first line\ng-1-0 False\n"
    supervise.keep_logs(Group(), ["g-2-0"], tmp_path / "gone", previous=True)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "can't be saved" in said and "    first line\n    g-2-0 True" in said


@pytest.mark.parametrize("limited", [False, True])
def test_the_program_watches_the_groups_of_its_command(limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(supervise, "serve_pages", lambda port, _read: started.append(port))
    monkeypatch.setattr(supervise, "SupervisorApi", lambda namespace, timeout: namespace)
    monkeypatch.setattr(supervise, "watch", lambda *words: started.extend(words))
    command = "supervise --namespace s --pods g-0-0,g-1-0 --pods f-0-0 --port 1 --live-port 9"
    limits = " --evidence-port 30002 --stuck-after 40 --first-step-timeout 50 --start-timeout 60"
    monkeypatch.setattr(sys, "argv", (command + limits * limited).split())
    supervise.main()
    port, namespace, options, told, _pulse = started
    assert (port, namespace, options.port, told) == (9, "s", 1, supervise.Limits(40, 50, 60) if limited else COLD)
    assert (options.pods, options.evidence_port) == ([["g-0-0", "g-1-0"], ["f-0-0"]], 30002 if limited else None)
    assert (options.interval, options.evidence_seconds, options.logs) == (5, 20, Path("/var/log/group"))


Json = dict[str, Any]
NAME = "sglang::scheduler_TP0"
SPINS = "synchronize (torch/cuda/streams.py:231)"
WAITS = "recv_requests (sglang/srt/managers/scheduler.py:1100)"


def rail(name: str = "rdma0", moved: Sequence[int | None] = (0, 0), down: str = "", **errors: int) -> Json:
    return {"interface": name, "device": name, "address": "", "down": down, "bytes": list(moved), "errors": errors}


def scheduler(state: str = "R", at: str = SPINS) -> Json:
    return {"name": NAME, "state": state, "busy": 1.0, "threads": [["poll (zmq.py:1)"], [at]]}


def counts(*begun: Json | None) -> list[Json]:
    """Return one communicator with these counts; None for a rank that does not answer NCCL."""
    own = [{"begun": each} if each else {"missing": True} for each in begun]
    return [{"hash": "0x27", "ranks": [{"rank": n, "host": f"10.42.0.{n}", **each} for n, each in enumerate(own)]}]


def rank(*rails: Json, gone: Sequence[str] = (), communicators: Any = None, **of: str) -> Json:
    witness = {"processes": [scheduler(**of)], "gone": list(gone)}
    return {"rails": list(rails or [rail()]), "witness": witness, "communicators": communicators or [], "missing": {}}


def gpu(**now: int) -> Json:
    return rank(communicators=ALIKE) | {"at": 1010, "gpu": {"at": 1000, "now": [now]}}


def recorded(called: Any, **more: Any) -> Json:
    """Return a rank that has called so many collectives in a group of PyTorch."""
    rows = [{"group": "tp:0", "called": called, "last": "nccl:all_reduce"}, {"group": "0", "called": 3}, 7]
    return rank() | {"witness": {"processes": [scheduler()], "torch": rows}} | more


LATE, LATER = {"AllReduce": 6650, "Broadcast": 4}, {"AllReduce": 6649, "Broadcast": 4}
ALIKE = counts(LATE, LATE)
BUSY = (9000, 9000)
SENDS, EVEN, UNEVEN = rank(rail(moved=BUSY)), rank(communicators=ALIKE), rank(communicators=counts(LATE, LATER))
CASES: dict[str, list[Any]] = {
    "one rank is stopped": [
        rank(communicators=counts(LATE, None)),
        rank() | {"witness": {"processes": [scheduler(), scheduler(state="T")]}},
    ],
    "a rail is pulled": [rank(rail(moved=(9000, 0), local_ack_timeout_err=3)), rank(rail(down="rdma0 has no carrier"))],
    "a rail loses packets": [
        rank(rail(moved=BUSY, out_of_sequence=2, packet_seq_err=40)),
        rank(rail(moved=BUSY), rail("rdma1", BUSY, out_of_sequence=700)),
    ],
    "numbers that no counter has": [
        rank(rail(moved=(1 << 63, -1), out_of_sequence=1 << 63, rnr_nak_retry_err=-1), communicators=ALIKE),
        rank(),
    ],
    "a few events are no loss": [rank(rail(moved=BUSY, out_of_sequence=9), communicators=ALIKE)] * 2,
    "one retry too many ends a connection": [rank(rail(req_transport_retries_exceeded=1)), rank()],
    "a scheduler was killed": [rank(gone=[NAME]), rank()],
    "a GPU reported a fault": [
        EVEN,
        rank() | {"gpu": {"xid": {"79": 1, "{{ x }}": 1}, "seconds": {}}},
        rank() | {"gpu": 3},
    ],
    "NVML tells no faults": [
        EVEN,
        *[rank() | {"gpu": {"xid": {}, "tells_faults": tells}} for tells in (False, True, 0)],
    ],
    "a GPU is slow, and another one's driver hangs": [
        gpu(mhz=2400, busy_percent=100),
        gpu(mhz=507, busy_percent=100, watts=29),
        gpu(mhz=300, busy_percent=0),
        EVEN | {"at": 1090, "gpu": {"at": 1000, "now": [3, {"mhz": "x"}]}},
    ],
    "a rank is behind": [UNEVEN, rank()],
    "one rank knows more communicators than another": [EVEN, rank(communicators=counts(LATE) + counts(LATE, LATER))],
    "a rank of an old NCCL is behind": [recorded(8), recorded(7), recorded(8), recorded(7)],
    "NCCL and PyTorch know the same": [recorded(8, communicators=counts(LATE, LATER)), recorded(7)],
    "what a CUDA graph replays is in no recorder": [
        rank() | {"witness": {"processes": [], "torch": [{"group": "2", "called": n, "last": ""}]}} for n in (6, 5)
    ],
    "PyTorch's counts are no numbers": [recorded("8"), recorded(-7)],
    "two ranks are away and one is behind": [rank(communicators=counts(LATE, LATER, None, None)), *[rank()] * 3],
    "every rank calls another collective": [
        rank(communicators=counts({"AllReduce": 9, "Broadcast": 4}, {"AllReduce": 8, "Broadcast": 5})),
        rank(at=WAITS),
    ],
    "only one rail of a rank is silent": [
        rank(rail(moved=BUSY), rail("rdma1", (9000, 0))),
        rank(rail(moved=(1, 1)), rail("rdma1", (0, 0))),
    ],
    "two ranks do not send": [rank(), SENDS, rank()],
    "the rails of rank 0 are unknown": [EVEN | {"rails": []}, SENDS, rank()],
    "a device does not count": [rank(rail(moved=(None, None)), communicators=ALIKE), SENDS],
    "an old NCCL": [rank()] * 2,
    "a server has ended, and its sidecar lives": [rank(), rank() | {"witness": None}],
    "no rank has a witness": [rank() | {"witness": None}] * 2,
    "half of the ranks do not answer": [rank(), None, rank(), None],
    "a rank is elsewhere": [
        rank(),
        rank() | {"witness": {"processes": [scheduler() | {"threads": []}, scheduler(at=WAITS)]}},
        rank(),
    ],
    "a template, a terminal's bytes and a huge name": [
        rank(gone=["{{ lookup('pipe', 'id') }}", "\x1b[2J%s\u202e", "n" * 999]),
        rank(),
    ],
    "no evidence of the expected form": [
        {"rails": "x", "witness": [1], "communicators": {"a": 1}},
        {"rails": [1, {"bytes": "x", "errors": [], "down": 0}], "witness": {"processes": [{}, 3], "gone": 4}},
        {"communicators": [{"ranks": [{"begun": {"AllReduce": "9", 3: -1}}, {"begun": None}, 7]}, []]},
    ],
}


def test_what_holds_up_a_group_is_as_stored() -> None:
    found = {name: judge(given, [f"10.42.0.{number}" for number in range(len(given))]) for name, given in CASES.items()}
    # A rank of several GPUs is named by its place, or by NCCL's number.
    counted = counts({"AllReduce": 3}, {"AllReduce": 3}, {"AllReduce": 2}, {"AllReduce": 3})
    for place, row in enumerate(counted[0]["ranks"]):
        row["host"] = f"10.100.0.{place // 2}"
    for address in ("", "10.100.0.1"):
        group = [rank(rail() | {"address": "10.100.0.0"}, communicators=counted), rank(rail() | {"address": address})]
        found[f"the second rank of two GPUs has the address {address or 'unknown'}"] = judge(group, ["", ""])
    stored.compare("hang_findings", found)


SEEN = [supervise.Seen(f"g-{n}-0", True, True, f"u{n}/0", f"10.42.0.{n}") for n in range(3)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_says_nothing_delays_nothing(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 says nonsense, rank 1 answers after a moment, and rank 2 says nothing until ``held`` is set."""
    held, others, told = threading.Event(), set(threading.enumerate()), []

    def opened(url: str, timeout: float) -> BytesIO:
        assert url.endswith(":30002/hang") and timeout > 0
        if "10.42.0.2" in url:
            held.wait(60)
            raise TimeoutError
        if "10.42.0.0" in url:
            return BytesIO(b"\xff{{")
        time.sleep(0.05)
        return BytesIO(json.dumps(rank(gone=[NAME])).encode())

    def tell(pod: supervise.Seen, reason: str, _message: str) -> None:
        if fails:
            raise OSError("away")
        told.append((pod.name, reason))

    monkeypatch.setattr(supervise.HTTP, "open", opened)
    options = argparse.Namespace(evidence_port=30002, evidence_seconds=1, logs=tmp_path)
    try:
        supervise.explain(SimpleNamespace(tell=tell), SEEN, options)  # type: ignore[arg-type]
    finally:
        held.set()
    said = capsys.readouterr().out
    # What the late thread writes must not appear in another test.
    for late in set(threading.enumerate()) - others:
        late.join()
    finding = f"rank 1: its process {NAME} has ended, and the others wait for it; rank 0, 2 did not answer"
    assert f"why the group hung: {finding}" in said
    assert "rank 0 says nothing about the hang: " in said
    (kept,) = tmp_path.glob("*-hang.log")
    assert kept.read_text().startswith(finding)
    assert ("could not be told" in said) is fails
    assert told == [("g-0-0", "GroupHung")] * (not fails)
