# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the server of a rank generate tokens, and read how many it has generated."""

from __future__ import annotations

import math
import subprocess
import sys
import urllib.request
from http.client import HTTPException

_PROBE = "/opt/gb10/generate_probe.py"
_TOKENS = 64
# Seconds between two generations while the group is not proven.
_PROBE_EVERY = 10


class Prober:
    """Makes the server generate a few tokens, because NCCL connects only when it is used."""

    def __init__(self, port: int) -> None:
        self._command = [sys.executable, _PROBE, "--port", str(port), "--measure", str(_TOKENS), "--timeout", "20"]
        self._running: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    def run(self, now: float) -> None:
        """Start a generation, unless one still runs or the last one began a moment ago."""
        if now >= self._not_before and (self._running is None or self._running.poll() is not None):
            self._not_before = now + _PROBE_EVERY
            # Before the server listens, the probe fails at once.
            quiet = subprocess.DEVNULL
            # pylint: disable-next=ansible-bad-function
            self._running = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)


def tokens(port: int) -> float | None:
    """Return the number of tokens that the server has generated; None without --enable-metrics."""
    try:
        with urllib.request.build_opener().open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode(errors="replace").splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith("sglang:generation_tokens_total")]
        total = sum(map(float, values))
        # A sum of NaN would be larger than no other, and the counters would never count as silent.
        return total if values and math.isfinite(total) else None
    except (OSError, HTTPException, ValueError):
        return None
