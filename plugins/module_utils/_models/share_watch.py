# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Know when the controller was last seen on any node. Private to the collection; standard library only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from .control import Control

MOST = 2**31  # contacts; at two in a second that is 34 years


class Watch:
    """The contacts of the controller's modules with the nodes, as far as this node knows.

    They are counts: each new number shows that the controller is there. Ages would not do: every message adds its own
    delay, so that peers could keep each other alive.
    """

    def __init__(self, name: str, control: Control, peers: Iterable[str] = ()) -> None:
        self._name, self._control = name, control
        self._counts = {name: 0, **dict.fromkeys(peers, 0)}
        self._seen, self._touched = time.monotonic(), control.contact()

    def counts(self) -> dict[str, int]:
        """Return how often modules were here and on other nodes, for peers."""
        return dict(self._counts)

    def seconds(self) -> float:
        """Return the seconds since the last contact, after a look at this node's own."""
        touched = self._control.contact()
        if touched != self._touched:
            self._touched, self._seen = touched, time.monotonic()
            self._counts[self._name] += 1
        return time.monotonic() - self._seen

    def hear(self, counts: Mapping[str, int]) -> None:
        """Learn what a peer knows about the nodes of this transfer; other names and impossible counts are ignored."""
        for name, count in counts.items():
            if name != self._name and self._counts.get(name, MOST) < count < MOST:
                self._counts[name], self._seen = count, time.monotonic()
