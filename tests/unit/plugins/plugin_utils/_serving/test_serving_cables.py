# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test groups whose nodes are cabled without a switch: networks, environment, rendezvous, and what NCCL cannot do."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Cable, Plan, Rendezvous
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.nccl_env import lint_env
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from fabric_samples import fabric as fabric_of
from ring_samples import cabled_plan
from serving_samples import profile, settings

NEW = "2.30.7"


def group(
    fabric: dict[str, Any], *nodes: int, tp: int | None = None, nccl: str = NEW, **changes: Any
) -> tuple[Plan, list[Finding]]:
    size = len(nodes)
    tp = tp or size
    of_profile = {key: changes.pop(key) for key in ("env",) if key in changes}
    given = profile(nodes=size, tp=tp, pp=size // tp, nccl=nccl, **of_profile)
    return plan_group(fabric, given, settings(nodes=tuple(f"spark{node}" for node in nodes), **changes))


def rules(findings: list[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


def meeting_labels(plan: Plan) -> set[str | None]:
    """Return the values of the label by which the pods of a group are admitted to each other."""
    workloads = [o for o in render(plan, PodOptions(), {}, {}) if o["kind"] == "StatefulSet"]
    return {o["spec"]["template"]["metadata"]["labels"].get("gb10.cluster/meeting") for o in workloads}


def test_a_ring_of_three_serves_over_the_cables_of_each_rank() -> None:
    plan, findings = group(cabled_plan(3), 1, 2, 3)
    assert rules(findings) == ["serving.rendezvous.pod_network"]
    head = plan.ranks[0]
    assert [(n.interface, n.name, n.address) for n in head.networks] == [
        ("net1", "gb10-ring12a-vf0", "10.101.0.1/24"),
        ("net2", "gb10-ring12b-vf0", "10.151.0.1/24"),
        ("net3", "gb10-ring31a-vf0-enp1s0f1", "10.103.0.1/24"),
        ("net4", "gb10-ring31b-vf0-enp2p1s0f1", "10.153.0.1/24"),
    ]
    assert (
        head.env.items()
        >= {
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_IB_HCA": "=rocep1s0f0v0,roceP2p1s0f0v0,rocep1s0f1v0,roceP2p1s0f1v0",
            "NCCL_IB_MERGE_NICS": "0",
            "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
            "NCCL_IB_SUBNET_PREFIX_LEN": "24",
            "NCCL_NET_PLUGIN": "none",
            "NCCL_SOCKET_IFNAME": "=eth0",
        }.items()
    )
    assert not {"NCCL_ALGO", "NCCL_CUMEM_ENABLE", "SGLANG_HOST_IP"} & head.env.keys()
    assert (plan.expect.networks, plan.expect.min_devices) == (("IB",), 1)
    assert plan.cables[:2] == (
        Cable(0, 1, ("rocep1s0f0v0", "roceP2p1s0f0v0")),
        Cable(0, 2, ("rocep1s0f1v0", "roceP2p1s0f1v0")),
    )
    assert len(plan.cables) == 6
    assert Plan.from_dict(plan.as_dict()) == plan


def test_ranks_without_a_common_rail_meet_at_a_name_of_the_head_on_the_pod_network() -> None:
    plan = group(cabled_plan(3), 1, 2, 3)[0]
    name = "gemma-4-31b-it-ranks"
    assert plan.rendezvous == Rendezvous(f"{name}.gb10-serving.svc", 20000, name)
    assert f"{name}.gb10-serving.svc:20000" in plan.ranks[2].argv
    services = {o["metadata"]["name"]: o["spec"] for o in render(plan, PodOptions(), {}, {}) if o["kind"] == "Service"}
    assert services.keys() == {name, "gemma-4-31b-it", "gemma-4-31b-it-pods"}
    assert (services[name]["clusterIP"], services[name]["publishNotReadyAddresses"]) == ("None", True)
    assert services[name]["selector"] == services["gemma-4-31b-it"]["selector"]
    # the namespace's policy lets these pods reach each other
    assert meeting_labels(plan) == {"pod-network"}
    flat = group(cabled_plan(3), 1, 2)[0]
    assert len([o for o in render(flat, PodOptions(), {}, {}) if o["kind"] == "Service"]) == 2
    assert meeting_labels(flat) == {None}


@pytest.mark.parametrize("fabric", [cabled_plan(3), cabled_plan(6), cabled_plan(4, closed=False)])
def test_two_neighbours_are_a_direct_pair_for_any_nccl(fabric: dict[str, Any]) -> None:
    plan, findings = group(fabric, 2, 3, nccl="2.29.7")
    assert findings == []
    assert plan.rendezvous == Rendezvous("10.102.0.2", 20000)
    assert [n.rdma_device for n in plan.ranks[1].networks] == ["rocep1s0f1v0", "roceP2p1s0f1v0"]
    assert (plan.expect.networks, plan.expect.min_devices, plan.cables) == (("IB", "IBext*"), 2, ())
    assert "NCCL_IB_SUBNET_AWARE_ROUTING" not in plan.ranks[0].env


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8])
def test_a_ring_of_four_or_more_uses_the_ring_algorithm_in_cable_order(count: int) -> None:
    plan, findings = group(cabled_plan(count), *range(1, count + 1))
    assert rules(findings) == ["serving.rendezvous.pod_network"]
    for rank in plan.ranks:
        assert (rank.env["NCCL_ALGO"], rank.env["NCCL_CUMEM_ENABLE"]) == ("Ring", "1")
        assert not [f for f in lint_env(rank.env, expect_rdma=True, hcas=[], netdevs=[]) if f.severity == "error"]
    assert {(cable.rank, cable.peer) for cable in plan.cables} == {
        pair for rank in range(count) for pair in ((rank, (rank + 1) % count), ((rank + 1) % count, rank))
    }


def test_a_pipeline_round_the_ring_does_not_prove_its_way_back() -> None:
    plan = group(cabled_plan(4), 1, 2, 3, 4, tp=1)[0]
    assert {(cable.rank, cable.peer) for cable in plan.cables} == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}


def test_an_order_that_is_not_that_of_the_cables_is_refused_with_one_that_is() -> None:
    plan, (path, *_more) = group(cabled_plan(4), 1, 3, 2, 4)
    assert plan.ranks == ()
    assert path.rule == "serving.cable.path"
    assert "spark1 and spark3 share no cable" in path.reason
    assert "Set serving_plan_nodes to [spark1, spark2, spark3, spark4]" in path.remedy


@pytest.mark.parametrize(
    ("fabric", "nodes", "options", "rule"),
    [
        (cabled_plan(4, closed=False), (1, 2, 3, 4), {}, "serving.cable.path"),
        (cabled_plan(3, closed=False), (1, 2, 3), {}, "serving.cable.path"),
        (cabled_plan(6), (1, 2, 3), {}, "serving.cable.path"),
        (cabled_plan(6), (1, 3), {}, "serving.cable.path"),
        (cabled_plan(4), (1, 2, 3, 4), {"tp": 2}, "serving.cable.groups"),
        (cabled_plan(3), (1, 2, 3), {"nccl": "2.30.4"}, "serving.cable.nccl"),
        (cabled_plan(3), (1, 2, 3), {"env": {"NCCL_NET_PLUGIN": "libnccl-net.so"}}, "serving.env.cable"),
        (cabled_plan(4, cages=(0, 1)), (1, 2, 3, 4), {"env": {"NCCL_ALGO": "Tree"}}, "serving.env.cable"),
    ],
)
def test_what_nccl_cannot_do_is_refused(
    fabric: dict[str, Any], nodes: tuple[int, ...], options: dict[str, Any], rule: str
) -> None:
    plan, findings = group(fabric, *nodes, **options)
    assert (plan.ranks, rules([f for f in findings if f.severity == "error"])) == ((), [rule])


def exchange(fabric: dict[str, Any], host: str) -> None:
    """Exchange the cages of a host."""
    names = {"rocep1s0f0v": "rocep1s0f1v", "roceP2p1s0f0v": "roceP2p1s0f1v"}
    names |= {other: name for name, other in names.items()}
    for vf in fabric["hosts"][host]["vfs"]:
        vf["rdma_device"] = names[vf["rdma_device"][:-1]] + vf["rdma_device"][-1]


def alike(count: int) -> dict[str, Any]:
    """Return a ring of which each cable joins the same cages of its hosts."""
    fabric = cabled_plan(count, cages=(1, 0))
    for number in range(2, count + 1, 2):
        exchange(fabric, f"spark{number}")
    return fabric


def test_a_cable_between_the_same_cages_is_refused_in_a_ring_and_served_between_two() -> None:
    fabric = cabled_plan(3)
    exchange(fabric, "spark2")
    plan, findings = group(fabric, 1, 2, 3)
    wrong = [finding for finding in findings if finding.severity == "error"]
    assert (plan.ranks, {finding.rule for finding in wrong}) == ((), {"serving.cable.cage"})
    assert {finding.key for finding in wrong} == {"spark1 and spark2", "spark2 and spark3"}
    assert group(fabric, 1, 2)[1] == []


@pytest.mark.parametrize("count", [4, 6])
def test_a_ring_whose_cables_all_join_the_same_cages_takes_the_ports_of_a_nic_as_one(count: int) -> None:
    fabric = alike(count)
    for vf in fabric["hosts"]["spark3"]["vfs"]:
        vf["rdma_device"] = f"mlx5_{vf['rail_index']}" if vf["vf_index"] else vf["rdma_device"]
    plan, findings = group(fabric, *range(1, count + 1))
    assert [(f.rule, f.severity) for f in findings] == [
        ("serving.cable.merged", "warning"),
        ("serving.rendezvous.pod_network", "info"),
    ]
    assert {rank.env["NCCL_IB_MERGE_NICS"] for rank in plan.ranks} == {"1"}
    assert {rank.env["NCCL_IB_SUBNET_AWARE_ROUTING"] for rank in plan.ranks} == {"1"}
    # The counters of both ends of each cable prove it, whatever NCCL calls the joined device.
    assert len(plan.cables) == 2 * count
    assert plan.cables[0] == Cable(0, 1, ("rocep1s0f1v0", "roceP2p1s0f1v0"))


def test_a_ring_with_one_such_cable_or_with_other_names_is_not_served_by_it() -> None:
    mixed = alike(4)
    exchange(mixed, "spark1")
    unnamed = alike(4)
    for vf in unnamed["hosts"]["spark3"]["vfs"]:
        vf["rdma_device"] = f"mlx5_{vf['rail_index']}"
    for fabric in (mixed, unnamed):
        plan, findings = group(fabric, 1, 2, 3, 4)
        assert (plan.ranks, "serving.cable.cage" in rules(findings)) == ((), True)


@pytest.mark.parametrize("crossed_cages", [True, False])
def test_two_cables_between_two_nodes_must_join_the_same_cages(crossed_cages: bool) -> None:
    variables = fabric_of(2)
    rails = [("c0", "enp1s0f0np0"), ("c1", "enp1s0f1np1")]
    for number, own in enumerate(variables.values()):
        own["gb10_fabric_rails"] = [
            {"name": name, "pf": pf, "network": f"10.10{index}.0.0/16"} for index, (name, pf) in enumerate(rails)
        ]
        if number and crossed_cages:
            own["gb10_fabric_pfs"] = {"c0": "enp1s0f1np1", "c1": "enp1s0f0np0"}
    fabric = {**plan_fabric(variables)[0].as_dict(), "findings": []}
    findings = group(fabric, 1, 2)[1]
    assert rules(findings) == ["serving.cable.order"] * crossed_cages
    assert group(fabric, 1, 2, transport="socket")[1] == []


def test_a_half_without_a_cable_gives_ranks_different_numbers_of_devices() -> None:
    fabric = cabled_plan(3)
    for host in ("spark1", "spark2"):
        fabric["hosts"][host]["vfs"] = [vf for vf in fabric["hosts"][host]["vfs"] if vf["rail"] != "ring12b"]
    findings = group(fabric, 1, 2, 3)[1]
    assert rules(findings)[0] == "serving.cable.devices"
    assert findings[0].value == {"spark1": 3, "spark2": 3, "spark3": 4}


def test_tcp_needs_no_cable() -> None:
    plan, findings = group(cabled_plan(4, closed=False), 1, 2, 3, 4, tp=2, nccl="2.29.7", transport="socket")
    assert rules(findings) == ["serving.rendezvous.pod_network"]
    assert (plan.ranks[1].env["NCCL_NET"], plan.ranks[1].env["NCCL_SOCKET_IFNAME"]) == ("Socket", "=eth0")
    assert (plan.expect.networks, plan.cables) == (("Socket",), ())


def test_nodes_on_a_switch_use_it_although_two_have_a_cable_too() -> None:
    fabric = cabled_plan(3)
    for number, host in enumerate(fabric["hosts"].values(), start=1):
        for index in (0, 1):
            host["vfs"].append(
                {"rail": "switch", "rail_index": 9, "vf_index": index, "rdma_device": f"mlx5_0v{index}", "prefix": 24}
                | {"address": f"10.200.{index}.{number}", "nad": f"gb10-switch-vf{index}", "netdev": f"eth1v{index}"}
            )
    plan, findings = group(fabric, 1, 2, 3, nccl="2.29.7")
    assert findings == []
    assert [n.name for n in plan.ranks[2].networks] == ["gb10-switch-vf0"]
    assert plan.expect.min_devices == 1
