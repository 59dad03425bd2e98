# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell in the condition of a rank's pod what its load takes of the node's memory (roles/sglang/files/watch_load.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._in_pod.api import timestamp
from .._kube.labels import LOAD
from .api import PodApi
from .metrics import metric
from .nccl_files import opened
from .state import Condition

_REASONS = {"loads": "Loading", "ready": "Loaded", "ended": "LoadEnded"}
_STARTS = {"loads": "the server loads for {} s, now in the phase {}", "ready": "loaded in {} s", "ended": "{}"}
# Bytes of the file, of which a load writes a few hundred; seconds between two writings of the same phase.
_MOST, _WRITE_EVERY = 1 << 14, 60.0


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
    if drops := int(told["drops"]):
        parts.append(f"the models' pages were dropped {drops} times")
    return Condition(state != "ended", _REASONS[state], "; ".join(parts))


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
                told = json.loads(stream.read(_MOST))
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
        self._write_after = now + _WRITE_EVERY

    def _render(self) -> str:
        text = "1 if the rank's last load was ended for its memory, until one succeeds."
        return metric("gb10_load_ended", "gauge", text, self._labels, [({}, int(bool(self._ended)))])
