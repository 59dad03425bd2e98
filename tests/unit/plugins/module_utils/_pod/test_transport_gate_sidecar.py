# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar judges from its own files and sysfs, also forged ones, and what it writes to the API."""

import io
import json
import os
import shutil
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, gate, sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import NcclFiles
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Condition
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import PodApi
from gate_rank import LATER, LINES, STARTED, Rank, Server

PREFIX = "g-0-0:40:40 [0] NCCL INFO "
ADDRESS = "0000:0000:0000:0000:0000:ffff:0a64:0001"
SHOWN = tuple(f"gb10_transport_{name}" for name in ("info", "verdict_age", "rdma_bytes", "link_speed"))
APPENDED = {
    "causes": f"{PREFIX}NET/IB : No device found.\n"
    "g-0-0:40:40 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n",
    "tcp": "".join(f"g-0-0:40:41 [0] NCCL INFO {line.format(net='Socket')}\n" for line in LINES[1:]),
    "trees": f"{PREFIX}Connected all trees\n",
    "many-trees": f"{PREFIX}Connected all trees\n" * 70_000,
    "more": f"{PREFIX}NCCL appends\n",
}


def refused(code: int) -> HTTPError:
    return HTTPError("url", code, "no", Message(), None)


class Played(Rank):
    """A rank to which the events of a course happen; each method is one."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        path.mkdir()
        super().__init__(path, patch)
        self.patch, self.clock, self.said = patch, 0.0, list[str]()
        self.file = self.logs / "1/g-0-0.40"
        patch.setattr(sidecar.time, "time", lambda: self.clock + self.now)
        patch.setattr(sidecar, "say", lambda _text: self.said.append("logged"))
        patch.setattr(evidence, "read_link", lambda *_words: {"carrier_changes": 3, "speed": 10000})
        self.watch._since = self.now

    def play(self, text: str, shown: stored.Once) -> list[str]:
        """Return a line for each look of a course with what happened before it."""
        lines, events = [], []
        for event in text.split(";"):
            what, *given = event.replace("ADDRESS", ADDRESS).split()
            if what == "metrics":
                known = [line.replace('instance="g",rank="0",', "") for line in self.watch.text.splitlines()]
                lines.append(f"    {'; '.join(line for line in known if line.startswith(SHOWN))}")
            elif what.startswith("+"):
                lines.append(f"{', '.join([*events, what])} → {self.looked(float(what), shown)}")
                events = []
            else:
                events.append(event.strip())
                getattr(self, what.replace("-", "_"))(*given)
        return lines

    def looked(self, seconds: float, shown: stored.Once) -> str:
        asked, failed = self.asked, ""
        try:
            self.turn(seconds)
        except OSError as error:
            failed = f"fails: {error}"
        written, self.said = [*self.api.taken(shown), *self.said], []
        more = [failed, "generates" * (self.asked > asked), "unsaid" * self.watch.unsaid]
        return "; ".join(filter(None, [*written, *more])).replace("1970-01-01T", "") or "nothing new"

    def start_again(self, **changes: Any) -> None:
        self.watch = sidecar.Watch(replace(self.watch.gate, **changes), NcclFiles(self.logs), self.api)  # type: ignore[arg-type]
        self.watch._since = self.now

    def two_rails(self) -> None:
        self.start_again(rails=(*self.watch.gate.rails, evidence.Rail("mlx1", "absent0", "10.101.0.1", 9000)))

    def append(self, what: str) -> None:
        with self.file.open("a") as stream:
            stream.write(APPENDED[what])

    def environment(self, variable: str) -> None:
        (self.logs / "environment.json").write_text(json.dumps(dict([variable.split("=", 1)])))

    def clock_is(self, at: str) -> None:
        self.clock = float(at) - self.now

    def server_started(self) -> None:
        self.api.started["g-0-0"] = STARTED

    def becomes(self, kind: str) -> None:
        """Replace the file of NCCL by something else, most with the same text."""
        aside = self.file.rename(self.logs.parent / "aside")
        makes: dict[str, Callable[[], object]] = {
            "link": lambda: self.file.symlink_to(aside),
            "pipe": lambda: os.mkfifo(self.file),
            "directory": self.file.mkdir,
            # NCCL_DEBUG_FILE ends with %h.%p: host name and process number.
            "other-name": lambda: shutil.copy(aside, f"{self.file}.copy"),
            "earlier-start": lambda: (self.start("2"), self.file.parent.mkdir(), shutil.copy(aside, self.file)),
            "beside-the-starts": lambda: shutil.copy(aside, self.logs / self.file.name),
        }
        makes[kind]()

    def empty(self) -> None:
        os.truncate(self.file, 0)

    def forge(self, when: str) -> None:
        forged = self.file.with_name("g-0-0.41")
        forged.write_text("".join(f"g-0-0:41:41 [0] NCCL INFO {line.format(net='IB')}\n" for line in LINES))
        os.utime(forged, (int(when), int(when)))

    def rotate(self) -> None:
        """Give the file another text of the same size, as after a rotation by copying."""
        self.file.write_text(self.file.read_text().replace("NET/IB/0", "NET/IX/0"))
        os.utime(self.file, (4102444800, 4102444800))

    def overwrite(self) -> None:
        text = self.file.read_text()
        with self.file.open("r+") as stream:
            stream.write(text.replace("Socket", "IB").ljust(len(text)))

    def zeros(self) -> None:
        self.start("1")
        self.file.touch()
        os.truncate(self.file, 64 << 20)

    def others(self, proven: str) -> None:
        self.api.proven = proven

    def refuse(self, call: str, code: str) -> None:
        def refuse(*_words: Any) -> None:
            raise PermissionError(13, "denied", "1") if call == "look" else refused(int(code))

        self.patch.setattr(self.watch.files if call == "look" else self.api, call, refuse)

    def accept(self, call: str) -> None:
        self.patch.delattr(self.watch.files if call == "look" else self.api, call)

    def remove(self, name: str) -> None:
        (self.port / name).unlink()

    def tokens_flow(self) -> None:
        self.patch.setattr(gate, "tokens", lambda _port: 4 * self.now)

    def slow_judgements(self) -> None:
        seconds = iter(range(1000))
        self.patch.setattr(sidecar.time, "monotonic", lambda: float(next(seconds)))

    def no_counters(self) -> None:
        self.patch.setattr(evidence, "SCRIPT", "exit 3")

    def publish(self) -> None:
        self.watch.publish(0)


# Each course begins with a new rank: events, and looks after some seconds.
COURSES = {
    "a head is proven after a generation, once": ["+3; nccl 1 IB 4; +3; nccl 1; +3; +3; metrics"],
    "a hidden transport": [
        "nccl 1 IB 1; environment NCCL_DEBUG_SUBSYS=^INIT; +3; nccl 2; environment NCCL_HOSTID=x; +3"
    ],
    "a proof is not older than its server": ["server-started; clock-is 1795345200; +3; nccl 1; +3"],
    "the metrics name the cause while a server fails at every start": [
        "nccl 1 Socket; append causes; +3; metrics; nccl 2 IB 0; +3; metrics; nccl 2; +3; nccl 3 IB 0; +3; metrics"
    ],
    "files that cannot be read revoke the proof": ["nccl 1; +3; refuse look 13; +3; +20; accept look; +3"],
    "only a start makes new evidence": [
        "nccl 1; +3; empty; +3; +20; becomes link; +3; nccl 1; +3; nccl 2; +3",
        "nccl 1; +3; nccl 1 IB 2; +3; +20",
    ],
    "a new communicator on TCP revokes the proof": ["nccl 1; +3; append tcp; +3"],
    "a start discards the proof of the start before": [
        "nccl 1; +3; +60; metrics; start 2; +60; nccl 2; +60; nccl 3; +3"
    ],
    "what the API may have lost is written again": [
        "nccl 1; +3; clock-is -80000; +60; +60; +60; +60; +59; +60; metrics; +60"
    ],
    "another rank, or a GID": [
        "nccl 1; +3; others False; +3; others True; +3; remove gids/3; +20; write gids/3 ADDRESS; +20"
    ],
    "a head that has just started says what another rank lacks": ["publish; nccl 1; others False; +3"],
    "a pulled cable, and the generation after it": [
        "write state 4:ACTIVE; nccl 1; +3; write state 1:DOWN; +3; write state 4:ACTIVE; +3; "
        "write counters/port_xmit_data 2500; +3"
    ],
    "an interface without carrier": ["two-rails; nccl 1; +3; metrics"],
    "a head that never heard of the other ranks": ["refuse pod 500; nccl 1; +3; metrics; start 2; +3; nccl 2; +3"],
    "long files are judged rarely, a start at once": [
        "slow-judgements; nccl 1 IB 4; +3; nccl 1; +19.5; +0.5; nccl 2 Socket; +3"
    ],
    "GIDs are read every 15 seconds": ["no-counters; nccl 1; +3; remove gids/3; +14.5; +0.5"],
    "a forged file of another process takes no failure away": ["nccl 1 Socket; +3; forge 10; +3; forge 4102444800; +3"],
    "TCP with a forged file is found by the counters": ["tokens-flow; nccl 1; +25; +25; +25"],
    "what is no file of this start proves nothing": [
        f"nccl 1; becomes {kind}; +3"
        for kind in ("link", "pipe", "directory", "earlier-start", "beside-the-starts", "other-name")
    ],
    "a file of the same size with another text": ["nccl 1; +3; rotate; +3; +20"],
    "a file that is overwritten in place": [
        f"nccl 1 Socket; append {size}; +3; append more; +3; overwrite; +20; +20; nccl 2; +3"
        for size in ("trees", "many-trees")
    ],
    "a file of zeros": ["zeros; +3"],
    "what the API refuses is sent again": [
        f"nccl 1; +3; nccl 1 Socket; refuse {call} 503; +3; +3; accept {call}; +3"
        for call in ("set_condition", "add_event")
    ],
    "a token without rights can't prove the group": [
        f"nccl 1; +3; refuse pod {code}; +3" for code in (401, 403, 404, 410, 500)
    ],
    "a sidecar that starts alone proves again": ["nccl 1; +3; start-again; +3; nccl 1 Socket; start-again; +3"],
}


def test_what_the_sidecar_judges_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[str]] = {}
    shown = stored.Once()
    for title, texts in COURSES.items():
        for number, text in enumerate(texts):
            with monkeypatch.context() as patch:
                lines = Played(tmp_path / f"{len(found)}-{number}", patch).play(text, shown)
            found.setdefault(title, []).extend([f"- {lines[0]}", *(f"  {line}" for line in lines[1:])])
    stored.compare("gate_sidecars", found)


def test_a_link_that_goes_up_and_down_all_the_time_causes_few_events(rank: Rank) -> None:
    rank.nccl("1")
    for turn in range(50):
        rank.write("state", "1: DOWN" if turn % 2 else "4: ACTIVE")
        rank.write("counters/port_xmit_data", str(1000 * turn))
        assert rank.step() == ("LinkDown" if turn % 2 else "Proven")
    assert (len(rank.api.events), len(rank.api.conditions)) == (10, 50)
    rank.write("state", "4: ACTIVE")
    rank.write("counters/port_xmit_data", "50000")
    # The first event was at 3 s, so at 603 s there is room for another one.
    rank.step(453)
    assert len(rank.api.events) == 11


def test_what_is_sent_to_the_api_is_as_stored(tmp_path: Path, server: Server) -> None:
    pods = PodApi(tmp_path, "s", "g-0-0", "uid")
    condition = Condition(False, "WrongTransport", "x" * 9000)
    pods.pod("g-1-0")
    pods.set_condition(condition, LATER)
    pods.add_event(condition)
    shown = [line.replace("x" * 1000, "<1000 x>") for line in server.asked]
    stored.compare("gate_requests", {"a rank": shown})


def test_a_generation_is_not_started_while_one_runs_or_a_moment_after(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    ended = False

    class Process:
        def __init__(self, command: list[str], **_options: Any) -> None:
            started.append((now, command[1:]))

        def poll(self) -> int | None:
            return 1 if ended else None

    monkeypatch.setattr(gate.subprocess, "Popen", Process)
    prober = gate.Prober(9)
    for now in (0, 3, 12, 15, 24.5, 25):
        ended = now >= 15
        prober.run(now)
    command = ["/opt/gb10/generate_probe.py", "--port", "9", "--measure", "64", "--timeout", "20"]
    assert started == [(now, command) for now in (0, 15, 25)]


LINE = "sglang:generation_tokens_total"


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (f'{LINE}{{a="b"}} 5.0\n{LINE}{{a="c"}} 7\nother 9\n', 12.0),
        (f"{LINE} 0\n", 0.0),
        ("other 9\n", None),
        *((f"{LINE} {value}\n", None) for value in ("NaN", "+Inf", "many", "")),
        *((error, None) for error in (OSError("refused"), IncompleteRead(b""))),
    ],
)
def test_the_tokens_of_all_lines_are_added(answer: Any, tokens: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_words: Any, **_more: Any) -> io.BytesIO:
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer.encode())

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", ask)
    assert gate.tokens(9) == tokens


@pytest.mark.parametrize(("number", "probes", "questions"), [(0, 1, ["g-1-0", "port 9"]), (1, 0, [])])
def test_only_the_head_asks_the_other_ranks_and_its_server(
    number: int, probes: int, questions: list[str], rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(rank.api, "pod", lambda name: (asked.append(name), {"metadata": {}})[1])
    gate_of_rank = replace(rank.watch.gate, rank=number)
    rank.watch = sidecar.Watch(gate_of_rank, NcclFiles(rank.logs), rank.api)  # type: ignore[arg-type]
    monkeypatch.setattr(gate, "tokens", lambda port: asked.append(f"port {port}"))
    rank.nccl("1", lines=4)
    assert rank.step() == "NotProven"
    assert (rank.asked, asked) == (probes, questions)


def test_two_rails_are_read_and_gids_of_another_kind_or_device_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address(number: int) -> str:
        return f"{ADDRESS[:-4]}{number:04x}"

    gids = {
        "mlx0": [("IB/RoCE v1", address(1)), ("RoCE v2", address(1))],
        "mlx1": [("RoCE v2", "fe80:" * 7 + "0001"), ("RoCE v2", address(1)), ("IB/RoCE v1", address(2))],
        "mlx2": [("RoCE v2", address(4)), ("RoCE v2", address(3))],
    }
    for device, listed in gids.items():
        port = tmp_path / "class/infiniband" / device / "ports/1"
        for place in ("gids", "gid_attrs/types"):
            (port / place).mkdir(parents=True)
        (port / "state").write_text("1: DOWN\n" if device == "mlx2" else "4: ACTIVE\n")
        for index, (kind, gid) in enumerate(listed):
            (port / "gids" / str(index)).write_text(gid)
            (port / "gid_attrs/types" / str(index)).write_text(kind)
    planned = [evidence.Rail(f"mlx{index}", f"net{index}", f"10.100.0.{index + 1}", 9000) for index in range(3)]
    values = {"carrier": {"net0": 1, "net1": 0, "net2": 1}, "mtu": {"net0": 9000, "net2": 1500}, "speed": {"net0": 5}}
    monkeypatch.setattr(evidence, "read_int", lambda path: values[path.name].get(path.parent.name))
    found = evidence.gids_and_mtus(planned, str(tmp_path))
    assert found == ({"10.100.0.1", "10.100.0.3"}, {"net0": 9000, "net2": 1500})
    carrier, state = "net1 has no carrier", "mlx2 has port state DOWN"
    assert evidence.down(planned, str(tmp_path), True) == (carrier, state)
    assert evidence.down(planned, str(tmp_path), False) == (carrier,)
    counted = {"mlx0": {"xmit_bytes": 5}, "mlx1": {"rcv_bytes": 9}, "mlx2": {"xmit_bytes": 7}}
    assert evidence.sent(planned, counted) == 12
    assert evidence.sent(planned, {"mlx1": {"rcv_bytes": 9}}) is None
    monkeypatch.setattr(evidence, "read_link", lambda *_words: {"carrier_changes": 3, "speed": 10000})
    assert [evidence.link(f"net{index}")["speed"] for index in range(2)] == [10000, None]


FAULTS: dict[str, Exception | None] = {
    "slow": None,
    "hang": TimeoutError("timed out"),
    "reset": ConnectionResetError("reset by peer"),
    "error": refused(500),
    "half": IncompleteRead(b"{"),
    "nonsense": ValueError("no JSON"),
}


@pytest.mark.parametrize("ranks", [2, 64])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_group_that_serves_leaves_the_service_only_on_evidence(
    fault: str, ranks: int, rank: Rank, server: Server, tmp_path: Path
) -> None:
    """What needs no answer of the API server does not wait for one; only what it shows counts."""
    broken, ended, callers = False, threading.Event(), set[int]()
    written, failed = list[str](), list[Exception]()

    def answer(path: str) -> bytes:
        callers.add(threading.get_ident())
        if broken:
            ended.wait(0.05 if fault == "slow" else 0.1 if fault == "hang" else 0)
            if error := FAULTS[fault]:
                raise error
        if path.endswith("/status"):
            body: Any = server.requests[-1].data
            written.append(json.loads(body)["status"]["conditions"][0]["reason"])
        return json.dumps(rank.api.pod("g-1-0")).encode()

    def judge(now: float) -> tuple[bool, bool]:
        """Judge without a question; return whether the rank is proven, and whether the API server knows it."""
        callers.discard(threading.get_ident())
        watch.step(now)
        assert threading.get_ident() not in callers
        return 'gb10_transport_proven{instance="g",rank="0"} 1' in watch.text, not watch.unsaid

    def ask() -> None:
        try:
            watch.ask(0)
        except (OSError, HTTPException, ValueError) as error:
            failed.append(error)

    server.answer = answer
    rank.nccl("1")
    pods = tuple(f"g-{number}-0" for number in range(ranks))
    api = PodApi(tmp_path, "s", "g-0-0", "u")
    watch = sidecar.Watch(replace(rank.watch.gate, pods=pods), NcclFiles(rank.logs), api)
    watch.ask(0)
    assert judge(0) == (True, True)
    watch.publish(0)
    assert (written, judge(0)) == (["Proven"], (True, True))
    # Only a slow API server shows during its fault that the other ranks have lost their proof.
    broken, rank.api.proven = True, "True" if fault == "slow" else "False"
    server.asked.clear()
    asking = threading.Thread(target=ask)
    asking.start()
    assert [judge(20.0 * look) for look in range(1, 4)] == [(True, True)] * 3
    asking.join(30)
    assert not asking.is_alive()
    # Every rank was asked, although one of them failed.
    assert sorted(server.asked) == sorted(f"GET pods/{name}" for name in pods[1:])
    assert failed == ([FAULTS[fault]] if FAULTS[fault] else [])
    assert set(watch._others.values()) == {""}
    # Once the API server says it, the proof that the others have lost counts, and so does what this rank sees.
    broken, rank.api.proven = fault == "slow", "False"
    ask()
    assert (judge(80.0), set(watch._others.values())) == ((False, False), {"TCP"})
    rank.nccl("1", net="Socket")
    assert judge(100.0) == (False, False)
    assert watch._wanted and watch._wanted[1].reason == "WrongTransport"
