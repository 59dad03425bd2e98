# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the steps of a proof while they run. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_QUIET_SECONDS = 30


@dataclass
class Progress:
    """Shows each step, and a line every half minute during a step."""

    show: Callable[[str], None]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    _step: str = ""
    _begun: float = 0.0
    _shown: float = 0.0

    def begin(self, step: str) -> None:
        self._step, self._begun = step, self.now()
        self._shown = self._begun
        self.show(step)

    def alive(self) -> None:
        """Show that the step is still running, if nothing was shown for a while."""
        if self.now() - self._shown >= _QUIET_SECONDS:
            self._shown = self.now()
            self.show(f"{self._step}: {self._shown - self._begun:.0f} s so far")

    def pause(self, seconds: float) -> None:
        """Wait, and show that the step is still running."""
        self.sleep(seconds)
        self.alive()
