# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name the run of which this process is a part, so that others can tell whether it still exists."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """A run: its user, machine and process, and the kernel's start time of the process, as numbers are used again."""

    user: str
    host: str
    pid: int
    started: str
    run: str

    def is_same(self, other: Holder | None) -> bool:
        """Tell whether both are one process, whatever it does."""
        return other is not None and (self.host, self.pid, self.started) == (other.host, other.pid, other.started)

    def has_ended(self, mine: Holder, proc: Path = Path("/proc")) -> bool:
        """Tell whether the process no longer exists; False for one on another machine, of which nothing is known."""
        return self.host == mine.host and started(self.pid, proc) != self.started

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.pid}, {self.run}"


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the kernel's start time of a process in clock ticks (proc_pid_stat(5)), empty if it does not exist."""
    try:
        return (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):  # a host or a cluster may name any process
        return ""


def this_run(what: str) -> Holder:
    """Return the run of which this process is a part: Ansible forks a process per task."""
    pid = os.getppid()
    try:
        user = getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return Holder(user, platform.node(), pid, started(pid), what)
