# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the suggested variables are a fabric without errors that fits the cables."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import judge, ports_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.suggest import suggest
from cabling_samples import End, cable, facts, ring
from fabric_samples import fabric


def switched(*hosts: int) -> list[tuple[End, ...]]:
    return [tuple((host, 0, half) for host in hosts) for half in (0, 1)]


SHAPES: list[tuple[int, list[tuple[End, ...]], str]] = [
    (1, [], "single"),
    (2, cable((1, 0), (2, 0)), "direct"),
    (2, cable((1, 1), (2, 0)), "direct"),
    (4, switched(1, 2, 3, 4), "switch"),
    (3, [tuple((host, 0, half) for host in (1, 2, 3) for half in (0, 1))], "switch"),
    *((count, ring(count), "ring") for count in range(3, 9)),
    *((count, ring(count)[:-2], "chain") for count in range(3, 9)),
    (3, [*cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (1, 1))], "ring"),
    (4, [*cable((1, 0), (2, 1)), *cable((3, 0), (4, 1))], "mixed"),
    (6, [*switched(1, 2, 3), *switched(4, 5, 6)], "mixed"),
]


@pytest.mark.parametrize(("count", "links", "topology"), SHAPES)
def test_the_suggestion_is_a_plan_that_fits_the_cables(count: int, links: list[tuple[End, ...]], topology: str) -> None:
    ports = ports_of(facts(count, *links))
    found = suggest(ports)
    assert found["group"]["gb10_fabric_topology"] == topology
    variables: dict[str, Any] = {
        host: {**values, **found["group"], **found["hosts"].get(host, {})} for host, values in fabric(count).items()
    }
    plan, findings = plan_fabric(variables)
    wrong = [f.rule for f in [*findings, *judge(ports, plan)] if f.severity == "error" or "unplanned" in f.rule]
    assert wrong == []


@pytest.mark.parametrize(
    ("links", "rails"),
    [
        ([*cable((1, 0), (2, 0)), *cable((1, 1), (2, 1))], 4),
        # NCCL joins devices with the same number, so rails in another order cannot serve
        ([*cable((1, 0), (2, 1)), *cable((1, 1), (2, 0))], 2),
        (cable((1, 0), (2, 0), crossed=True), 1),
    ],
)
def test_two_hosts_get_only_rails_that_nccl_can_join(links: list[tuple[End, ...]], rails: int) -> None:
    found = suggest(ports_of(facts(2, *links)))
    assert (found["group"]["gb10_fabric_topology"], len(found["group"]["gb10_fabric_rails"])) == ("direct", rails)
