# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch the memory of a rank's node, and say in the condition of its pod when the whole group has to stop.

A pod sees the node's /proc/meminfo and /proc/pressure/memory. The supervisor stops the group, because only it may
delete pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .._common.memory import History, Limits, Reading, Step, ladder
from .._host.memory_guard import read
from .._in_pod.api import timestamp
from .._kube.labels import MEMORY, MEMORY_OUT
from .api import PodApi
from .metrics import metric
from .state import Condition

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
        verdict = ladder(seen, self._limits, self._history, now)
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
