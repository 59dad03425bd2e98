# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell which lines of a server's log show that its start goes on. Private to the collection; standard library only."""

from __future__ import annotations

from collections.abc import Iterable

# Answers to the kubelet's probes, which SGLang logs every few seconds, also when its warm-up hangs: uvicorn's access
# lines, and what http_server.py says about a health check without an answer.
_CAUSED_BY_PROBES = (' HTTP/1.1"', "Health check failed")


def progress(lines: Iterable[str]) -> list[str]:
    """Return the lines that the start wrote, without those that requests to the server caused."""
    return [line for line in lines if not any(text in line for text in _CAUSED_BY_PROBES)]
