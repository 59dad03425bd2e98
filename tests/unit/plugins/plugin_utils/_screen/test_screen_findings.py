# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how findings are shown: each once, its remedy on a line of its own, with the user's file, wrapped."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._screen.findings import counted, render_findings

RANGE = Finding(
    "error",
    "fabric.node_id.range",
    "gb10_node_id",
    300,
    "a /24 subnet of rail0, rail1 has room for 1 … 254",
    "Use a smaller number, or a shorter gb10_fabric_subnet_prefix and a larger block.",
    "spark3",
    place="inventory/mine/hosts.yml:13",
)
OTHER = Finding("warning", "a.b", "key", None, "why?", "Do it.")
TWINS = [
    Finding("error", "x.y", "k", 1, "bad", "Mend it.", host, place=f"host_vars/{host}.yml:1")
    for host in ("a", "b", "a")
]


def test_a_finding_has_a_line_each_for_value_remedy_and_file() -> None:
    assert render_findings([OTHER, RANGE], 120).splitlines() == [
        "error: spark3: gb10_node_id = 300: a /24 subnet of rail0, rail1 has room for 1 … 254.",
        "    Use a smaller number, or a shorter gb10_fabric_subnet_prefix and a larger block. [fabric.node_id.range]",
        "    Set in inventory/mine/hosts.yml:13.",
        "warning: key: why?",
        "    Do it. [a.b]",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_findings_are_wrapped_and_their_words_stay_whole(width: int) -> None:
    lines = render_findings([RANGE, OTHER], width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(render_findings([RANGE, OTHER], 10**6).split())


def test_a_finding_of_several_hosts_is_shown_once() -> None:
    assert render_findings(TWINS).splitlines() == [
        "error: a, b: k = 1: bad.",
        "    Mend it. [x.y]",
        "    Set in host_vars/a.yml:1, host_vars/b.yml:1.",
    ]


def test_findings_are_counted_as_they_are_shown() -> None:
    assert counted([*TWINS, OTHER, OTHER]) == "1 error, 1 warning"
    assert counted([*TWINS, RANGE]) == "2 errors"
    assert (counted([], zero=True), counted([OTHER], zero=True)) == ("0 errors, 0 warnings", "0 errors, 1 warning")
