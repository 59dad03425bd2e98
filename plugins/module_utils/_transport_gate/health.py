# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count what went wrong with a rank's rails, GPU and node while its pod lives: what each moment for itself hides.

The rails and the node are read from sysfs, which needs no right. Faults of the GPU (Xid) and its clock come from NVML,
which only the server's container has: roles/sglang/files/witness.py counts them into a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._in_pod.api import timestamp
from .._kube.labels import HEALTH
from .._rdma.counters import ERRORS
from .._sriov.physical_functions import read_int, read_text
from . import rails
from .api import PodApi
from .metrics import metric
from .nccl_files import opened
from .state import Condition, Rail

# Seconds between two readings, and between two writings of a message whose counts grow.
_EVERY, _WRITE_EVERY = 30.0, 600.0
# The file of the witness, the bytes that are read of it, and the codes of faults that are told.
GPU, _MOST, _CODES = "gpu.json", 1 << 12, range(1000)
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
    counted = rails.counted(sysfs_root)["rdma"]
    found: _Counts = {}
    for number, rail in enumerate(planned):
        if (changes := rails.link(rail.interface)["carrier_changes"]) is not None:
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
    gids, mtus = rails.gids_and_mtus(planned, sysfs_root)
    numbered = list(enumerate(planned))
    found = {(number, "gid_lost") for number, rail in numbered if rail.address not in gids}
    return found | {(number, "mtu_fell") for number, rail in numbered if mtus.get(rail.interface, rail.mtu) < rail.mtu}


def of_gpu(base: Path) -> _Counts:
    """Return what the witness has counted since the server's start; the server owns its file."""
    try:
        with opened(base / GPU) as stream:
            told = json.loads(stream.read(_MOST))
        pairs = [(f"xid_{int(code)}", times) for code, times in told["xid"].items() if int(code) in _CODES]
        pairs += [(name, told["seconds"][name]) for name in ("gpu_hot", "gpu_brake", "gpu_slow")]
        return {(_NODE, name): min(max(0, int(times)), 1 << 31) for name, times in pairs}
    except (OSError, LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
        return {}


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
        self._began, self._hot = 0.0, 0
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
        counted = count(self._rails, self._sysfs) | of_gpu(self._base)
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
