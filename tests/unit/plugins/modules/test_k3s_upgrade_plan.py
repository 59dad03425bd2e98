# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from dataclasses import replace

import pytest
from ansible_collections.gb10.cluster.plugins.modules import k3s_upgrade_plan as upgrade
from hypothesis import given
from hypothesis import strategies as st

OLD, NEW = "v1.36.4+k3s1", "v1.36.5+k3s1"
CLUSTER = [
    upgrade.Node("spark1", False, OLD),
    upgrade.Node("control", True, OLD),
    upgrade.Node("spark2", False, OLD),
]


def actions(plan: upgrade.Plan) -> list[str]:
    return [f"{step.action} {step.host}".strip() for step in plan.steps]


def test_servers_first_and_the_group_around_all() -> None:
    plan = upgrade.plan_upgrade(CLUSTER, NEW, group_running=True, group_stopped_by_us=False)
    assert actions(plan) == [
        "stop-group",
        "upgrade control",
        "upgrade spark1",
        "upgrade spark2",
        "start-group",
        "verify",
    ]
    told = plan.as_dict()
    assert told["hosts"] == [step["host"] for step in told["steps"][1:4]] == ["control", "spark1", "spark2"]
    assert told["findings"] == []
    assert told["order"][1] == f"2. control: drain, {OLD} -> {NEW}, wait until ready, uncordon"


def test_without_a_model_only_the_nodes() -> None:
    plan = upgrade.plan_upgrade(CLUSTER, NEW, group_running=False, group_stopped_by_us=False)
    assert actions(plan) == ["upgrade control", "upgrade spark1", "upgrade spark2"]


def test_nothing_to_do_touches_no_model() -> None:
    assert upgrade.plan_upgrade(CLUSTER, OLD, group_running=True, group_stopped_by_us=False).steps == ()


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("v1.38.0+k3s1", "upgrade.skips_minor"),
        ("v2.0.0+k3s1", "upgrade.skips_minor"),
        ("v1.36.3+k3s1", "upgrade.downgrade"),
        ("v1.35.9+k3s2", "upgrade.downgrade"),
    ],
)
def test_what_is_refused(target: str, rule: str) -> None:
    plan = upgrade.plan_upgrade(CLUSTER, target, group_running=True, group_stopped_by_us=False)
    assert plan.steps == ()
    assert [(finding.rule, finding.where) for finding in plan.findings] == [
        (rule, "spark1"),
        (rule, "control"),
        (rule, "spark2"),
    ]
    assert [told["where"] for told in plan.as_dict()["findings"]] == ["spark1", "control", "spark2"]


def test_a_target_that_is_no_version_is_refused_even_without_hosts() -> None:
    with pytest.raises(ValueError, match="latest"):
        upgrade.plan_upgrade([], "latest", group_running=False, group_stopped_by_us=False)


def test_the_next_minor_is_fine() -> None:
    assert not upgrade.plan_upgrade(CLUSTER, "v1.37.0+k3s1", group_running=False, group_stopped_by_us=False).findings


def test_a_host_outside_the_cluster_is_named() -> None:
    plan = upgrade.plan_upgrade(
        [*CLUSTER, upgrade.Node("spark9", False, "")], NEW, group_running=True, group_stopped_by_us=False
    )
    assert [(finding.rule, finding.where) for finding in plan.findings] == [("upgrade.not_installed", "spark9")]


def test_resume_after_the_group_was_stopped() -> None:
    plan = upgrade.plan_upgrade(CLUSTER, NEW, group_running=False, group_stopped_by_us=True)
    assert actions(plan)[0] == "upgrade control"
    assert actions(plan)[-2:] == ["start-group", "verify"]


def test_resume_between_binary_and_restart() -> None:
    half = [replace(CLUSTER[1], installed=NEW, stale=True, marked=True), CLUSTER[0]]
    plan = upgrade.plan_upgrade(half, NEW, group_running=False, group_stopped_by_us=True)
    assert actions(plan) == ["upgrade control", "upgrade spark1", "start-group", "verify"]


def test_resume_before_uncordon_and_before_the_group_s_start() -> None:
    done = [replace(node, installed=NEW) for node in CLUSTER]
    done[2] = replace(done[2], marked=True)
    plan = upgrade.plan_upgrade(done, NEW, group_running=False, group_stopped_by_us=True)
    assert actions(plan) == ["release spark2", "start-group", "verify"]
    # A person has started the group meanwhile: it is stopped again only for an upgrade.
    plan = upgrade.plan_upgrade(done, NEW, group_running=True, group_stopped_by_us=True)
    assert actions(plan) == ["release spark2", "start-group", "verify"]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_an_upgrade_completes_wherever_it_was_interrupted(
    states: list[tuple[bool, bool, bool, bool]], running: bool, stopped: bool
) -> None:
    nodes = [
        upgrade.Node(f"h{index}", server, NEW if new else OLD, stale, marked)
        for index, (server, new, stale, marked) in enumerate(states)
    ]
    plan = upgrade.plan_upgrade(nodes, NEW, group_running=running, group_stopped_by_us=stopped)
    kinds = [nodes[int(step.host[1:])].server for step in plan.steps if step.host]
    assert kinds == sorted(kinds, reverse=True)
    if stopped or (running and any(step.action == "upgrade" for step in plan.steps)):
        assert [step.action for step in plan.steps[-2:]] == ["start-group", "verify"]
    finished = [replace(node, installed=NEW, stale=False, marked=False) for node in nodes]
    assert upgrade.plan_upgrade(finished, NEW, group_running=running, group_stopped_by_us=False).steps == ()


def test_marks_and_instances_are_read_from_the_cluster() -> None:
    hosts = [
        {"host": "control", "node": "c0", "server": True, "installed": OLD, "stale": False},
        {"host": "spark1", "node": "s1", "server": False, "installed": NEW, "stale": True},
    ]
    cluster_nodes = [
        {"metadata": {"name": "s1"}},
        {"metadata": {"name": "c0", "annotations": {"gb10.cluster/upgrade": NEW}}},
    ]
    assert upgrade.read_nodes(hosts, cluster_nodes) == [
        upgrade.Node("control", True, OLD, False, True),
        upgrade.Node("spark1", False, NEW, True, False),
    ]
    pods = [{"metadata": {"labels": {"gb10.cluster/instance": name}}} for name in ("b", "a", "b")] + [{"metadata": {}}]
    assert upgrade.running_instances(pods) == ["a", "b"]
