# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the plans of a fallback, its mistakes, and what its switch has kept."""

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import Status
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import plan as planning
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import Fallback, kept, plan_fallback
from ring_samples import cabled_plan
from serving_samples import fabric, profile, settings

TWO = {"preset": "two-nodes", "nodes": 2, "tp": 2}


def planned(
    of_profile: dict[str, Any] | None = None, of_fabric: dict[str, Any] | None = None, **of_settings: Any
) -> tuple[Fallback, list[Finding]]:
    two = profile(**{**TWO, **(of_profile or {})})
    return plan_fallback(of_fabric or fabric(), two, profile(), settings(**of_settings), 600, 300)


def nodes(fallback: Fallback) -> dict[str, list[str]]:
    return {name: [rank.node for rank in plan.ranks] for name, plan in fallback.plans.items()}


def rules(findings: list[Finding]) -> list[str]:
    return sorted(finding.rule for finding in findings)


def test_there_is_a_set_for_the_loss_of_each_node_and_then_every_other_one() -> None:
    fallback, findings = planned()
    assert findings == []
    assert nodes(fallback) == {
        "f2-1": ["spark2", "spark3"],
        "f2-2": ["spark1", "spark3"],
        "f2-3": ["spark1", "spark2"],
        "f2-4": ["spark1", "spark4"],
        "f2-5": ["spark2", "spark4"],
        "f2-6": ["spark3", "spark4"],
    }
    three, _findings = planned({"preset": "three-nodes", "nodes": 3, "tp": 3})
    assert len(nodes(three)) == 4


def test_a_large_group_has_only_the_sets_for_the_loss_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_SETS", 5)
    assert list(nodes(planned()[0])) == ["f2-1", "f2-2", "f2-3"]


def test_its_ranks_have_names_of_their_own_behind_the_same_service() -> None:
    plan = planned()[0].plans["f2-2"]
    assert [rank.name for rank in plan.ranks] == ["gemma-4-31b-it-f2-2-0", "gemma-4-31b-it-f2-2-1"]
    assert [rank.pod for rank in plan.ranks] == ["gemma-4-31b-it-f2-2-0-0", "gemma-4-31b-it-f2-2-1-0"]
    assert (plan.instance, plan.service.name) == ("gemma-4-31b-it", "gemma-4-31b-it")
    assert plan.ranks[1].networks[0].address == "10.100.0.3/24"
    assert plan.expect.nodes == 2


def test_the_running_group_is_no_obstacle_and_another_group_s_node_is_avoided() -> None:
    held = [{"instance": "gemma-4-31b-it", "node": "spark2", "vf_index": 0}]
    assert nodes(planned(taken=tuple(held))[0])["f2-1"] == ["spark2", "spark3"]
    held.append({"instance": "other", "node": "spark2", "vf_index": 0})
    fallback, findings = planned(taken=tuple(held))
    assert findings == []
    assert nodes(fallback) == {"f2-1": ["spark3", "spark4"], "f2-2": ["spark1", "spark3"], "f2-3": ["spark1", "spark4"]}


def test_in_a_ring_only_neighbours_are_a_set() -> None:
    ring_of_four = cabled_plan(4)
    fallback, findings = planned(of_fabric=ring_of_four)
    assert not [finding for finding in findings if finding.severity == "error"]
    order = ["spark1", "spark2", "spark3", "spark4"]
    for pair in nodes(fallback).values():
        apart = abs(order.index(pair[0]) - order.index(pair[1]))
        assert apart in (1, 3)


def test_all_mistakes_are_found_at_once() -> None:
    same = profile(sglang_version="0.5.21", image="other", models=("m",), revisions={"m": "v2"})
    main = profile(models=("m",), revisions={"m": "v1"})
    fallback, findings = plan_fallback(fabric(), same, main, settings(), 1, 5)
    assert rules(findings) == [
        f"serving.fallback.{rule}" for rule in ("image", "nodes", "revision", "seconds", "seconds")
    ]
    assert all(finding.severity == "error" for finding in findings)
    assert fallback.plans == {}


def test_a_mistake_of_the_profile_names_the_loss_that_it_is_about() -> None:
    fallback, findings = planned({"tp": 3})
    assert set(rules(findings)) == {"serving.topology.world"}
    assert any("fallback without spark1" in finding.where for finding in findings)
    assert fallback.plans == {}


def test_the_fact_is_read_back() -> None:
    fallback = planned()[0]
    assert Fallback.from_dict(fallback.as_dict()) == fallback


@pytest.mark.parametrize(
    ("status", "serving", "text"),
    [
        (None, "", ""),
        ("", "", "Fallback: its switch has not started yet."),
        (Status(), "", "Fallback: not in use; the planned preset serves."),
        (
            Status("f1", "NodeLost", "preset two serves on a, b", 60.0),
            "f1",
            "Fallback: in use since 1970-01-01 00:01:00 UTC: preset two serves on a, b [NodeLost].",
        ),
        (
            replace(Status(), reason="NoFallbackFits", message="gone: a, b"),
            "",
            "Fallback: not in use since 1970-01-01 00:00:00 UTC: gone: a, b [NoFallbackFits].",
        ),
    ],
)
def test_what_the_switch_has_kept(status: Status | str | None, serving: str, text: str) -> None:
    data = status.as_json() if isinstance(status, Status) else status
    found = [] if data is None else [{"data": {"status": data} if data else None}]
    assert kept(found) == {"set": serving, "text": text}
