# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA counters: nothing here moves data by RDMA, so somebody has to say what counts as RDMA traffic.

``/run/gb10-lab/rdma-traffic/<rdma device>`` holds one of
  ``interface``   from now on every byte of the device's interface counts, both ways
  ``SENT RECEIVED``   two numbers of bytes: the counters are at least that
No file: the counters stand still, whatever the interface carries (as with NCCL's Socket transport).
"""

from __future__ import annotations

from pathlib import Path

from functions import Function
from netlink import Link

DIRECTORY = Path("/run/gb10-lab/rdma-traffic")


class Meter:
    """Adds up what counts, per function."""

    def __init__(self) -> None:
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        # pods of any user may say what they sent
        DIRECTORY.chmod(0o1777)
        self._before: dict[str, tuple[int, int]] = {}

    def update(self, functions: list[Function], ports: dict[str, Link]) -> bool:
        """Read the files and move the counters; True while an interface has to be watched."""
        watching = False
        for function in functions:
            try:
                words = (DIRECTORY / function.rdma).read_text().split()
            except OSError:
                words = []
            port = ports.get(function.port)
            if words == ["interface"] and port:
                watching = True
                # what the switch's port received is what the interface sent
                now = (port.rx_bytes, port.tx_bytes)
                before = self._before.get(function.rdma, now)
                function.sent += max(0, now[0] - before[0])
                function.received += max(0, now[1] - before[1])
                self._before[function.rdma] = now
                continue
            self._before.pop(function.rdma, None)
            if len(words) == 2 and all(word.isdecimal() for word in words):
                function.sent = max(function.sent, int(words[0]))
                function.received = max(function.received, int(words[1]))
        return watching
