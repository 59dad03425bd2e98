# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from dataclasses import replace

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    format_findings,
    has_errors,
    sort_findings,
)

WARNING = Finding("warning", "a.b", "mtu", 1500, "smaller than planned", "Set gb10_fabric_mtu.", where="spark1")
ERROR = Finding("error", "c.d", "pf", None, "no such device", "Check gb10_fabric_pfs.")


def test_errors_come_first_and_decide() -> None:
    assert sort_findings([WARNING, ERROR]) == [ERROR, WARNING]
    assert has_errors([WARNING, ERROR])
    assert not has_errors([WARNING])


def test_a_line_names_place_key_value_reason_remedy_and_rule() -> None:
    assert format_findings([WARNING]) == (
        "warning: spark1: mtu = 1500: smaller than planned. Set gb10_fabric_mtu. [a.b]"
    )
    assert format_findings([]) == ""


def test_a_finding_of_several_places_is_one_line() -> None:
    again = replace(WARNING, where="spark2")
    (line,) = format_findings([WARNING, again, WARNING]).splitlines()
    assert line.startswith("warning: spark1, spark2: mtu = 1500: ")
    assert len(format_findings([WARNING, replace(again, value=[1])]).splitlines()) == 2


def test_a_value_that_fills_pages_is_cut() -> None:
    text = str(Finding("error", "a.b", "k" * 3000, "v" * 3_000_000, "r" * 3000, "m" * 3000))
    assert len(text) < 3000
    assert "(3000002 characters)" in text
