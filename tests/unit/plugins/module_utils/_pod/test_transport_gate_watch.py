# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar says about the load, memory, answers, rails and GPU of its rank."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import Limits
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import ANSWERS, HEALTH, LOAD, MEMORY
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from gate_rank import FakeApi

LABELS = {"instance": "g", "rank": "1"}


class Watched:
    """A part of the sidecar and its API; each look of a course has a second, words, and values by name."""

    def __init__(self, kind: str) -> None:
        self.api: Any = FakeApi(kind)
        self.part: Any = None

    def prepare(self, now: float, words: list[str], values: dict[str, str]) -> None:
        raise NotImplementedError

    def state(self) -> str:
        raise NotImplementedError

    def look(self, text: str, shown: stored.Once, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        now, *rest = text.split()
        words = [word for word in rest if "=" not in word]
        self.prepare(float(now), words, dict(word.split("=") for word in rest if "=" in word))
        self.api.away = "away" in words
        monkeypatch.setattr(watch, "timestamp", lambda: now)
        monkeypatch.setattr(watch.time, "monotonic", lambda: float(now))
        failed = ""
        try:
            self.part.step(float(now))
        except OSError as error:
            failed = str(error)
        lines = [*self.api.taken(shown), *([failed] if failed else [])]
        return [f"{text.strip()} → {self.state()}", *(f"    {line}" for line in lines)]


def traced(
    made: Callable[[], Watched], courses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    """Return a trace of each course."""
    shown, found = stored.Once(), {}
    for title, course in courses.items():
        of = made()
        found[title] = [line for text in course.split(";") for line in of.look(text, shown, monkeypatch)]
        found[title] += of.part.text.splitlines() if "metrics" in title else []
    return found


PHASES = {"start": 12.5, "weights": 90.0, "draft": 92.25, "graphs": 101.5}
LOADS = {
    "a load is told phase by phase, its metrics": "0 gone; 1 loads 1; 4 loads 1; 5 loads 2; 9 loads 4; 12 ready 4",
    "a long phase is told again after a minute": "0 loads 2; 59 loads 2; 60 loads 2 swapped_gib=0.5",
    "a load that was ended stays known until one ends well": (
        "5 ended 2 drops=7; 8 ended 2 drops=7; 9 gone; 10 loads 1; 20 ready 4; 30 loads 1; 31 gone"
    ),
    "a condition that grows is no second event": "0 ended 2 drops=1; 70 ended 2 drops=2",
    "what the API server did not get is written again": "1 ended 2 away; 2 ended 2 away; 3 ended 2",
}


class LoadWatched(Watched):
    def __init__(self, base: Path) -> None:
        super().__init__(LOAD)
        self.file, self.part = base / "load.json", watch.Load(base, self.api, LABELS)

    def prepare(self, now: float, words: list[str], values: dict[str, str]) -> None:
        self.file.unlink(missing_ok=True)
        if words == ["gone"]:
            return
        names = list(PHASES)[: int(words[1])]
        taken = {name: {"seconds": 3, "taken_gib": PHASES[name], "cached_gib": 1} for name in names}
        told = {"state": words[0], "phase": names[-1], "seconds": now, "total_gib": 119.7, "before_gib": 9.8}
        self.file.write_text(json.dumps(told | {"phases": taken, "drops": 0, "said": "the load was ended"} | values))

    def state(self) -> str:
        return f"phase {self.part.phase or '-'}, ended {self.part.text.rpartition(' ')[2].strip() or '-'}"


def test_what_is_said_about_a_load_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.compare("gate_loads", traced(lambda: LoadWatched(tmp_path), LOADS, monkeypatch))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"state": "x"}', '{"state": "ready", "phases": {}}', "link", "pipe"]
)
def test_a_file_that_the_watch_never_writes_says_nothing(text: str, tmp_path: Path) -> None:
    """Nor can the server make the sidecar read another file, or wait."""
    watched = LoadWatched(tmp_path)
    if text == "pipe":
        os.mkfifo(watched.file)
    elif text == "link":
        watched.file.symlink_to("/proc/self/status")
    else:
        watched.file.write_text(text)
    with pytest.raises(OSError if text in ("link", "pipe") else (LookupError, TypeError, ValueError)):
        watched.part.step(1)
    assert (watched.api.conditions, watched.part.phase) == ([], "")


# Of a node of 100 GiB: what is available, "full" the share of time in which all wait for memory.
MEMORIES = {
    "a load may use the swap that the plan wants": (
        "0 0.5 want=48 phase=weights full=50 swap=40; 5 0.5 phase=weights full=50 swap=40; "
        "15 0.5 phase=weights full=50 swap=40"
    ),
    "and no more than there is": "0 0.5 want=48 phase=weights full=50 swap=3; 5 0.5 phase=weights full=50 swap=3; "
    "15 0.5 phase=weights full=50 swap=3",
    "a server that has loaded is stopped, however much swap there is": (
        "0 0.5 want=48 full=50 swap=40; 5 0.5 full=50 swap=40; 15 0.5 full=50 swap=40"
    ),
    "every change is a condition": "0 50; 3 50; 6 3; 9 3; 16 3; 19 3; 22 50",
    "the phase of a load is named": "0 50 phase=graphs; 3 3 phase=graphs; 13 3 phase=graphs",
    "a warning that comes and goes is not an event each time": (
        "0 50; 2 4.5; 4 50; 6 4.5; 61.5 50; 61.6 4.5; 61.8 50; 62 4.5; 200 50"
    ),
    "a node that has little memory from the start is an event": "0 4.5; 1 3; 11 3; 12 50",
    "what the API server did not get is written again": "0 50; 1 3 away; 11 3 away; 12 3",
    "pressure stops, its metrics": "0 4.5 full=90; 10 4.5 full=90",
}


class NodeWatched(Watched):
    def __init__(self, proc: Path) -> None:
        super().__init__(MEMORY)
        self.proc, self.phase = proc, ""
        (proc / "pressure").mkdir(exist_ok=True)

    def prepare(self, now: float, words: list[str], values: dict[str, str]) -> None:
        if not self.part:
            limits = Limits(warn=5, stop=4, full=20, hold=10, swap=float(values.get("want", 0)))
            self.part = watch.NodeMemory(limits, self.api, LABELS, self.proc, lambda: self.phase)
        self.phase, free = values.get("phase", ""), float(words[0])
        sizes = {"MemTotal": 100.0, "MemFree": free, "MemAvailable": free, "SwapFree": float(values.get("swap", 0))}
        (self.proc / "meminfo").write_text("".join(f"{name}: {int(gib * 2**20)} kB\n" for name, gib in sizes.items()))
        full = float(values.get("full", 0))
        (self.proc / "pressure/memory").write_text(f"full avg10={full:.2f} avg60=0.00 avg300=0.00 total=0\n")

    def state(self) -> str:
        return f"step {self.part.text.splitlines()[2].rpartition(' ')[2]}"


def test_what_is_said_about_the_memory_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.compare("gate_memory", traced(lambda: NodeWatched(tmp_path), MEMORIES, monkeypatch))


NOISES = ["!!!!!!!!!!!!!!!!", "! ! ! !", "0000000000000000", "the the the the the the", "aaaaaaaaaaaaaaaa"]
NOISES += ["foo, foo, foo, foo, foo, foo, ", "\ufffd\ufffd\ufffd\ufffd a", "\x00\x01\x02\x03abcdefg"]
NOISES += ["\x00\x01\x02abcdefg", "????\n????"]
FINE = ["", "23", "**23**", "The sum of 11 and 12 is 24.", "Okay, let me think. 11 plus 12 ...", "…", "答案是二十三"]
UNFINISHED = [
    "\U0001f600",
    "<think>\nThe user wants",
    "I can't help with that",
    "no no no",
    "$11 + 12 = ",
    "1.........",
]
UNFINISHED += ["ab\ufffd\ufffd", "\ufffd\ufffd\ufffdabcdefghijkl"]


def test_only_noise_is_noise() -> None:
    assert list(filter(watch.garbled, [*NOISES, *FINE, *UNFINISHED])) == NOISES


SAID = {"noise": "!" * 16, "wrong": "99999", "words": "I think", "refused": "error:[Errno 111] Connection refused"}
SAID |= {"late": "error:not complete after 60 s", "busy": "error:HTTP 503: busy", "key": "error:HTTP 401: key"}
ASKED = {
    "right answers": "4000 right; 8000 right; 12000 right",
    "a server that starts": "1 refused; 20 refused; 21 right",
    "no answer is no finding": "4000 right; 8000 late; 12000 busy",
    "a wrong answer is no finding": "4000 wrong; 8000 words",
    "two answers of noise in a row, its metrics": "4000 right; 8000 noise; 12000 late; 16000 noise",
    "not in a row": "4000 right; 8000 noise; 12000 right; 16000 noise",
    "noise ends": "4000 right; 8000 noise; 12000 noise; 16000 late; 20000 right",
    "noise takes the head out of the Service": "4000 enforce noise; 8000 noise; 12000 right",
    "a question is asked rarely": "1 right; 300 right; 301 late; 600 right; 601 right",
    "soon after noise": "1 noise; 20 right; 21 right",
    "rarely if the server refuses": "1 key; 3600 right; 3601 right",
    # The server owns the file: it may be a link to nothing, and it may be touched all the time.
    "an answer of a client that repeats one character": (
        "1 right; 10 right noted; 20 right; 21 right; 22 right; 40 right noted; 41 right noted; 42 right noted; "
        "61 right forgotten"
    ),
}


class ServerWatched(Watched):
    """A server that answers the next question as the look says."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(ANSWERS)
        self.base, self.asked, self.bodies = base, False, list[dict[str, Any]]()
        monkeypatch.setattr(watch, "ask", self.answer)

    def answer(self, _port: int, body: dict[str, Any], _limit: float, _show: Any) -> dict[str, Any]:
        self.asked = True
        self.bodies.append(body)
        sum_of = sum(map(int, re.findall(r"\d+", body["messages"][0]["content"])))
        text = SAID.get(self.next, str(sum_of))
        error = text.removeprefix("error:") if text.startswith("error:") else ""
        return {"text": "" if error else text, "thought": "", "error": error}

    def prepare(self, now: float, words: list[str], values: dict[str, str]) -> None:
        if not self.part:
            self.part = watch.Answers(self.base, 9, self.api, LABELS, "enforce" in words)
        suspect = self.base / watch.SUSPECT
        if "noted" in words:
            suspect.unlink(missing_ok=True)
            suspect.symlink_to("nothing")
            os.utime(suspect, ns=(int(now), int(now)), follow_symlinks=False)
        if "forgotten" in words:
            suspect.unlink()
        self.asked, self.next = False, next(word for word in words if word in SAID or word == "right")

    def state(self) -> str:
        asked = re.findall(r"\d+", self.bodies[-1]["messages"][0]["content"]) if self.asked else ["nothing"]
        return f"asks {' + '.join(asked)}{', closed' * self.part.closes}"


def test_what_is_said_about_answers_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ServerWatched] = []

    def server() -> Watched:
        made.append(ServerWatched(tmp_path, monkeypatch))
        return made[-1]

    found = traced(server, ASKED, monkeypatch)
    stored.compare("gate_answers", found | {"a question": [json.dumps(made[0].bodies[0])]})


RAILS = tuple(Rail(f"mlx{n}", f"net{n + 1}", f"10.10{n}.0.1", 9000) for n in range(2))
BEGAN = 1.8e9
TOTALS = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}
SECONDS = ("gpu_hot", "gpu_brake", "gpu_slow")
ZONE = {"type": "acpitz", "trip_point_0_type": "passive", "trip_point_0_temp": "95000"}
ZONE |= {"trip_point_1_type": "active", "trip_point_1_temp": "40000"}


class Rails:
    """A node with two rails; VFs whose physical functions count PCIe errors, and one thermal zone."""

    def __init__(self, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sysfs, self.api, self.changes, self.now = sysfs, FakeApi(HEALTH), {"net1": 1, "net2": 1}, 0.0
        self.gids, self.mtus = frozenset(rail.address for rail in RAILS), {"net1": 9000, "net2": 9000}
        monkeypatch.setattr(evidence, "link", lambda name: {"carrier_changes": self.changes[name], "speed": None})
        monkeypatch.setattr(evidence, "gids_and_mtus", lambda *_: (self.gids, self.mtus))
        monkeypatch.setattr(watch.time, "time", lambda: BEGAN + self.now)
        monkeypatch.setattr(watch, "timestamp", lambda *at: f"{(*at, BEGAN + self.now)[0] - BEGAN:.0f}")
        for number in range(2):
            self.errors(number, 5)
            for kind in TOTALS:
                self.aer(number, kind, 7)
        for name, text in ZONE.items():
            self.write(f"class/thermal/thermal_zone0/{name}", text)
        self.heat(60)
        self.write("state/x", "")
        self.start()

    def start(self) -> None:
        """Start the sidecar, again if it ran."""
        base, labels = self.sysfs / "nccl", {"instance": "g", "rank": "2"}
        base.mkdir(exist_ok=True)
        self.watch = watch.Health(RAILS, str(self.sysfs), self.api, labels, base, self.sysfs / "state")  # type: ignore[arg-type]

    def gpu(self, xid: dict[str, int] | None = None, tells: Any = True, **seconds: int) -> None:
        told = {"xid": xid or {}, "seconds": dict.fromkeys(SECONDS, 0) | seconds, "tells_faults": tells}
        (self.sysfs / "nccl/gpu.json").write_text(json.dumps(told))

    def write(self, name: str, text: str) -> None:
        (self.sysfs / name).parent.mkdir(parents=True, exist_ok=True)
        (self.sysfs / name).write_text(f"{text}\n")

    def errors(self, rail: int, value: int, name: str = "out_of_sequence") -> None:
        self.write(f"class/infiniband/mlx{rail}/ports/1/hw_counters/{name}", str(value))

    def aer(self, rail: int, kind: str, value: int) -> None:
        text = f"RxErr {value}\nBadTLP 0\nTOTAL_ERR_{TOTALS[kind]} {value}"
        self.write(f"class/infiniband/mlx{rail}/device/physfn/aer_dev_{kind}", text)

    def heat(self, degrees: int) -> None:
        self.write("class/thermal/thermal_zone0/temp", str(1000 * degrees))


DAY = 86400
# What happens in turn, with the second of the next reading; the first reading is at 0.
Course = list[tuple[str, Callable[[Rails], object], float]]
FAULTS: dict[str, Callable[[Rails], object]] = {
    "link 2 changes 8 times": lambda node: node.changes.update(net2=9),
    "link 2 changes once": lambda node: node.changes.update(net2=2),
    "fatal PCIe error": lambda node: node.aer(0, "fatal", 8),
    "uncorrectable PCIe errors": lambda node: node.aer(1, "nonfatal", 9),
    "few corrected PCIe errors": lambda node: node.aer(1, "correctable", 1006),
    "corrected PCIe errors": lambda node: node.aer(1, "correctable", 1007),
    "few packets out of sequence": lambda node: node.errors(0, 1004),
    "packets out of sequence": lambda node: node.errors(0, 1005),
    "congestion is no error": lambda node: node.errors(0, 9999, "np_cnp_sent"),
    "the driver was loaded again": lambda node: node.aer(0, "fatal", 2),
    "hot": lambda node: node.heat(95),
    "warm": lambda node: node.heat(94),
    "no GIDs": lambda node: setattr(node, "gids", frozenset()),
    "an MTU fell": lambda node: node.mtus.update(net2=1500),
    "an MTU that is unknown": lambda node: node.mtus.pop("net2"),
    "Xid": lambda node: node.gpu({"79": 1, "31": 2}),
    "a GPU that was slow for a moment": lambda node: node.gpu(**dict.fromkeys(SECONDS, 599)),
    "a GPU that was hot": lambda node: node.gpu(gpu_hot=600),
    "a GPU that was slow": lambda node: node.gpu(gpu_brake=600, gpu_slow=601),
    "a driver that tells no faults": lambda node: node.gpu(tells=False),
    "a witness that says nonsense about the driver": lambda node: node.gpu(tells="no"),
}
HEALTH_COURSES: dict[str, Course] = {
    "a day has its errors, but ten days may have more": [
        ("errors", lambda node: node.errors(0, 5005), 10 * DAY),
        ("link 2", lambda node: node.changes.update(net2=2), 10 * DAY + 30),
        ("fatal", lambda node: node.aer(0, "fatal", 8), 10 * DAY + 60),
        ("nonfatal", lambda node: node.aer(0, "nonfatal", 8), 10 * DAY + 700),
    ],
    "the devices are read every 30 seconds, and growing counts do not fill etcd": [
        ("a link", lambda node: node.changes.update(net1=3), 29.9),
        ("the same", lambda _node: None, 30),
        *((f"link {n}", lambda node, n=n: node.changes.update(net1=n), 25 + 5 * n) for n in (5, 6, 121)),
        ("hot", lambda node: node.heat(95), 660),
        ("cool", lambda node: node.heat(60), 690),
        ("hot again, its metrics", lambda node: node.heat(95), 1300),
    ],
    "a sidecar that starts again goes on counting since the first start": [
        ("link and Xid", lambda node: (node.changes.update(net2=5), node.gpu({"31": 1})), 30),
        ("start", lambda node: (node.changes.update(net2=7), node.start()), 60),
        # The server started again too, and its witness counts from 0.
        ("no Xid", lambda node: node.gpu({"31": 0}), 90),
        ("Xid", lambda node: (node.gpu({"31": 1}), node.errors(0, 1505)), 2 * DAY),
    ],
}


def test_what_is_counted_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    courses = {title: [(title, fault, 1000)] for title, fault in FAULTS.items()} | HEALTH_COURSES
    found: dict[str, list[str]] = {}
    for number, (title, course) in enumerate(courses.items()):
        node, shown = Rails(tmp_path / str(number), monkeypatch), stored.Once()
        lines = found.setdefault("one fault" if title in FAULTS else title, [])
        for name, happens, at in [("start", lambda _node: None, 0), *course]:
            happens(node)
            node.now = at
            node.watch.step(float(at))
            said = "; ".join(node.api.taken(shown)) or "nothing"
            lines += [f"{at} {name} → {said}"] * (title not in FAULTS or at > 0)
            lines += node.watch.text.splitlines() if "metrics" in name else []
    stored.compare("gate_health", found)


def test_the_days_before_the_sidecar_started_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Rails(tmp_path, monkeypatch)
    for node.now, errors in ((9.0 * DAY, 5), (10.0 * DAY, 1005)):
        node.errors(0, errors)
        node.watch.step(node.now)
    assert node.api.conditions[-1].message.endswith("rail 0 (net1) counted 1000 errors and retransmissions")


def test_a_host_that_tells_nothing_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Rails(tmp_path / "x", monkeypatch)
    node.watch._sysfs = str(tmp_path / "none")
    node.watch.step(0.0)
    assert node.api.conditions[-1].reason == "Healthy"


@pytest.mark.parametrize("kept", ["", "[]", "{}", '{"began": 1, "hot": 0, "before": 1, "total": []}', "\udcff"])
def test_what_was_kept_and_cannot_be_read_is_forgotten(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Rails(tmp_path, monkeypatch)
    (tmp_path / "state/health.json").write_text(kept, errors="surrogateescape")
    node.start()
    node.now = 100.0
    node.watch.step(100.0)
    assert node.api.conditions[-1].message == "since 100 nothing was counted"
    assert json.loads((tmp_path / "state/health.json").read_text())["began"] == BEGAN + 100


def test_a_file_of_the_server_that_is_nonsense_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, file = Rails(tmp_path, monkeypatch), tmp_path / "nccl/gpu.json"
    told = ["", "[" * 4000, "{}", '{"xid": []}', '{"xid": {"x": 1}, "seconds": {}}']
    told += [f'{{"xid": {{"31": {number}}}, "seconds": {{}}}}' for number in ("NaN", "Infinity")]
    told += [json.dumps({"xid": {"9" * 50: 1, "-1": 1}, "seconds": dict.fromkeys(SECONDS, -9)})]
    for turn, text in enumerate(told):
        file.write_text(text)
        node.watch.step(1000.0 * turn)
    file.unlink()
    file.symlink_to("/dev/zero")
    node.watch.step(9000.0)
    assert [one.message for one in node.api.conditions] == ["since 0 nothing was counted"]
    # Nor do invented codes fill the condition.
    file.unlink()
    for turn in range(1, 40):
        node.gpu({str(25 * turn + code): 1 for code in range(25)})
        node.watch.step(9000.0 + 700 * turn)
    said = node.api.conditions[-1].message
    assert 0 < said.count("Xid") < 200
    assert len(said) < 9000
