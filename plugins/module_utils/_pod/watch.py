# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch what can stop a rank that serves: its rails and node, the node's memory, its load and its answers."""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from .._fabric.physical_functions import read_int, read_text
from .._fabric.rdma import ERRORS
from .._host.memory_guard import History, Limits, Reading, Step, ladder, read
from .._kube.labels import ANSWERS, ANSWERS_OUT, HEALTH, LOAD, MEMORY, MEMORY_OUT, TRANSPORT
from . import evidence
from .api import InPodApi, Json, timestamp
from .chat import ask
from .evidence import of_gpus, opened
from .gate import Condition, Rail, metric

# The API calls that the sidecar's Role permits.

# A condition of rank 0 names every other rank with its cause.
_LONGEST_CONDITION = 8000


class PodApi(InPodApi):
    """Reads pods of the group, and writes the conditions and the events of one pod."""

    def __init__(self, account: Path, namespace: str, pod: str, uid: str) -> None:
        super().__init__(namespace, timeout=5, account=account)
        self._pod = pod
        self._object = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": namespace, "uid": uid}

    def pod(self, name: str) -> Json:
        """Return a pod of the group."""
        return self.call("GET", self.core(f"pods/{name}"))

    def set_condition(self, condition: Condition, since: str, kind: str = TRANSPORT) -> None:
        """Write a condition of this pod; ``since`` is its time of transition."""
        written = {
            "type": kind,
            "status": "True" if condition.proven else "False",
            "reason": condition.reason,
            "message": condition.message[:_LONGEST_CONDITION],
            "lastTransitionTime": since,
        }
        # This kind of patch replaces only the condition of this type.
        patch = "application/strategic-merge-patch+json"
        self.call("PATCH", self.core(f"pods/{self._pod}/status"), {"status": {"conditions": [written]}}, patch)

    def add_event(self, condition: Condition, prefix: str = "Transport") -> None:
        """Record an event of this pod."""
        reason = f"{prefix}{condition.reason}"
        self.record_event(self._object, reason, condition.message, not condition.proven, TRANSPORT)


# Count what went wrong with a rank's rails, GPU and node while its pod lives: what each moment for itself hides.
#
# The rails and the node are read from sysfs, which needs no right. Faults of the GPU (Xid) and its clock come from
# NVML, which only the server's container has: roles/sglang/files/witness.py counts them into a file.

# Seconds between two readings, and between two writings of a message whose counts grow.
_EVERY, _WRITE_EVERY = 30.0, 600.0
# The codes of the GPU's faults that are told.
_CODES = range(1000)
# Different events that are kept: the server chooses the codes.
_KINDS = 200
# What is not of a rail
_NODE = -1
# Of each rail or the GPU: how its events are told, and for frequent ones how many per day are worth it.
_EVENTS = {
    "gpu_hot": ("was slowed down by heat for {} s", 600),
    "gpu_brake": ("was slowed down by its power supply for {} s", 600),
    "gpu_slow": ("was busy below 1,000 MHz for {} s", 600),
    "link_lost": ("lost its link {} times", 0),
    "gid_lost": ("lost its RoCE address (GID) {} times", 0),
    "mtu_fell": ("had less than its MTU {} times", 0),
    "errors": ("counted {} errors and retransmissions", 1000),
    "aer_fatal": ("had {} fatal PCIe errors", 0),
    "aer_nonfatal": ("had {} uncorrectable PCIe errors", 0),
    "aer_correctable": ("had {} corrected PCIe errors", 1000),
}
_TRIPS = ("passive", "hot", "critical")
_Counts = dict[tuple[int, str], int]


def count(planned: tuple[Rail, ...], sysfs_root: str) -> _Counts:
    """Return the events of each rail, by its number, that its devices count; raise OSError or SubprocessError."""
    counted = evidence.counted(sysfs_root)["rdma"]
    found: _Counts = {}
    for number, rail in enumerate(planned):
        if (changes := evidence.link(rail.interface)["carrier_changes"]) is not None:
            # A link that is lost and comes back changes twice; the first change brought it up.
            found[number, "link_lost"] = changes // 2
        own = counted.get(rail.device, {})
        found[number, "errors"] = sum(own.get(name, 0) for name in ERRORS if name != "link_downed")
        device = Path(sysfs_root, "class/infiniband", rail.device, "device")
        for kind in ("fatal", "nonfatal", "correctable"):
            # A VF has no counts of its own; its port's physical function has them.
            texts = [read_text(place / f"aer_dev_{kind}") for place in (device / "physfn", device)]
            lines = [line.split() for text in texts if text for line in text.splitlines()]
            totals = [int(line[1]) for line in lines if line[0].startswith("TOTAL_") and line[1].isdecimal()]
            if totals:
                found[number, f"aer_{kind}"] = totals[0]
    return found


def lost(planned: tuple[Rail, ...], sysfs_root: str) -> set[tuple[int, str]]:
    """Return the rails that have no GID of their address or less than their MTU now; raise OSError."""
    gids, mtus = evidence.gids_and_mtus(planned, sysfs_root)
    numbered = list(enumerate(planned))
    found = {(number, "gid_lost") for number, rail in numbered if rail.address not in gids}
    return found | {(number, "mtu_fell") for number, rail in numbered if mtus.get(rail.interface, rail.mtu) < rail.mtu}


def of_gpu(base: Path) -> tuple[_Counts, bool]:
    """Return what the witness has counted since the server's start, and whether NVML refused to tell faults of the GPU.

    The server owns the file of the witness.
    """
    try:
        told = of_gpus(base)
        pairs = [(f"xid_{int(code)}", times) for code, times in told["xid"].items() if int(code) in _CODES]
        pairs += [(name, told["seconds"][name]) for name in ("gpu_hot", "gpu_brake", "gpu_slow")]
        counts = {(_NODE, name): min(max(0, int(times)), 1 << 31) for name, times in pairs}
        return counts, told.get("tells_faults") is False
    except (OSError, LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
        return {}, False


def hot(sysfs_root: str) -> Iterator[str]:
    """Yield the thermal zones of the node whose temperature reached a limit at which it slows down or stops."""
    for zone in sorted(Path(sysfs_root, "class/thermal").glob("thermal_zone*")):
        now = read_int(zone / "temp")
        kinds = [path for path in zone.glob("trip_point_*_type") if read_text(path) in _TRIPS]
        limits = [read_int(path.with_name(path.name.replace("_type", "_temp"))) for path in kinds]
        if now is not None and any(limit and 0 < limit <= now for limit in limits):
            yield f"{read_text(zone / 'type')} ({now / 1000:.0f} °C)"


class Health:
    """Publishes what was counted since the pod's first reading, also by an earlier start of this program.

    ``base`` is the directory that the server owns, ``state`` one that this container keeps for the life of the pod.
    """

    def __init__(
        self,
        planned: tuple[Rail, ...],
        sysfs_root: str,
        api: PodApi,
        labels: Mapping[str, str],
        base: Path,
        state: Path,
    ) -> None:
        self.text = ""
        self._rails, self._sysfs, self._api, self._labels = planned, sysfs_root, api, labels
        self._base, self._file = base, state / "health.json"
        self._before: _Counts = {}
        self._total: _Counts = {}
        self._began, self._hot, self._mute = 0.0, 0, False
        self._lost: set[tuple[int, str]] | None = None
        self._hot_before: set[str] = set()
        self._recall()
        self._read_after = self._write_after = 0.0
        self._published: Condition | None = None
        self._since = ""

    def step(self, now: float) -> None:
        """Read if it is time, and publish; raise OSError, SubprocessError, HTTPException or ValueError."""
        if now < self._read_after:
            return
        gpu, self._mute = of_gpu(self._base)
        counted = count(self._rails, self._sysfs) | gpu
        away, zones = lost(self._rails, self._sysfs), set(hot(self._sysfs))
        self._began = self._began or time.time()
        for key, value in counted.items():
            if key not in self._total and len(self._total) >= _KINDS:
                continue
            # What a rail counted before is not the subject; the witness counts from the server's start. A driver that
            # was loaded again counts from 0, and so does the witness of a server that started again.
            before = self._before.get(key, 0 if key[0] == _NODE else value)
            self._total[key] = self._total.get(key, 0) + (value - before if value >= before else value)
        for key in away - (away if self._lost is None else self._lost):
            self._total[key] = self._total.get(key, 0) + 1
        self._before, self._lost = self._before | counted, away
        self._hot += bool(zones) and not self._hot_before
        self._hot_before, self._read_after = zones, now + _EVERY
        self._keep()
        self.text = self._render()
        self._publish(self._condition(), now)

    def _recall(self) -> None:
        """Go on from what was kept, if there is anything."""
        try:
            kept: dict[str, Any] = json.loads(self._file.read_text(encoding="ascii"))
            counts = [{(int(n), str(e)): int(v) for n, e, v in kept[name]} for name in ("before", "total")]
            began, hot_times = float(kept["began"]), int(kept["hot"])
        except (OSError, LookupError, TypeError, ValueError):
            return
        (self._before, self._total), self._began, self._hot = counts, began, hot_times

    def _keep(self) -> None:
        """Write what was counted; raise OSError."""
        lists = {
            name: [[*key, n] for key, n in of.items()]
            for name, of in (("before", self._before), ("total", self._total))
        }
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(lists | {"began": self._began, "hot": self._hot}), encoding="ascii")
        new.replace(self._file)

    def _condition(self) -> Condition:
        days = max(1.0, (time.time() - self._began) / 86400)
        told = []
        for (number, event), times in sorted(self._total.items()):
            text, often = _EVENTS.get(event, (f"reported Xid {event.removeprefix('xid_')} {{}} times", 0))
            if times and times >= often * days:
                who = "the GPU" if number == _NODE else f"rail {number} ({self._rails[number].interface})"
                told.append(f"{who} {text.format(times)}")
        if self._hot:
            told.append(f"the node was {self._hot} times at a limit of its temperature")
        said = f"since {timestamp(self._began)} " + ("; ".join(told) if told else "nothing was counted")
        if self._mute:
            said += "; NVML tells no faults of the GPU (Xid), so only the node's kernel log has them"
        return Condition(not told, "Degraded" if told else "Healthy", said)

    def _publish(self, condition: Condition, now: float) -> None:
        before = self._published
        same = before is not None and before.reason == condition.reason
        if same and (before == condition or now < self._write_after):
            return
        since = self._since if same else timestamp()
        self._api.set_condition(condition, since, HEALTH)
        if not same and not condition.proven:
            self._api.add_event(condition, "Health")
        self._published, self._since, self._write_after = condition, since, now + _WRITE_EVERY

    def _render(self) -> str:
        counted = [
            ({"rail": "" if number == _NODE else number, "event": event}, times)
            for (number, event), times in sorted(self._total.items())
        ]
        return metric(
            "gb10_health_events_total",
            "counter",
            "Faults of a rail's devices, or without a rail of the GPU, while the pod lived.",
            self._labels,
            counted,
        ) + metric(
            "gb10_health_hot",
            "gauge",
            "1 while a part of the node is at a limit of its temperature.",
            self._labels,
            [({}, int(bool(self._hot_before)))],
        )


# Watch the memory of a rank's node, and say in the condition of its pod when the whole group has to stop.
#
# A pod sees the node's /proc/meminfo and /proc/pressure/memory. The supervisor stops the group, because only it may
# delete pods.

_LOOK = "Look for what else uses it: ps aux --sort=-rss and nvidia-smi on the node, or lower mem_fraction_static"
_REASONS: Mapping[Step, str] = {"none": "MemoryEnough", "warn": "MemoryLow", "stop_group": MEMORY_OUT}
_METRICS = (
    ("gb10_memory_step", "What the memory of the rank's node calls for: 0 nothing, 1 a warning, 2 to stop the group."),
    ("gb10_memory_available_bytes", "Memory of the rank's node that a new process could get."),
)
# A warning that comes and goes must not fill etcd with events.
_EVENT_EVERY = 60


class NodeMemory:
    """Publishes every change of the step that is due; ``phase`` tells in which phase of its load the server is."""

    def __init__(
        self,
        limits: Limits,
        api: PodApi,
        labels: Mapping[str, str],
        proc: Path = Path("/proc"),
        phase: Callable[[], str] = str,
    ) -> None:
        self.text, self.judged_at = "", time.monotonic()
        self._limits, self._api, self._labels, self._proc, self._phase = limits, api, labels, proc, phase
        self._history = History()
        self._published: Condition | None = None
        self._since = ""
        self._event_after = 0.0

    def step(self, now: float) -> Condition:
        """Look once, and publish what changed; raise OSError, HTTPException or ValueError."""
        seen = read(self._proc)
        # A server that has loaded and is swapped out stalls all ranks.
        limits = self._limits if self._phase() else replace(self._limits, swap=0.0)
        verdict = ladder(seen, limits, self._history, now)
        self.text, self.judged_at = self._render(seen, verdict.step), now
        condition = Condition(verdict.step == "none", _REASONS[verdict.step], self._say(verdict.step, verdict.reason))
        before = self._published
        if before is None or before.reason != condition.reason:
            self._publish(before, condition, now)
        return condition

    def _say(self, step: Step, figures: str) -> str:
        if step == "none":
            return f"the node has enough memory: {figures}"
        if phase := self._phase():
            figures = f"{figures}, while the server loads (phase {phase})"
        if step == "warn":
            return f"the node has little memory: {figures}. Below {self._limits.stop:g} % the group is stopped. {_LOOK}"
        return (
            f"the node runs out of memory: {figures}. The whole group is stopped before the node freezes, and comes "
            f"back when there is enough. {_LOOK}"
        )

    def _publish(self, before: Condition | None, condition: Condition, now: float) -> None:
        same = before is not None and before.proven == condition.proven
        since = self._since if same else timestamp()
        # Also the first one: the sidecar before this one may have left another condition.
        self._api.set_condition(condition, since, MEMORY)
        self._published, self._since = condition, since
        if condition.reason == MEMORY_OUT or (now >= self._event_after and not (before is None and condition.proven)):
            self._event_after = now + _EVENT_EVERY
            self._api.add_event(condition, "")

    def _render(self, seen: Reading, step: Step) -> str:
        values = (list(_REASONS).index(step), seen.available * 1024)
        return "".join(
            metric(name, "gauge", text, self._labels, [({}, value)])
            for (name, text), value in zip(_METRICS, values, strict=True)
        )


# Tell in the condition of a rank's pod what its load takes of the node's memory (roles/sglang/files/watch_load.py).

_LOAD_REASONS = {"loads": "Loading", "ready": "Loaded", "ended": "LoadEnded"}
_STARTS = {"loads": "the server loads for {} s, now in the phase {}", "ready": "loaded in {} s", "ended": "{}"}
# Bytes of the file, of which a load writes a few hundred; seconds between two writings of the same phase.
_LOAD_MOST, _LOAD_EVERY = 1 << 14, 60.0


def tell(told: Any) -> Condition:
    """Return the condition of a load; raise LookupError, TypeError or ValueError for anything else in the file."""
    state, total, before = str(told["state"]), float(told["total_gib"]), float(told["before_gib"])
    taken = {str(name): float(peak["taken_gib"]) for name, peak in told["phases"].items()}
    most = max(taken, key=lambda name: taken[name])
    given = {"ended": [told["said"]]}.get(state, [int(told["seconds"]), told["phase"]])
    parts = [
        _STARTS[state].format(*given),
        f"{taken[most]:.1f} of the node's {total:.1f} GiB were taken at most, in the phase {most} ("
        + ", ".join([f"before it {before:.1f}", *(f"{name} {gib:.1f}" for name, gib in taken.items())])
        + ")",
    ]
    if swapped := float(told.get("swapped_gib", 0)):
        parts.append(f"{swapped:.1f} GiB were swapped out")
    if drops := int(told["drops"]):
        parts.append(f"the models' pages were dropped {'once' if drops == 1 else f'{drops} times'}")
    return Condition(state != "ended", _LOAD_REASONS[state], "; ".join(parts))


class Load:
    """Publishes the load of a rank, and why the one before it was ended."""

    def __init__(self, base: Path, api: PodApi, labels: Mapping[str, str]) -> None:
        self.text = ""
        self._file, self._api, self._labels = base / "load.json", api, labels
        # The phase of a load that goes on, empty without one.
        self.phase = ""
        self._ended = self._since = ""
        self._published: Condition | None = None
        self._written = ("", "")
        self._write_after = float("-inf")

    def step(self, now: float) -> None:
        """Look once, and publish what changed.

        Raise OSError, HTTPException, LookupError, TypeError or ValueError. A start that has written nothing yet, and a
        server that nobody watches, are no failure.
        """
        self.phase = ""
        try:
            with opened(self._file) as stream:
                told = json.loads(stream.read(_LOAD_MOST))
        except FileNotFoundError:
            return
        condition, before = tell(told), self._published
        self.phase = str(told["phase"]) if condition.reason == "Loading" else ""
        if condition.reason == "LoadEnded":
            self._ended = condition.message
        elif condition.reason == "Loaded":
            self._ended = ""
        elif self._ended:
            condition = Condition(False, condition.reason, f"{condition.message}; the load before it: {self._ended}")
        self.text = self._render()
        shown = condition.reason, self.phase
        if before == condition or (shown == self._written and now < self._write_after):
            return
        since = self._since if before is not None and before.proven == condition.proven else timestamp()
        self._api.set_condition(condition, since, LOAD)
        if condition.reason == "LoadEnded" and self._written[0] != "LoadEnded":
            self._api.add_event(condition, "")
        self._published, self._since, self._written = condition, since, shown
        self._write_after = now + _LOAD_EVERY

    def _render(self) -> str:
        text = "1 if the rank's last load was ended for its memory, until one succeeds."
        return metric("gb10_load_ended", "gauge", text, self._labels, [({}, int(bool(self._ended)))])


# Ask the server of rank 0 a tiny question now and then, and say when the answer is no language any more.
#
# It also asks at once when front_door.py notes that a client's answer repeats one character, as broken engines do.
#
# A server whose /health is green may answer with one token over and over. Only such an answer counts: a wrong sum, a
# thought that the limit cuts off, a server that is busy or refuses says nothing about the engine.

# Seconds between two questions, after garbage or while the server starts, and after the server refused a question.
_ASK_EVERY, _ASK_AGAIN, _REFUSED = 300.0, 20.0, 3600.0
# The file that front_door.py touches.
SUSPECT = "suspect"
# Seconds that an answer may take, and tokens that it may have
_LIMIT, _TOKENS = 60.0, 16
# So many answers in a row must be garbage.
_PROOF = 2
# A run of one character, and of one word
_RUNS = re.compile(r"([^\s.])\1{7}|\b(\w{2,})(?:\W+\2\b){5}")
_RESULTS = ("right", "unclear", "none", "garbage")
_FOLLOWS = "The head gets no requests until it answers with words, and the group's supervisor restarts it once. "


def garbled(text: str) -> bool:
    """Tell whether a short answer is noise: one character or word over and over, no letter or digit, or broken text."""
    plain = "".join(text.split())
    broken = sum(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Co", "Cn") for c in plain)
    wordless = len(plain) >= 4 and not any(c.isalnum() for c in plain)
    return wordless or bool(_RUNS.search(text)) or broken > max(2, len(plain) // 5)


class Answers:
    """Asks, and publishes what changed. ``enforce``: garbage takes the head out of the Service.

    The server owns the directory ``base``, so that of its file only the time is read, and it can hurry no question
    more than those after garbage.
    """

    def __init__(self, base: Path, port: int, api: PodApi, labels: Mapping[str, str], enforce: bool) -> None:
        self.text = ""
        self._base, self._noted, self._asked = base, 0, float("-inf")
        self._port, self._api, self._labels, self._enforce = port, api, labels, enforce
        self._counts = dict.fromkeys(_RESULTS, 0)
        self._ask_after, self._garbage, self._said, self._question = 0.0, 0, "", ""
        self._published: Condition | None = None
        self._since = ""

    @property
    def closes(self) -> bool:
        """Tell whether the head must get no requests."""
        return self._enforce and self._garbage >= _PROOF

    def step(self, now: float) -> None:
        """Ask if it is time, and publish; raise OSError, HTTPException or ValueError of the API."""
        noted = self._note()
        if now >= self._ask_after or (noted not in (0, self._noted) and now - self._asked >= _ASK_AGAIN):
            self._noted, self._asked = noted, now
            result, wait = self._ask()
            self._counts[result] += 1
            # No answer neither proves garbage nor takes it back.
            if result != "none":
                self._garbage = self._garbage + 1 if result == "garbage" else 0
            self._ask_after = time.monotonic() + (_ASK_AGAIN if self._garbage else wait)
            self.text = self._render()
        condition = self._condition()
        before = self._published
        if before is None or before.reason != condition.reason:
            since = self._since if before and before.proven == condition.proven else timestamp()
            self._api.set_condition(condition, since, ANSWERS)
            if not (condition.proven and (before is None or before.proven)):
                self._api.add_event(condition, "Answers")
            self._published, self._since = condition, since

    def _note(self) -> int:
        """Return when an answer was noted last, 0 if none was since the server's start."""
        try:
            return (self._base / SUSPECT).lstat().st_mtime_ns
        except OSError:
            return 0

    def _ask(self) -> tuple[Literal["right", "unclear", "none", "garbage"], float]:
        """Return what became of one question, and the seconds until the next one."""
        # Another sum each time, because a prompt that was seen is read from the cache.
        number = sum(self._counts.values())
        first, second = 11 + number % 80, 12 + number % 77
        question = f"What is {first} plus {second}? Answer with the number only."
        body = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": _TOKENS,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        }
        said = ask(self._port, body, _LIMIT, lambda _text: None)
        text = said["text"] or said["thought"]
        if str(first + second) in re.findall(r"\d+", text):
            return "right", _ASK_EVERY
        if garbled(text):
            # It may be a part of somebody's prompt if the engine mixes up its streams, so it is cut short.
            self._said, self._question = ascii(text[:20]), question
            return "garbage", _ASK_AGAIN
        if said["error"]:
            starts = "refused" in said["error"]
            return "none", _ASK_AGAIN if starts else _REFUSED if said["error"].startswith("HTTP 4") else _ASK_EVERY
        return "unclear", _ASK_EVERY

    def _condition(self) -> Condition:
        if self._garbage >= _PROOF:
            message = (
                f"the server answered {self._garbage} questions in a row with noise. The last question was: "
                f"{self._question} The answer was {self._said}. {_FOLLOWS if self._enforce else ''}Run playbook "
                f"verify, which names the settings under suspicion{'' if self._enforce else ', and restart the group'}"
            )
            return Condition(False, ANSWERS_OUT if self._enforce else "Garbage", message)
        if not self._counts["right"] + self._counts["unclear"]:
            return Condition(True, "NotAnswered", "the server has answered no question yet; this is no finding")
        return Condition(True, "Words", "the server answers short questions with words or numbers")

    def _render(self) -> str:
        asked = [({"result": name}, n) for name, n in self._counts.items()]
        return metric(
            "gb10_answers_garbage",
            "gauge",
            "1 if the server answers short questions with noise.",
            self._labels,
            [({}, int(self._garbage >= _PROOF))],
        ) + metric(
            "gb10_answers_questions_total",
            "counter",
            "Questions that the sidecar asked the server, by what became of them.",
            self._labels,
            asked,
        )
