# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which hosts share which rails, and that a further host moves nobody's address."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import model
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import format_plan, plan_fabric
from fabric_samples import fabric
from hypothesis import given
from hypothesis import strategies as st
from ring_samples import cabled, cabled_plan

RAILS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from(["r0", "r1", "r2", "r3"]), unique=True).map(sorted), min_size=1
)


def rules(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


@given(RAILS, st.data())
def test_sharing_is_mutual(rails: dict[str, list[str]], data: st.DataObject) -> None:
    one, two = (data.draw(st.sampled_from(sorted(rails))) for _end in range(2))
    assert model.shared_rails(rails, one, two) == model.shared_rails(rails, two, one)
    assert set(model.shared_rails(rails, one, two)) == set(rails[one]) & set(rails[two])
    if one != two:
        assert (two in model.neighbours(rails, one)) == ((one, two) not in model.unlinked(rails, [one, two]))


@given(RAILS)
def test_a_ring_order_joins_every_host_to_the_next(rails: dict[str, list[str]]) -> None:
    order = model.ring_order(rails, list(rails))
    if order is not None:
        assert sorted(order) == sorted(rails)
        assert all(model.shared_rails(rails, one, two) for one, two in zip(order, [*order[1:], order[0]], strict=True))


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("count", range(3, 9))
def test_rings_and_chains_of_three_to_eight_are_planned(count: int, closed: bool) -> None:
    plan = cabled_plan(count, closed=closed)
    assert plan["findings"] == []
    rails = model.plan_rails(plan)
    assert model.connected(rails)
    assert model.shared_rails(rails, "spark1", "spark2") == ("ring12a", "ring12b")
    assert len(model.neighbours(rails, "spark1")) == (2 if closed else 1)
    assert (model.ring_order(rails, list(rails)) is not None) is closed
    assert bool(model.shared_rails(rails, "spark1", f"spark{count}")) is closed
    missing = model.unlinked(rails, list(rails))
    assert len(missing) == count * (count - 1) // 2 - (count if closed else count - 1)


@given(st.integers(4, 8), st.data())
def test_a_further_host_moves_no_address(count: int, data: st.DataObject) -> None:
    closed = data.draw(st.booleans())
    before = plan_fabric(cabled(count - 1, closed=False))[0]
    after = plan_fabric(cabled(count, closed=closed))[0]
    for name, host in before.hosts.items():
        kept = {(vf.rail, vf.vf_index): (vf.address, vf.mac, vf.netdev, vf.nad) for vf in after.hosts[name].vfs}
        for vf in host.vfs:
            assert kept[vf.rail, vf.vf_index] == (vf.address, vf.mac, vf.netdev, vf.nad)


def without(variables: dict[str, dict[str, Any]], *rails: str) -> dict[str, dict[str, Any]]:
    for values in variables.values():
        values["gb10_fabric_rails"] = [r for r in values["gb10_fabric_rails"] if r["name"] not in rails]
        values["gb10_fabric_pfs"] = {k: v for k, v in values["gb10_fabric_pfs"].items() if k not in rails}
    return variables


def test_a_shape_that_the_cables_do_not_have_is_refused() -> None:
    assert "fabric.topology.ring" in rules(plan_fabric(cabled(9))[1])
    assert "fabric.topology.ring" in rules(plan_fabric(fabric(2, gb10_fabric_topology="chain"))[1])
    assert "fabric.topology.open_ring" in rules(plan_fabric(cabled(4, gb10_fabric_topology="chain"))[1])
    assert "fabric.topology.open_ring" in rules(plan_fabric(cabled(4, closed=False, gb10_fabric_topology="ring"))[1])
    torn = without(cabled(5), "ring34a", "ring34b")
    assert "fabric.topology.open_ring" in rules(plan_fabric(torn)[1])


def test_two_rings_are_mixed_and_not_one_ring() -> None:
    two = {}
    for name, values in cabled(6).items():
        ends = {"ring34": ("spark3", "spark1"), "ring61": ("spark6", "spark4")}
        rails = [{**rail, "hosts": ends.get(rail["name"][:-1], rail["hosts"])} for rail in values["gb10_fabric_rails"]]
        two[name] = {**values, "gb10_fabric_rails": rails}
    for far in ("spark1", "spark4"):
        moved = two[far]["gb10_fabric_pfs"]
        for half in "ab":
            cable = f"ring{'34' if far == 'spark1' else '61'}{half}"
            moved[cable] = moved.pop(f"ring{'61' if far == 'spark1' else '34'}{half}")
    found = [finding for finding in plan_fabric(two)[1] if finding.severity == "error"]
    assert [(finding.rule, "several rings" in finding.reason) for finding in found] == [
        ("fabric.topology.open_ring", True)
    ]
    plan, findings = plan_fabric({name: {**values, "gb10_fabric_topology": "mixed"} for name, values in two.items()})
    assert findings == []
    assert "no cable: spark1 and spark4;" in format_plan(plan)


def test_the_plan_shows_the_cables_of_a_ring_and_not_of_a_switch() -> None:
    shown = format_plan(plan_fabric(cabled(4))[0])
    assert "spark1 and spark2: ring12a, ring12b" in shown
    assert "no cable: spark1 and spark3; spark2 and spark4" in shown
    assert "spark1 and spark2" not in format_plan(plan_fabric(fabric(4))[0])
    assert "spark1 and spark2" not in format_plan(plan_fabric(cabled(9))[0]), "36 pairs would bury the plan"
