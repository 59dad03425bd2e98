# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the supervisor asks and does, without a cluster."""

import argparse
import itertools
import json
import ssl
import sys
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import replace
from email.message import Message
from http.client import BadStatusLine
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import ANSWERS, MEMORY
from ansible_collections.gb10.cluster.plugins.module_utils._pod import supervise
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import TIMEOUTS

METRICS = """# HELP sglang:realtime_tokens_total Total tokens
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 8192.0
sglang:token_usage{tp_rank="0"} 0.25
sglang:http_requests_total{endpoint="/health"} 7.0
sglang:num_queue_reqs{tp_rank="0"} 3.0
"""


ERRORS = [ConnectionRefusedError("refused"), BadStatusLine("garbage")]


@pytest.mark.parametrize("error", ERRORS)
def test_only_the_scheduler_s_own_lines_count_as_work(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise.HTTP, "open", lambda url, timeout: BytesIO(METRICS.encode()))
    assert supervise.work_done("10.0.0.1", 30000).splitlines() == METRICS.splitlines()[1:3]

    def refuse(url: str, timeout: float) -> None:
        raise error

    monkeypatch.setattr(supervise.HTTP, "open", refuse)
    assert supervise.work_done("10.0.0.1", 30000) == ""


@pytest.mark.parametrize("error", ERRORS)
def test_a_head_whose_answer_is_no_http_is_not_healthy(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, timeout: float) -> None:
        raise error

    monkeypatch.setattr(supervise.HTTP, "open", answer)
    assert supervise.head_is_healthy("10.0.0.1", 30000) is False


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (204, False)])
def test_only_200_is_the_answer_of_a_healthy_head(status: int, healthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, timeout: float) -> BytesIO:
        made = BytesIO()
        # With SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false, /health answers 200 while all ranks hang.
        made.status = 200 if url.endswith("/health") else status  # type: ignore[attr-defined]
        return made

    monkeypatch.setattr(supervise.HTTP, "open", answer)
    assert supervise.head_is_healthy("10.0.0.1", 30000) is healthy


class Api:
    """Logs without a cluster."""

    def log(self, name: str, previous: bool) -> str:
        return f"{name} {previous}\n"


def test_logs_are_kept_but_not_for_ever(tmp_path: Path) -> None:
    for n in range(supervise.KEPT_SETS + 2):
        (tmp_path / f"20260101T0000{n:02}Z-g-0-0.log").write_text("old", encoding="utf-8")
    supervise.keep_logs(Api(), ["g-0-0", "g-1-0"], tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len({name.partition("-")[0] for name in kept}) == supervise.KEPT_SETS
    assert (tmp_path / kept[-1]).read_text(encoding="utf-8") == "g-1-0 False\n"


def test_a_crash_keeps_the_log_of_the_process_that_died(tmp_path: Path) -> None:
    supervise.keep_logs(Api(), ["g-1-0"], tmp_path, previous=True)
    (kept,) = tmp_path.iterdir()
    assert kept.read_text(encoding="utf-8") == "g-1-0 True\n"


def test_a_log_that_cannot_be_kept_is_reported_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervise.keep_logs(Api(), ["g-1-0"], tmp_path / "gone")
    said = capsys.readouterr().out
    assert "can't be saved" in said
    assert "g-1-0 False" in said


def test_only_ranks_that_load_are_asked_for_their_last_lines_and_one_that_crashed_for_those_before(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    class Loading(Api):
        def see(self, name: str) -> Any:
            return supervise.Seen(name, name == "g-0-0", True, f"u/{int(name == 'g-1-0')}")

        def said(self, names: list[str]) -> list[str]:
            asked.extend(names)
            return ["shard 1"]

    history, options = supervise.History(), argparse.Namespace(logs=tmp_path)
    supervise.check(Loading(), ["g-0-0", "g-1-0"], history, {}, options, supervise.Limits())
    assert (asked, history.said) == (["g-1-0"], ["shard 1"])
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["g-1-0 True\n"]


@pytest.mark.parametrize("error", [*ERRORS, ValueError("no JSON")])
def test_a_failure_of_one_group_does_not_keep_it_from_the_others(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Known:
        def see(self, name: str) -> Any:
            asked.append(name)
            if name == "g-f2-1-0-0":
                raise error
            return supervise.Seen(name)

    def rest(_seconds: float) -> None:
        raise KeyboardInterrupt

    pulse = supervise.Pulse()
    monkeypatch.setattr(pulse, "beat", lambda: asked.append("beat"))
    monkeypatch.setattr(supervise.time, "sleep", rest)
    options = argparse.Namespace(pods=[["g-f2-1-0-0"], ["g-f2-2-0-0", "g-f2-2-1-0"]], interval=5)
    with pytest.raises(KeyboardInterrupt):
        supervise.watch(Known(), options, supervise.Limits(), pulse)
    assert asked == ["g-f2-1-0-0", "g-f2-2-0-0", "g-f2-2-1-0", "beat"]
    assert f"g-f2-1-0-0 and its group could not be checked, trying again: {error!r}" in capsys.readouterr().out


class Opener:
    """An API server with one pod, whose sidecar has no log."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.text = "last line\n"
        self.error: Exception | None = None

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        assert timeout > 0
        path = request.full_url.partition("/namespaces/s/pods/")[2]
        self.asked.append((request.get_method(), path, request.data))
        if path.startswith("g-1-0") or "container=transport" in path:
            raise self.error or HTTPError(request.full_url, 404, "not found", Message(), None)
        text = self.text.encode() if "/log?" in path else b'{"metadata": {"uid": "u"}}'
        answer = BytesIO(text)
        answer.headers = {"Date": "Sun, 22 Nov 2026 12:00:00 GMT"}  # type: ignore[attr-defined]
        return answer


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Opener:
    made = Opener()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.43.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_handlers: made)
    return made


def test_a_pod_and_a_log_that_do_not_exist_are_no_failure(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    api = supervise.SupervisorApi("s", 15, tmp_path)
    assert api.see("g-0-0").incarnation == "u/0"
    assert api.see("g-1-0") == supervise.Seen("g-1-0")
    api.delete("g-1-0")
    assert opener.asked[-1] == ("DELETE", "g-1-0", b'{"gracePeriodSeconds": 10}')
    assert api.log("g-0-0", True).endswith("last line\n")
    assert "no log: HTTP Error 404" in api.log("g-0-0", True)
    assert [path for _method, path, _data in opener.asked[-2:]] == [
        "g-0-0/log?container=transport&tailLines=400&previous=false",
        "g-0-0/log?container=sglang&tailLines=400&previous=true",
    ]
    assert api.said(["g-0-0"]) == ["last line"]
    assert opener.asked[-1][1] == "g-0-0/log?container=sglang&tailLines=50&previous=false"
    assert api.said(["g-0-0", "g-1-0"]) is None
    api.tell(supervise.Seen("g-0-0", incarnation="u/3"), "GroupHung", "why")
    event = json.loads(opener.asked[-1][2])
    assert (event["type"], event["reason"], event["involvedObject"]["uid"]) == ("Warning", "GroupHung", "u")
    opener.error = BadStatusLine("garbage")
    assert api.said(["g-0-0", "g-1-0"]) is None


def test_answers_to_probes_do_not_count_as_progress_of_a_start(opener: Opener, tmp_path: Path) -> None:
    """In a warm-up that hangs they are all that SGLang logs, for ever."""
    (tmp_path / "token").write_text("t")
    api = supervise.SupervisorApi("s", 15, tmp_path)
    access = '[2026-11-25 23:26:50] INFO:     10.42.0.1:4242 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    opener.text = f"shard 1\nshard 2\n{access}{access}Health check failed. Server couldn't get a response\n"
    assert api.said(["g-0-0"]) == ["shard 2"]
    opener.text = access * 50
    assert api.said(["g-0-0"]) == []


COLLECTION = Path(__file__).resolve().parents[5]
LIMITS = supervise.Limits(40, first_step=40, part_after=30, backoff_first=30, backoff_most=100, calm_after=600)


def group(*incarnations: str, started: bool = True, running: bool = True) -> list[Any]:
    return [supervise.Seen(f"g-{n}-0", started, running, text, "10.0.0.1") for n, text in enumerate(incarnations)]


def run(steps: list[tuple[float, list[Any], bool | None]], history: Any = None) -> list[str]:
    history = history or supervise.History()
    return [supervise.decide(seen, healthy, history, LIMITS, now) for now, seen, healthy in steps]


def crashing(uid: str, restarts: int, down: bool) -> supervise.Seen:
    return supervise.Seen("g-1-0", incarnation=f"{uid}/{restarts}", running=not down, down=down)


Step = tuple[float, list[Any], bool | None]


def at(times: Iterable[int], seen: Callable[[int], list[Any]], healthy: bool | None = None) -> list[Step]:
    """Return what is seen at these seconds."""
    return [(float(now), seen(now), healthy) for now in times]


WHOLE: list[Step] = [(0.0, group("a/0", "b/0"), True)]
HEAD, SAME, BELONGS = group("a/0")[0], group("a", "b"), "g-0-0 still belong to the old group"
# What is seen in turn, and why the group is ended at the last step, or nothing.
COURSES: dict[str, tuple[list[Step], str]] = {
    "a healthy group": (at(range(0, 200, 5), lambda _now: SAME, True), ""),
    "a head that is stuck": ([(0, SAME, True), *at((5, 44, 45), lambda _now: SAME, False)], "stuck for 40 s"),
    "one healthy answer resets the time": (
        [(0, SAME, False), (39, SAME, True), (41, SAME, False), (80, SAME, False)],
        "",
    ),
    "a group that restarted by itself": (
        WHOLE + at(range(5, 300, 5), lambda _now: group("a/1", "b/1", started=False)),
        "",
    ),
    "a rank that came back to an old group": (
        [
            (0, group("a/0", "b/0", "c/0"), True),
            *at((5, 34, 35), lambda _now: group("a/0", "b/1", "c/0", started=False)),
        ],
        "while g-0-0, g-2-0 still belong to the old group",
    ),
    # The group was never healthy: the head waits for a worker that is not there any more.
    "a rank that came back to a group that loads": (
        at(range(0, 95, 5), lambda now: group("a/0", f"b/{int(now >= 60)}", started=False)),
        BELONGS,
    ),
    # A drained node: the pod is pending, and deleting the others would not bring it back.
    "a missing rank": (WHOLE + at(range(5, 900, 5), lambda _now: [HEAD, supervise.Seen("g-1-0")]), ""),
    "a pending pod of a drained node": (
        WHOLE + at(range(5, 900, 5), lambda _now: [HEAD, supervise.Seen("g-1-0", incarnation="new/0")]),
        "",
    ),
    # The head stays "started" and answers 503; the worker is in CrashLoopBackOff and never runs for long.
    "a rank that cannot come back": (
        WHOLE + at(range(5, 40, 5), lambda now: [HEAD, crashing("b", 1 + now // 20, True)]),
        f"some ranks are new while {BELONGS}",
    ),
    # A container that can't be created counts as no restart, and the head that waits for it does not end.
    "a rank whose process cannot be started again": (
        WHOLE + at(range(5, 370, 5), lambda _now: [HEAD, crashing("b", 0, True)]),
        "g-1-0 has had no process for 360 s",
    ),
    "a rank whose process is started again": (
        WHOLE + at(range(5, 370, 5), lambda now: [HEAD, crashing("b", 0, now != 360)]),
        "",
    ),
}


@pytest.mark.parametrize("name", COURSES)
def test_a_group_is_ended_only_if_it_cannot_go_on_by_itself(name: str) -> None:
    steps, why = COURSES[name]
    *before, last = run(steps)
    assert set(before) == {""}
    assert why in last and bool(last) is bool(why)


def test_after_a_restart_by_the_supervisor_it_sees_the_next_one_before_the_group_is_healthy() -> None:
    history = supervise.History(incarnations=("a/0", "b/0"))
    supervise.acted(history, LIMITS, 0)
    steps = at([5], lambda _now: [supervise.Seen("g-0-0"), supervise.Seen("g-1-0")])
    steps += at(range(10, 75, 5), lambda now: group("c/0", f"d/{int(now >= 40)}", started=False))
    *before, last = run(steps, history)
    assert set(before) == {""} and BELONGS in last


def test_a_start_that_writes_to_its_log_is_left_alone_however_long() -> None:
    """A line an hour is enough: the size of the weights may be unknown, and a cold cache compiles for as long."""
    history, loading = supervise.History(), group("a", "b", started=False)
    for t in range(0, 200_000, 60):
        assert supervise.decide(loading, None, history, COLD, float(t), "", [f"shard {t // 3540}"]) == ""


def test_a_start_that_is_silent_for_too_long_ends_and_so_does_the_next_one() -> None:
    history, loading = supervise.History(), group("a", "b", started=False)
    said = [supervise.decide(loading, None, history, COLD, float(t), "", ["shard 1"]) for t in range(0, 3605, 5)]
    assert set(said[:-1]) == {""}
    assert "makes no progress: no rank has written a log line for 3600 s" in said[-1]
    supervise.acted(history, COLD, 3600)
    again = group("c", "d", started=False)
    said = [supervise.decide(again, None, history, COLD, float(t), "", ["shard 1"]) for t in range(3605, 7210, 5)]
    assert set(said[:-1]) == {""}
    assert "makes no progress" in said[-1]


def test_a_log_that_cannot_be_read_ends_no_start() -> None:
    history, loading = supervise.History(), group("a", "b", started=False)
    for t in range(0, 20_000, 60):
        assert supervise.decide(loading, None, history, COLD, float(t)) == ""


def test_silence_counts_only_while_all_ranks_run_and_one_is_loading() -> None:
    history, loading = supervise.History(), group("a", "b", started=False)
    pending = [*group("a", started=False), supervise.Seen("g-1-0")]
    for now, seen in ((0, loading), (3599, pending), (3600, loading), (7199, loading)):
        assert supervise.decide(seen, None, history, COLD, float(now), "", ["shard 1"]) == ""
    # A group that serves writes nothing for hours.
    for now in range(7200, 20_000, 60):
        assert supervise.decide(group("a", "b"), True, history, COLD, float(now)) == ""
    assert supervise.decide(loading, None, history, COLD, 20_000.0, "", []) == ""


def busy(checks: int) -> tuple[Any, float]:
    """Return the memory of a supervisor after so many checks of a head that generates, and the time."""
    history = supervise.History()
    for check in range(checks + 1):
        work = f'{supervise.GENERATED}{{model="m"}} {check * supervise.BUSY_TOKENS}.0'
        supervise.decide(group("a", "b"), True, history, COLD, check * 5.0, work)
    return history, checks * 5.0


COLD = supervise.Limits()
SIX_MINUTES = 360


def test_every_default_limit_allows_a_first_step_of_six_minutes() -> None:
    defaults = yaml.safe_load((COLLECTION / "roles/sglang/defaults/main.yml").read_text(encoding="utf-8"))
    assert (defaults["sglang_stuck_after"], defaults["sglang_first_step_timeout"]) == (0, COLD.first_step)
    for name in ("sglang_first_step_timeout", "sglang_startup_timeout"):
        assert defaults[name] >= 3 * SIX_MINUTES, name
    assert defaults["sglang_wait_timeout"] == 0
    assert all(int(seconds) >= 2 * SIX_MINUTES for seconds in TIMEOUTS.values())


def test_a_first_step_of_six_minutes_is_no_reason_to_restart() -> None:
    history, now = busy(1)
    said = [supervise.decide(group("a", "b"), False, history, COLD, now + t, "") for t in range(0, SIX_MINUTES, 5)]
    assert set(said) == {""}
    assert "stuck for 1800 s" in supervise.decide(group("a", "b"), False, history, COLD, now + 1800, "")


def test_a_head_that_generated_for_minutes_is_stuck_soon() -> None:
    history, now = busy(supervise.WARM_CHECKS)
    # Nothing is generated meanwhile.
    said = [supervise.decide(group("a", "b"), False, history, COLD, now + t, history.work) for t in (5, 124, 125)]
    assert said[:2] == ["", ""]
    assert "stuck for 120 s" in said[2]


def test_health_requests_do_not_warm_a_head_and_a_restart_cools_it() -> None:
    history, _now = busy(supervise.WARM_CHECKS)
    supervise.decide(group("c", "d"), True, history, COLD, 999.0, f"{supervise.GENERATED} 3.0")
    assert history.warm == 0
    for check in range(200):
        work = f"{supervise.GENERATED} {4 + check}.0\nsglang:realtime_tokens_total {8192 * check}"
        supervise.decide(group("c", "d"), True, history, COLD, 999.0, work)
    assert history.warm == 0


def test_restarts_for_a_worker_that_dies_in_every_load_get_rarer() -> None:
    """Restarts must get rarer: a new pod has a crash count of 0, and the waiting controller needs this count."""
    history, acts, born, now = supervise.History(), [], 0.0, 0.0
    limits = supervise.Limits()
    while now < 7200:
        age = now - born
        # loads for 100 s, dies, comes back after 10 s; the head waits for ever
        cycle, into = divmod(age, 110)
        worker = supervise.Seen("g-1-0", False, into < 100, f"b{born}/{cycle:.0f}", "")
        if supervise.decide(
            [supervise.Seen("g-0-0", False, True, f"a{born}/0", ""), worker], None, history, limits, now
        ):
            supervise.acted(history, limits, now)
            acts.append(now)
            born = now
        now += 5
    gaps = [later - earlier for earlier, later in itertools.pairwise(acts)]
    assert gaps[0] < 200
    assert all(gap >= limits.backoff_most for gap in gaps[5:])
    assert len(acts) < 20


def test_a_head_that_works_is_not_stuck_however_long_it_answers_503() -> None:
    """A long prefill: no token for minutes, yet the scheduler's counters move."""
    history, same = supervise.History(), group("a", "b")
    for t in range(0, 600, 25):
        assert supervise.decide(same, False, history, LIMITS, float(t), f"sglang:realtime_tokens_total {t}") == ""
    still = [
        supervise.decide(same, False, history, LIMITS, float(t), "sglang:realtime_tokens_total 9") for t in (600, 640)
    ]
    assert still[0] == ""
    assert "stuck for 40 s" in still[1]


def test_restarts_back_off_and_a_healthy_period_resets_the_delay() -> None:
    history = supervise.History()
    pauses = [supervise.acted(history, LIMITS, float(n)) for n in range(4)]
    assert pauses == [30, 60, 100, 100]
    same = group("a", "b")
    assert run([(4, same, False), (60, same, False)], history) == ["", ""]
    for now, restarts in ((200.0, 4), (799.0, 4), (800.0, 0)):
        run([(now, same, True)], history)
        assert history.restarts == restarts


def test_a_node_without_memory_stops_a_healthy_group_and_never_quickly_again() -> None:
    history = supervise.History()
    pressed = [*group("a"), supervise.Seen("g-1-0", True, True, "b", "10.0.0.2", "the node runs out of memory")]
    said = run([(0, group("a", "b"), True), (5, pressed, True)], history)
    assert said == ["", "g-1-0: the node runs out of memory"]
    supervise.acted(history, LIMITS, 5)
    # It also stops a group that is still loading.
    loading = [*group("c", started=False), supervise.Seen("g-1-0", False, True, "d", "", "the node runs out")]
    assert run([(34, loading, None), (35, loading, None)], history) == ["", "g-1-0: the node runs out"]
    assert supervise.acted(history, LIMITS, 35) == 60


@pytest.mark.parametrize(
    ("status", "reason", "stops"),
    [
        ("False", "MemoryOut", True),
        ("False", "MemoryLow", False),
        ("True", "MemoryOut", False),
        ("True", "MemoryEnough", False),
    ],
)
def test_only_the_last_step_of_the_memory_guard_stops_the_group(status: str, reason: str, stops: bool) -> None:
    said = {"type": MEMORY, "status": status, "reason": reason, "message": "3 % are available"}
    pod = {"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "Ready", "status": "False"}, said]}}
    assert supervise.read_pod("g-0-0", pod).memory == ("3 % are available" if stops else "")


@pytest.mark.parametrize(("reason", "restarts"), [("GarbageOut", True), ("Garbage", False)])
def test_only_a_head_that_gets_no_requests_for_its_answers_restarts_the_group(reason: str, restarts: bool) -> None:
    said = {"type": ANSWERS, "status": "False", "reason": reason, "message": "nothing but !"}
    pod = {"metadata": {"uid": "u"}, "status": {"conditions": [said]}}
    assert supervise.read_pod("g-0-0", pod).garbage == ("nothing but !" if restarts else "")


def test_a_group_that_answers_with_noise_is_restarted_once_until_it_was_healthy_without() -> None:
    history, (good, other) = supervise.History(), group("a", "b")
    bad = replace(good, garbage="nothing but !")
    looks = [(bad, 0), (bad, 100), (bad, 800), (good, 900), (good, 1600), (bad, 1700)]
    seen = []
    for head, now in looks:
        seen.append(supervise.decide([head, other], True, history, LIMITS, float(now)))
        if seen[-1]:
            supervise.acted(history, LIMITS, float(now))
    assert [bool(text) for text in seen] == [True, False, False, False, False, True]
    assert seen[0] == "g-0-0: nothing but !"


@pytest.mark.parametrize("both", [True, False])
def test_a_group_that_crashes_in_its_pods_gets_new_pods_and_later_ones_are_rarer(both: bool) -> None:
    history = supervise.History()
    # The supervisor itself started later than the pods.
    supervise.decide([supervise.Seen("g-0-0", incarnation="a/7"), crashing("b", 1, True)], None, history, LIMITS, 0.0)
    said = []
    for restarts in range(1, 8):
        head = supervise.Seen("g-0-0", incarnation=f"a/{7 + restarts * both}", down=both, running=not both)
        # Without a healthy moment before, nothing tells which ranks belong together.
        history.incarnations = ()
        said.append(supervise.decide([head, crashing("b", restarts, True)], None, history, LIMITS, 10.0 * restarts))
    assert [text.partition(" times")[0] for text in said] == (
        [""] * 5 + ["g-0-0 crashed 6", "g-0-0 crashed 7"] if both else [""] * 6 + ["g-1-0 crashed 6"]
    )
    supervise.acted(history, LIMITS, 80.0)
    # A pod that is not deleted yet still has its count.
    assert supervise.decide([head, crashing("b", 8, True)], None, history, LIMITS, 90.0) == ""
    assert supervise.decide([crashing("c", 1, True), crashing("d", 1, True)], None, history, LIMITS, 200.0) == ""


@pytest.mark.parametrize(
    ("container", "running", "down"),
    [
        ({"state": {"running": {}}}, True, False),
        ({"state": {"terminated": {"exitCode": 1}}, "restartCount": 1, "started": True}, False, True),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2}, False, True),
        ({"state": {"waiting": {"reason": "CreateContainerError"}}, "restartCount": 1}, False, True),
        ({"state": {"waiting": {"reason": "RunContainerError"}}}, False, True),
        ({"state": {"waiting": {"reason": "CreateContainerConfigError"}}}, False, False),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, False, False),
        ({"state": {}}, False, False),
    ],
)
def test_only_a_process_that_ended_is_down(container: dict[str, Any], running: bool, down: bool) -> None:
    seen = supervise.read_pod(
        "g-0-0", {"metadata": {"uid": "u"}, "status": {"containerStatuses": [{"name": "sglang", **container}]}}
    )
    assert (seen.running, seen.down, seen.started) == (running, down, False)


@pytest.mark.parametrize("leaving", [True, False])
def test_reading_a_pod(leaving: bool) -> None:
    pod = {
        "metadata": {"uid": "u", **({"deletionTimestamp": "now"} if leaving else {})},
        "status": {
            "podIP": "10.42.0.7",
            "containerStatuses": [
                {"name": "transport", "state": {"waiting": {}}},
                {"name": "sglang", "restartCount": 2, "started": True, "state": {"running": {}}},
            ],
        },
    }
    seen = supervise.read_pod("g-0-0", pod)
    assert seen == (supervise.Seen("g-0-0") if leaving else supervise.Seen("g-0-0", True, True, "u/2", "10.42.0.7"))


def test_a_restart_in_place_is_counted_once_and_a_new_pod_is_not_counted() -> None:
    before: dict[str, str] = {}
    looks = [("u/0", "v/0"), ("u/0", "v/1"), ("u/0", "v/1"), ("u/0", ""), ("u/0", "w/0"), ("u/2", "w/0")]
    said = [supervise.crashed(group(*look), before) for look in looks]
    assert said == [[], ["g-1-0"], [], [], [], ["g-0-0"]]
    assert supervise.crashed(group("x/1"), {}) == ["g-0-0"]


@pytest.mark.parametrize(
    ("given", "evidence_port", "limits"),
    [
        ("", None, supervise.Limits()),
        (
            "--evidence-port 30002 --stuck-after 40 --first-step-timeout 50 --start-timeout 60",
            30002,
            supervise.Limits(40, 50, 60),
        ),
    ],
)
def test_the_program_watches_the_groups_of_its_command(
    given: str, evidence_port: int | None, limits: supervise.Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(supervise, "serve_pages", lambda port, _read: started.append(port))
    monkeypatch.setattr(supervise, "SupervisorApi", lambda namespace, timeout: namespace)
    monkeypatch.setattr(supervise, "watch", lambda *words: started.extend(words))
    command = "supervise --namespace s --pods g-0-0,g-1-0 --pods f-0-0 --port 1 --live-port 9"
    monkeypatch.setattr(sys, "argv", [*command.split(), *given.split()])
    supervise.main()
    port, namespace, options, told, _pulse = started
    assert (port, namespace, options.port, told) == (9, "s", 1, limits)
    assert (options.pods, options.evidence_port) == ([["g-0-0", "g-1-0"], ["f-0-0"]], evidence_port)
    assert (options.interval, options.evidence_seconds, options.logs) == (5, 20, Path("/var/log/group"))
