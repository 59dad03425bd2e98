# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait in slices, because a module can show nothing before it ends. Private to the collection.

The action pods_wait runs the module again until a slice is the last one, and shows the message of every slice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

SLICE_SECONDS = 20
_FIRST_PAUSE = 0.125
PROGRESS_SPEC: dict[str, Any] = {"type": "dict", "default": {}}
"""Argument spec of the option ``progress`` of modules that wait in slices."""

_T = TypeVar("_T")


def poll(look: Callable[[], _T], enough: Callable[[_T], bool], seconds: float, pause: float) -> _T:
    """Return what ``look`` returns once it is enough, or when the time is over. It looks at least once.

    The first pauses are shorter: most waits are over in a fraction of a second. ``pause`` is the longest.
    """
    deadline, next_pause = time.monotonic() + seconds, min(pause, _FIRST_PAUSE)
    while True:
        found = look()
        left = deadline - time.monotonic()
        if enough(found) or left <= 0:
            return found
        time.sleep(min(next_pause, left))
        next_pause = min(pause, 2 * next_pause)


class Slice:
    """One slice of a wait of ``timeout`` seconds; ``progress`` is what the slice before it returned."""

    def __init__(self, timeout: float, progress: Mapping[str, Any]) -> None:
        self._timeout, self._before = timeout, float(progress.get("waited", 0))
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return how long this slice may take."""
        return min(SLICE_SECONDS, max(0.0, self._timeout - self._before))

    @property
    def waited(self) -> float:
        """Return how long all slices took so far."""
        return self._before + time.monotonic() - self._started

    @property
    def last(self) -> bool:
        """Return whether the time is over."""
        return self.waited >= self._timeout
