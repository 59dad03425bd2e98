# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count what went wrong with a rank's rails and its node while the rank runs: what each moment for itself hides.

Everything is read from sysfs, which needs no right. An Xid of the GPU is only in the kernel's log and in DCGM, and the
GPU's clock only in DCGM (alerts of role monitoring).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .._in_pod.api import timestamp
from .._kube.labels import HEALTH
from .._rdma.counters import ERRORS
from .._sriov.physical_functions import read_int, read_text
from . import rails
from .api import PodApi
from .metrics import metric
from .state import Condition, Rail

# Seconds between two readings, and between two writings of a message whose counts grow.
_EVERY, _WRITE_EVERY = 30.0, 600.0
# Of each rail: how its events are told, and for frequent ones how many per day are worth it.
_EVENTS = {
    "link_lost": ("lost its link {} times", 0),
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


def hot(sysfs_root: str) -> Iterator[str]:
    """Yield the thermal zones of the node whose temperature reached a limit at which it slows down or stops."""
    for zone in sorted(Path(sysfs_root, "class/thermal").glob("thermal_zone*")):
        now = read_int(zone / "temp")
        kinds = [path for path in zone.glob("trip_point_*_type") if read_text(path) in _TRIPS]
        limits = [read_int(path.with_name(path.name.replace("_type", "_temp"))) for path in kinds]
        if now is not None and any(limit and 0 < limit <= now for limit in limits):
            yield f"{read_text(zone / 'type')} ({now / 1000:.0f} °C)"


class Health:
    """Publishes what was counted since this program started."""

    def __init__(self, planned: tuple[Rail, ...], sysfs_root: str, api: PodApi, labels: Mapping[str, str]) -> None:
        self.text = ""
        self._rails, self._sysfs, self._api, self._labels = planned, sysfs_root, api, labels
        self._before: _Counts = {}
        self._total: _Counts = {}
        self._began: tuple[float, str] | None = None
        self._hot_before: set[str] = set()
        self._hot = 0
        self._read_after = self._write_after = 0.0
        self._published: Condition | None = None
        self._since = ""

    def step(self, now: float) -> None:
        """Read if it is time, and publish; raise OSError, SubprocessError, HTTPException or ValueError."""
        if now < self._read_after:
            return
        counted, zones = count(self._rails, self._sysfs), set(hot(self._sysfs))
        self._began = self._began or (now, timestamp())
        for key, value in counted.items():
            # What was counted before this program started is not its subject. A driver that was loaded again counts
            # from 0.
            before = self._before.get(key, value)
            self._total[key] = self._total.get(key, 0) + (value - before if value >= before else value)
        self._before = self._before | counted
        self._hot += bool(zones) and not self._hot_before
        self._hot_before, self._read_after = zones, now + _EVERY
        self.text = self._render()
        self._publish(self._condition(now, self._began), now)

    def _condition(self, now: float, began: tuple[float, str]) -> Condition:
        days = max(1.0, (now - began[0]) / 86400)
        told = [
            f"rail {number} ({self._rails[number].interface}) {_EVENTS[event][0].format(times)}"
            for (number, event), times in sorted(self._total.items())
            if times and times >= _EVENTS[event][1] * days
        ]
        if self._hot:
            told.append(f"the node was {self._hot} times at a limit of its temperature")
        said = f"since {began[1]} " + ("; ".join(told) if told else "nothing was counted")
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
        counted = [({"rail": number, "event": event}, times) for (number, event), times in sorted(self._total.items())]
        return metric(
            "gb10_health_events_total",
            "counter",
            "Faults that a rail's devices counted while the rank ran.",
            self._labels,
            counted,
        ) + metric(
            "gb10_health_hot",
            "gauge",
            "1 while a part of the node is at a limit of its temperature.",
            self._labels,
            [({}, int(bool(self._hot_before)))],
        )
