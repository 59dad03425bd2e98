# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch the node's memory while this rank's server loads, and end the load before the node freezes.

Runs beside the server in its container; standard library only. Where GPU and CPU share one memory, the kernel's OOM
killer does not see what CUDA takes. Only a program of the same container may end the server's processes and read its
models, so that their pages can be dropped. Once the server is ready, the sidecar watches the memory alone.

A log line of SGLang begins a phase (front_door.py notes it), and so does a compiler that runs. The most memory that was
taken on the node in each phase goes to load.json beside NCCL's files, where the sidecar reads it, and to a file that
stays on the node for the next plan. The next plan may be one with other caches or another number of compilers, so the
file also has what SGLang itself says that its CUDA graphs took, and the most memory of one compiler and of all at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from start_rank import drop_from_cache, ended_before, size_of

LEDGER = "load.json"
# front_door.py adds a line with its process number to it when SGLang's log begins a phase; start_rank.py makes the
# directory.
PHASES = Path("/tmp/gb10-stacks/phases")
MEMINFO, PROC = Path("/proc/meminfo"), Path("/proc")
# Seconds between two looks, and between those while less than CLOSE times the limit is available: a load from a fast
# disk takes 5 GiB in a second.
EVERY, SOON, CLOSE = 0.5, 0.1, 4
# Seconds for which too little must be available, or in which all of it would be gone at the present rate, and seconds
# between two times that the models' pages are dropped.
HOLD, PAUSE = 1.5, 2.0
# Seconds between two requests of /health, and for an answer: a healthy head takes one, a head that starts none.
ASK, ANSWER = 5.0, 2.0
# Seconds between two writings of a phase whose memory does not grow, and the GiB of growth that are written at once.
WRITE, GROWS_GIB = 15.0, 0.25
# What is kept of a phase
FIGURES = ("seconds", "taken_gib", "cached_gib")
# What front_door.py notes before the GB that SGLang's graphs took
TOOK = "took "
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "ninja"})
REMEDIES = {
    "weights": "Let SGLang drop the pages of each file (weight_loader_drop_cache_after_load: true), and do not set"
    " weight_loader_disable_mmap",
    "draft": "Lower mem_fraction_static, or serve without speculation",
    "caches": "Lower mem_fraction_static",
    "graphs": "Lower mem_fraction_static or the largest batch of the CUDA graphs",
    "compile": "Let fewer compilers run at once (serving_plan_env: {MAX_JOBS: 1})",
}
ELSE = "Look for what else uses this node's memory (ps, nvidia-smi), or lower mem_fraction_static"


def last_phase(text: str) -> str:
    """Return the phase that the last line begins; weights after the first ones in the same process are the draft's."""
    phase, loaded = "start", set[str]()
    for process, _space, begun in (line.partition(" ") for line in text.splitlines()):
        if begun.startswith(TOOK):
            continue
        phase = "draft" if begun == "weights" and process in loaded else begun
        if begun == "caches":
            loaded.add(process)
    return phase


def graphs_took(text: str) -> float:
    """Return the GB of all CUDA graphs, as SGLang's lines tell (in GiB, which it calls GB)."""
    return sum(float(line.partition(TOOK)[2]) for line in text.splitlines() if f" {TOOK}" in line)


def compilers(proc: Path) -> list[float]:
    """Return the GiB that each compiler of this container has now; 0 for programs that only start others."""
    found = []
    for entry in proc.glob("[0-9]*/comm"):
        # A process may end at any time.
        with suppress(OSError, ValueError, IndexError):
            if entry.read_text(errors="replace").strip() in COMPILERS:
                pages = int((entry.parent / "statm").read_text(encoding="ascii").split()[1])
                found.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**30)
    return found


def health(port: int) -> int:
    """Return the status of the server's /health, 0 without an answer, such as before its HTTP has started."""
    # An opener of urllib reads all certificates of the system first.
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER)
    try:
        server.request("GET", "/health")
        return server.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        server.close()


def children(proc: Path, server: int) -> Iterator[int]:
    """Yield what the server started and what that started, without this program."""
    parents = {}
    for entry in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents[int(entry.parent.name)] = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
    own = {server}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    yield from sorted(own - {server, os.getpid()})


def end(proc: Path, server: int) -> None:
    """End all processes of the server. As process 1 of its container it can't be killed: SIGQUIT makes SGLang end."""
    for pid, sign in [*((pid, signal.SIGKILL) for pid in children(proc, server)), (server, signal.SIGQUIT)]:
        with suppress(OSError):
            os.kill(pid, sign)


class Load:
    """A load of the server, and the memory that it takes on the node, in GiB."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.state, self.phase, self.said = "loads", "start", ""
        self._options = options
        self._peaks: dict[str, dict[str, float]] = {}
        # Seconds until the next look.
        self.pause = EVERY
        self._total = self._before = self._looked = self._left = 0.0
        self._drop: threading.Thread | None = None
        self._low_since: float | None = None
        self._drop_after = self._write_after = self._ask_after = float("-inf")
        self._warms = self._cached = False
        self._drops = 0
        self._graphs = self._compiler = self._compilers = self._swap = self._swapped = 0.0
        self._written = 0.0

    def look(self, now: float) -> None:
        """Look once, and drop pages or call for the end if that is due; raise OSError or ValueError."""
        self._total, free, left = (size_of(MEMINFO, name) for name in ("MemTotal", "MemFree", "MemAvailable"))
        # The plan lets the weights of a few models be swapped out for a moment.
        swap = min(self._options.swap, size_of(MEMINFO, "SwapFree")) if self._options.swap else 0.0
        if not self._peaks:
            self._looked, self._before, self._left, self._swap = now, self._total - left, left + swap, swap
        self._swapped = max(self._swapped, self._swap - swap)
        room = left + swap
        passed, fallen, self._left = now - self._looked, self._left - room, room
        changed = self._name(now)
        if self.phase == "graphs" and "graphs" not in self._peaks and self._cached:
            # All of them may have been allocated since the look before this one, and must not count as the graphs'.
            caches = self._peaks.setdefault("caches", dict.fromkeys(FIGURES, 0.0))
            caches["taken_gib"] = max(caches["taken_gib"], self._total - left)
        peak = self._peaks.setdefault(self.phase, dict.fromkeys(FIGURES, 0.0))
        peak |= {
            "seconds": peak["seconds"] + now - self._looked,
            "taken_gib": max(peak["taken_gib"], self._total - left),
            "cached_gib": max(peak["cached_gib"], left - free),
        }
        self._looked = now
        limit = self._total * self._options.stop / 100
        low, full = room < limit, free < self._total / 10 <= left - free
        self.pause = SOON if room < CLOSE * limit else EVERY
        self._low_since = (now if self._low_since is None else self._low_since) if low else None
        if (left < limit or full) and now >= self._drop_after and not (self._drop and self._drop.is_alive()):
            # It takes seconds for a large model, in which all memory may go.
            self._drop = threading.Thread(target=drop_from_cache, args=(self._options.model,), daemon=True)
            self._drop.start()
            self._drop_after, self._drops = now + PAUSE, self._drops + 1
        lasts = self._low_since is not None and now - self._low_since >= HOLD
        if self.state == "loads" and (lasts or (low and fallen * HOLD > room * passed)):
            self.state = "ended"
            more = f", and {swap:.1f} of the planned swap" if self._options.swap else ""
            self.said = (
                f"the load was ended in its phase {self.phase} before the node froze: {left:.1f} of {self._total:.1f}"
                f" GiB were available{more}. {REMEDIES.get(self.phase, ELSE)}"
            )
            changed = True
        grown = peak["taken_gib"] + self._swapped - self._written >= GROWS_GIB
        if changed or grown or now >= self._write_after:
            self._write(now)

    def _name(self, now: float) -> bool:
        """Find the phase, and whether the server is ready; tell whether one of them changed."""
        before = self.phase, self.state
        noted = ""
        with suppress(OSError):
            noted = PHASES.read_text(encoding="ascii", errors="replace")
        # A head takes a second to answer, in which nobody looks.
        if now >= self._ask_after and self._low_since is None:
            status, self._ask_after = health(self._options.port), now + ASK
            self._warms = self._warms or bool(status)
            self.state = "ready" if status == HTTPStatus.OK else self.state
        if self.state == "loads":
            sizes = compilers(PROC)
            self._graphs, self._compiler = graphs_took(noted), max(self._compiler, *sizes, 0.0)
            self._compilers = max(self._compilers, sum(sizes))
            self._cached = noted.count(" caches\n") > 0
            self.phase = "compile" if sizes else "warm-up" if self._warms else last_phase(noted)
        return before != (self.phase, self.state)

    def _write(self, now: float) -> None:
        self._write_after, self._written = now + WRITE, self._peaks[self.phase]["taken_gib"] + self._swapped
        told: dict[str, Any] = {
            "state": self.state,
            "phase": self.phase,
            "said": self.said,
            "key": self._options.key,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(sum(peak["seconds"] for peak in self._peaks.values())),
            "total_gib": round(self._total, 2),
            "before_gib": round(self._before, 2),
            "drops": self._drops,
            "graphs_gib": round(self._graphs, 2),
            "compiler_gib": round(self._compiler, 2),
            "compilers_gib": round(self._compilers, 2),
            "swapped_gib": round(self._swapped, 2),
            "jobs": os.environ.get("MAX_JOBS", ""),
            "phases": {
                name: {figure: round(value, 2) for figure, value in peak.items()} for name, peak in self._peaks.items()
            },
        }
        # A start that crashed tells nothing to the next plan, and must not replace what a load took.
        kept = [self._options.kept] if self._options.kept and self.state != "loads" else []
        if self.state == "ended":
            told["times"] = 1 + ended_before(self._options.kept, self._options.key)[0]
        for file in (self._options.base / LEDGER, *kept):
            written = file.with_name(f".{file.name}")
            # A disk that is full must not end the watch.
            with suppress(OSError):
                written.write_text(f"{json.dumps(told)}\n", encoding="ascii")
                # The sidecar runs as another user.
                written.chmod(0o644)
                written.replace(file)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="directory of NCCL's files")
    parser.add_argument("--port", required=True, type=int, help="of the server")
    parser.add_argument("--stop", type=float, default=0, help="percentage of available memory that ends the load")
    parser.add_argument("--swap", type=float, default=0, help="GiB of free swap that the load may use")
    parser.add_argument("--key", default="", help="what the next plan knows this launch by")
    parser.add_argument("--kept", type=Path, help="file that stays on the node")
    parser.add_argument("--model", action="append", default=[], type=Path, metavar="DIRECTORY")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Watch the load, then wait until the server, which is the parent of this process, has ended."""
    load, server = Load(parse(words)), os.getppid()
    while os.getppid() == server:
        if load.state == "loads":
            # Without a reading nothing can be judged; the sidecar's guard may still see it.
            with suppress(OSError, ValueError):
                load.look(time.monotonic())
        if load.state == "ended":
            if load.said:
                print(load.said, flush=True)
                load.said = ""
            end(PROC, server)
        time.sleep(load.pause)


if __name__ == "__main__":
    main(sys.argv[1:])
