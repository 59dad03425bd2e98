# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which step is due for the memory of a node: none, warn, drop caches, or stop the group."""

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import History, Limits, Reading, ladder

GIB = 2**20
MEMINFO = "MemTotal:       125829120 kB\nMemFree:         2097152 kB\nMemAvailable:   62914560 kB\nCached: 1 kB\n"
PRESSURE = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=7.25 avg60=0.00 avg300=0.00 total=1\n"
STOP = Limits(warn=5, stop=4, full=20, hold=10)
DROP = Limits(warn=5, free=10, pause=10)


def node(available: float, free: float | None = None, full: float = 0) -> Reading:
    """Return a node of 100 GiB, whose GiB are percentages."""
    return Reading(100 * GIB, int((available if free is None else free) * GIB), int(available * GIB), full, full)


def test_the_files_of_the_kernel_are_read() -> None:
    seen = Reading.parse(MEMINFO, PRESSURE)
    assert seen == Reading(120 * GIB, 2 * GIB, 60 * GIB, 12.5, 7.25)
    said = str(seen)
    assert "60.0 of 120.0 GiB are available (50.0 %), 2.0 GiB are free" in said and "in 7 %" in said


def test_a_kernel_without_pressure_information_is_no_reason_to_stop() -> None:
    assert Reading.parse(MEMINFO, "").full == 0


@pytest.mark.parametrize("missing", ["MemTotal", "MemFree", "MemAvailable"])
def test_a_missing_size_is_an_error_and_not_zero(missing: str) -> None:
    with pytest.raises(ValueError, match="lacks"):
        Reading.parse(MEMINFO.replace(missing, "Other"), PRESSURE)


LOW, WAITS, FULL, WARN = node(3), node(4.5, full=90), node(60, free=2), Limits(warn=5)
# Limits, what is read at which second, and the steps that are due then.
LADDERS: dict[str, tuple[Limits, list[tuple[float, Reading]], str]] = {
    "low memory that lasts": (STOP, [(0, node(50)), (1, node(4.5)), (2, LOW), (11, LOW), (12, LOW)],
                              "none warn warn warn stop_group"),
    "a short dip": (STOP, [(0, LOW), (9, LOW), (10, node(4.5)), (11, LOW), (20, LOW)], "warn warn warn warn warn"),
    "a warning ends only clearly above its threshold": (
        STOP, [(0, node(4.9)), (1, node(5.5)), (2, node(6.1)), (3, node(5.5))], "warn warn none none"),
    "the stop stays due until there is clearly more memory": (
        STOP, [(0, LOW), (10, LOW), (600, node(4.5)), (601, node(5.5)), (602, node(6.5)), (603, node(4.5))],
        "warn stop_group stop_group stop_group none warn"),
    # Loading a model through the page cache also makes tasks wait.
    "tasks wait while there is memory": (STOP, [(0, node(50, full=90)), (60, node(50, full=90))], "none none"),
    "tasks wait while memory is low": (STOP, [(0, WAITS), (10, WAITS)], "warn stop_group"),
    "tasks wait a little": (STOP, [(0, node(4.5, full=19)), (10, node(4.5, full=19))], "warn warn"),
    "a full page cache": (DROP, [(0, FULL), (1, FULL), (10, FULL)], "drop_caches none drop_caches"),
    # A server that has loaded leaves little memory, and dropping its caches would only make it read its files again.
    "caches that hold little": (DROP, [(0, node(9, free=3)), (20, node(11, free=3))], "none none"),
    "a stop that is switched off": (WARN, [(0, node(0)), (99, node(0, full=99))], "warn warn"),
    "drops that are switched off": (WARN, [(0, node(90, free=1))], "none"),
    "free swap counts up to the limit": (Limits(warn=5, swap=2), [
        (0, Reading(100 * GIB, 0, 4 * GIB, swap=GIB)), (1, Reading(100 * GIB, 0, 2 * GIB, swap=9 * GIB))], "none warn"),
}  # fmt: skip


@pytest.mark.parametrize("name", LADDERS)
def test_a_step_is_due_in_time_and_not_too_often(name: str) -> None:
    limits, seen, due = LADDERS[name]
    history = History()
    assert [ladder(reading, limits, history, now).step for now, reading in seen] == due.split()
