# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the steps of an update from each phase. The whole way is tested in test_node_update.py."""

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.update import Change, Observed, State, Want, steps

OLD, NEW = "6.17.0-1014-nvidia", "6.17.0-1015-nvidia"
DRIVER = Change("libnvidia-compute-580", "580.95.05-1", "580.126.09-1")
BASH = Change("bash", "5.1-1", "5.2-1")


def observed(phase: Any, boot_id: str = "b1", **given: Any) -> Observed:
    """Return a host whose update is in a phase since boot ``b1``."""
    state = {name: given.pop(name) for name in ("kernel_after", "reboot") if name in given}
    known: dict[str, Any] = {"kernel": OLD, "lines": ("6.17",), "kernels": {OLD: "o", NEW: "n"}}
    return Observed(
        boot_id=boot_id,
        state=State(phase=phase, open=bool(phase), kernel_before=OLD, boot_id="b1", **state),
        **{**known, **given},
    )


ALIKE = {"kernels": {OLD: "o"}}


@pytest.mark.parametrize(
    ("want", "seen", "expected"),
    [
        ("installing", observed("", busy=True), []),
        ("installing", observed("", **ALIKE), []),
        ("installing", observed("", **ALIKE, changes=(BASH,)), ["record", "install"]),
        ("installing", observed("", **ALIKE, unfinished=True), ["record", "install"]),
        ("installing", observed(""), ["record", "default"]),
        ("installing", observed("trial", "b2", kernel_after=NEW), []),
        ("installing", observed("trial", "b2", kernel_after=NEW, changes=(BASH,)), []),
        ("installing", observed("trial", "b2", kernel_after=NEW, retry=True), ["record", "default"]),
        ("installed", observed("installing", busy=True), []),
        ("installed", observed("installing", changes=(BASH,)), []),
        ("installed", observed("installing"), ["record"]),
        ("booted", observed("installing"), []),
        ("booted", observed("installing", kernel_after=NEW), []),
        ("booted", observed("trial"), []),
        ("booted", observed("installed"), ["record"]),
        ("booted", observed("installed", reboot=True), ["record", "reboot"]),
        ("booted", observed("installed", reboot_required=True), ["record", "reboot"]),
        ("booted", observed("installed", "b2", reboot=True), ["record"]),
        ("booted", observed("installed", "b2", kernel_after=NEW), ["record", "once", "reboot"]),
        ("booted", observed("trial", kernel_after=NEW), ["record", "once", "reboot"]),
        ("booted", observed("trial", reboot=True), ["record", "reboot"]),
        ("booted", observed("trial", "b2", kernel_after=NEW), []),
        ("settled", observed("trial", "b2"), ["record"]),
        ("settled", observed("trial", "b2", kernel=NEW, kernel_after=NEW), ["default", "record"]),
        ("settled", observed("returned", "b2", kernel_after=NEW), []),
        ("returned", observed(""), []),
        ("returned", observed("trial"), ["record"]),
        ("returned", observed("trial", kernel_after=NEW), ["record", "default"]),
        ("returned", observed("settled", kernel=NEW, kernel_after=NEW), ["record", "default", "reboot"]),
        ("returned", observed("returned", kernel=NEW, kernel_after=NEW), ["default", "reboot"]),
        ("closed", observed(""), []),
        ("closed", observed("settled"), ["record"]),
    ],
)
def test_each_phase_has_its_next_steps(want: Want, seen: Observed, expected: list[str]) -> None:
    assert [step.action for step in steps(want, seen)] == expected


def test_a_host_that_goes_back_is_in_an_update_again_until_it_is_closed() -> None:
    ended = observed("settled", kernel=NEW, kernel_after=NEW)
    ended = replace(ended, state=replace(ended.state, open=False))
    record, *_others = steps("returned", ended)
    assert record.state and (record.state.phase, record.state.open) == ("returned", True)
    (record,) = steps("closed", replace(ended, state=record.state))
    assert record.state and (record.state.phase, record.state.open) == ("returned", False)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (observed("trial", kernel_after=NEW), "it was not rebooted"),
        (observed("trial", reboot=True), "it was not rebooted"),
        (observed("trial", "b2", reboot=True), ""),
        (observed("trial"), ""),
        (observed("trial", kernel=NEW, kernel_after=NEW), ""),
        (observed("installed", kernel_after=NEW), ""),
        (observed("trial", "b2", kernel_after=NEW), f"it runs kernel {OLD} instead of {NEW}"),
        (observed("trial", "b2", kernel=NEW, kernel_after=NEW), ""),
        (observed("returned", "b2", kernel=NEW, kernel_after=NEW), f"it runs kernel {NEW} instead of {OLD}"),
        (observed("returned", "b2", kernel_after=NEW), ""),
    ],
)
def test_a_host_that_does_not_run_what_was_chosen_says_why(seen: Observed, why: str) -> None:
    assert seen.failure == why


def test_nothing_is_due_on_a_host_that_was_never_updated_and_has_nothing_new() -> None:
    assert not Observed(OLD, "b1", ("6.17",)).due


def test_to_go_back_is_due_where_the_new_kernel_runs() -> None:
    assert observed("settled", kernel=NEW, kernel_after=NEW, back=True).due
    assert not observed("returned", kernel_after=NEW, back=True, changes=(BASH,)).due
    assert observed("settled", kernel=OLD, kernel_after="", changes=(DRIVER,)).due
    (record, *_more) = steps("installing", observed("", **ALIKE, changes=(DRIVER, BASH), hold=("linux-nvidia",)))
    assert (record.state.reboot, record.state.before, record.state.held) == (
        True,
        {"libnvidia-compute-580": "580.95.05-1", "bash": "5.1-1"},
        ("linux-nvidia",),
    )


def test_packages_that_come_during_an_update_belong_to_it() -> None:
    (record, *_more) = steps("installing", observed("", now="today"))
    assert (record.state.begun, record.state.kernel_before, record.state.kernel_after) == ("today", OLD, NEW)
    begun = replace(record.state, phase="trial", before={"bash": "5.0-1"})
    later = Observed(NEW, "b2", ("6.17",), (BASH, DRIVER), now="tomorrow", state=begun)
    (record, *_more) = steps("installing", later)
    assert (record.state.begun, record.state.kernel_before, record.state.kernel_after) == ("today", OLD, NEW)
    assert record.state.before == {"bash": "5.0-1", "libnvidia-compute-580": "580.95.05-1"}


def test_a_kernel_that_did_not_start_is_not_tried_again_by_itself() -> None:
    fell_back = observed("trial", "b2", kernel_after=NEW)
    assert (fell_back.next_kernel, replace(fell_back, retry=True).next_kernel) == ("", NEW)
