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


def steps(limits: Limits, *seen: tuple[float, Reading]) -> list[str]:
    history = History()
    return [ladder(reading, limits, history, now).step for now, reading in seen]


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


def test_low_memory_warns_and_stops_the_group_if_it_lasts() -> None:
    seen = [(0, node(50)), (1, node(4.5)), (2, node(3)), (11, node(3)), (12, node(3))]
    assert steps(STOP, *seen) == ["none", "warn", "warn", "warn", "stop_group"]


def test_a_short_dip_stops_nothing() -> None:
    assert steps(STOP, (0, node(3)), (9, node(3)), (10, node(4.5)), (11, node(3)), (20, node(3)))[-1] == "warn"


def test_a_warning_ends_only_clearly_above_its_threshold() -> None:
    seen = [(0, node(4.9)), (1, node(5.5)), (2, node(6.1)), (3, node(5.5))]
    assert steps(STOP, *seen) == ["warn", "warn", "none", "none"]


def test_the_stop_stays_due_until_there_is_clearly_more_memory() -> None:
    seen = [(0, node(3)), (10, node(3)), (600, node(4.5)), (601, node(5.5)), (602, node(6.5)), (603, node(4.5))]
    assert steps(STOP, *seen) == ["warn", "stop_group", "stop_group", "stop_group", "none", "warn"]


def test_waiting_tasks_count_only_while_memory_is_low() -> None:
    # Loading a model through the page cache also makes tasks wait.
    assert steps(STOP, (0, node(50, full=90)), (60, node(50, full=90))) == ["none", "none"]
    assert steps(STOP, (0, node(4.5, full=90)), (10, node(4.5, full=90))) == ["warn", "stop_group"]
    assert steps(STOP, (0, node(4.5, full=19)), (10, node(4.5, full=19))) == ["warn", "warn"]


def test_a_full_page_cache_is_dropped_once_in_a_while() -> None:
    full = node(60, free=2)
    assert steps(DROP, (0, full), (1, full), (10, full)) == ["drop_caches", "none", "drop_caches"]


def test_caches_that_hold_little_are_kept() -> None:
    # A server that has loaded leaves little memory, and dropping its caches would only make it read its files again.
    assert steps(DROP, (0, node(9, free=3)), (20, node(11, free=3))) == ["none", "none"]


def test_a_step_that_is_switched_off_is_never_due() -> None:
    assert steps(Limits(warn=5), (0, node(1, free=0)), (99, node(1, free=0, full=99))) == ["warn", "warn"]
    assert steps(Limits(warn=5), (0, node(90, free=1))) == ["none"]
