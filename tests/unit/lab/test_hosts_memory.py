# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a simulated host says of its memory."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lab"))

from gb10lab.hosts import spark_memory


def test_a_simulated_spark_has_a_sparks_memory_and_the_machines_other_lines() -> None:
    machine = "MemTotal:       24684092 kB\nMemFree:  1 kB\nMemAvailable:  2 kB\nSwapTotal:  3 kB\nCmaTotal:  4 kB\n"
    lines = dict(line.split(":") for line in spark_memory(machine).splitlines())
    sizes = {name: int(value.split()[0]) for name, value in lines.items()}
    assert 119 < sizes["MemTotal"] / 2**20 < 120
    assert sizes["MemFree"] < sizes["MemAvailable"] < sizes["MemTotal"]
    assert (sizes["SwapTotal"], sizes["CmaTotal"]) == (3, 4)
