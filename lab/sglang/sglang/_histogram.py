# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count times in the buckets of SGLang's histograms, in Prometheus' text format."""

import bisect
import threading
from collections.abc import Sequence

# The buckets of release 0.5.16, read from the metrics of a real server.
FIRST_TOKEN = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
BETWEEN_TOKENS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)


class Histogram:
    """A histogram with these upper bounds; it may be filled and read by different threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a time, ``times`` times."""
        with self._lock:
            self._counts[bisect.bisect_left(self._bounds, seconds)] += times
            self._sum += seconds * times

    def render(self, name: str, labels: str) -> list[str]:
        """Return the lines of the metric."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        lines, so_far = [f"# TYPE {name} histogram", f"{name}_sum{{{labels}}} {total}"], 0
        for bound, count in zip([*map(float, self._bounds), "+Inf"], counts, strict=True):
            so_far += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(so_far)}')
        return [*lines, f"{name}_count{{{labels}}} {float(so_far)}"]
