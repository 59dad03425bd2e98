# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count what the kernel has said since boot about PCIe errors, the GPU and the links of the fabric."""

from __future__ import annotations

import re

from .commands import Run
from .model import KernelMessage

# The first kind whose pattern a line contains counts. drivers/pci/pcie/aer.c, NVIDIA's Xid messages, mlx5/core/*.c
KINDS = {
    "aer": re.compile(r"AER: .*(?:[Uu]ncorrect|[Ff]atal)|PCIe Bus Error: severity=Uncorrect"),
    "corrected": re.compile(r"AER: .*[Cc]orrect|PCIe Bus Error: severity=Correct"),
    "xid": re.compile(r"NVRM: Xid "),
    "nvrm": re.compile(r"NVRM: .*(?:fail|[Ee]rror|[Oo]ut of memory)"),
    "nic": re.compile(
        r"mlx5_core .*(?:CQE error|health (?:compromised|recovery)|fatal|command .*failed|High temperature)"
    ),
    "link": re.compile(r"mlx5_core .*Link down"),
}
_SHOWN = 200
_COMMANDS = (
    ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=cat"],
    ["dmesg", "--notime"],
)


def read_kernel_log(run: Run) -> dict[str, KernelMessage] | None:
    """Return number and last line of each kind of message; None if neither journald nor dmesg shows the log."""
    for command in _COMMANDS:
        lines = run(command).output.splitlines()
        if lines:
            return _counted(lines)
    return None


def _counted(lines: list[str]) -> dict[str, KernelMessage]:
    found: dict[str, KernelMessage] = {}
    for line in lines:
        kind = next((name for name, pattern in KINDS.items() if pattern.search(line)), None)
        if kind is not None:
            count = found[kind]["count"] if kind in found else 0
            found[kind] = {"count": count + 1, "last": line.strip()[:_SHOWN]}
    return found
