# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later

import json
import time
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import rdma_name, vf_netdev
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import Plan, vf_mac
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import _some, format_plan, plan_fabric
from fabric_samples import Variables, fabric, ring
from ring_samples import cabled, many_rings


def plan(variables: Variables) -> Plan:
    planned, findings = plan_fabric(variables)
    assert [str(f) for f in findings] == []
    return planned


@pytest.mark.parametrize(
    ("pf", "netdev", "rdma"),
    [
        ("enp1s0f0np0", "enp1s0f0v0", "rocep1s0f0"),
        ("enP2p1s0f1np1", "enP2p1s0f1v0", "roceP2p1s0f1"),
        ("enp1s0", "enp1s0v0", "rocep1s0"),
        ("ens1f0np0", "ens1f0v0", "roces1f0"),
        ("ib0", "ib0v0", None),
    ],
)
def test_names_follow_from_the_pf(pf: str, netdev: str, rdma: str | None) -> None:
    assert vf_netdev(pf, 0) == netdev
    assert rdma_name(pf) == rdma


def test_a_vf_has_everything_the_roles_need() -> None:
    result = plan(fabric()).as_dict()
    assert result["hosts"]["spark3"]["pfs"][1] == {
        "rail": "rail1",
        "rail_index": 1,
        "name": "enP2p1s0f0np0",
        "rdma_device": "roceP2p1s0f0",
        "vf_count": 4,
        "mtu": 9000,
        "address": None,
        "prefix": None,
        "routes": [],
    }
    assert result["hosts"]["spark3"]["vfs"][5] == {
        "rail": "rail1",
        "rail_index": 1,
        "vf_index": 1,
        "pf": "enP2p1s0f0np0",
        "netdev": "enP2p1s0f0v1",
        "rdma_device": "roceP2p1s0f0v1",
        "mac": vf_mac("gb10", "rail1", 3, 1),
        "address": "10.101.1.3",
        "prefix": 24,
        "address6": None,
        "prefix6": None,
        "nad": "gb10-rail1-vf1",
    }
    assert result["networks"][5] == {
        "nad": "gb10-rail1-vf1",
        "rail": "rail1",
        "rail_index": 1,
        "vf_index": 1,
        "device": "enP2p1s0f0v1",
        "subnet": "10.101.1.0/24",
        "subnet6": None,
    }
    assert len(result["networks"]) == 8
    assert json.loads(json.dumps(result)) == result


def test_macs_are_local_and_unicast() -> None:
    first = int(vf_mac("gb10", "rail0", 1, 0).split(":", maxsplit=1)[0], 16)
    assert first & 0b10, "locally administered"
    assert not first & 0b01, "not multicast"
    assert vf_mac("gb10", "rail0", 1, 0) != vf_mac("other", "rail0", 1, 0)


def test_another_cage_is_data_and_gets_its_own_nad() -> None:
    variables = fabric()
    variables["spark4"]["gb10_fabric_pfs"] = {"rail0": "enp1s0f1np1"}
    planned = plan(variables)
    assert planned.hosts["spark4"].vfs[0].netdev == "enp1s0f1v0"
    assert planned.hosts["spark4"].vfs[0].nad == "gb10-rail0-vf0-enp1s0f1"
    assert planned.hosts["spark4"].vfs[0].address == "10.100.0.4"
    assert {n.nad: n.device for n in planned.networks}["gb10-rail0-vf0-enp1s0f1"] == "enp1s0f1v0"


def test_a_declared_rdma_device_is_used() -> None:
    variables = fabric()
    variables["spark1"]["gb10_fabric_pfs"] = {"rail0": {"name": "enp1s0f0np0", "rdma_device": "mlx5_0"}}
    for values in variables.values():
        values["gb10_fabric_rails"][1]["pf_rdma"] = "mlx5_1"
    host = plan(variables).hosts["spark1"]
    assert [pf.rdma_device for pf in host.pfs] == ["mlx5_0", "mlx5_1"]
    assert host.vfs[0].rdma_device == "mlx5_0v0"


def test_vf_count_auto_is_what_each_host_offers() -> None:
    variables = fabric(2)
    variables["spark2"]["gb10_pf_totalvfs"]["enp1s0f0np0"] = 2
    planned, findings = plan_fabric(variables)
    assert [pf.vf_count for pf in planned.hosts["spark1"].pfs] == [4, 4]
    assert [pf.vf_count for pf in planned.hosts["spark2"].pfs] == [2, 4]
    assert [(f.severity, f.rule) for f in findings] == [("info", "fabric.vf_count.uneven")]


def test_one_subnet_per_rail_gives_vf_indices_different_addresses() -> None:
    planned = plan(fabric(gb10_fabric_scheme="subnet-per-rail"))
    assert [vf.address for vf in planned.hosts["spark2"].vfs[:3]] == ["10.100.0.2", "10.100.1.2", "10.100.2.2"]
    assert {vf.prefix for vf in planned.hosts["spark2"].vfs} == {16}
    assert {n.subnet for n in planned.networks} == {"10.100.0.0/16", "10.101.0.0/16"}


@pytest.mark.parametrize(
    ("scheme", "addresses"),
    [
        ("subnet-per-vf", ["fd00:10:100::3", "fd00:10:100:1::1:3"]),
        ("subnet-per-rail", ["fd00:10:100::3", "fd00:10:100::1:3"]),
    ],
)
def test_ipv6_addresses_are_added_to_ipv4_addresses(scheme: str, addresses: list[str]) -> None:
    variables = fabric(gb10_fabric_scheme=scheme, gb10_fabric_vf_count=2)
    for values in variables.values():
        values["gb10_fabric_rails"][0]["network6"] = "fd00:10:100::/48"
    planned = plan(variables)
    assert [vf.address6 for vf in planned.hosts["spark3"].vfs[:2]] == addresses
    assert planned.hosts["spark3"].vfs[0].prefix6 == 64
    assert planned.hosts["spark3"].vfs[2].address6 is None
    assert planned.networks[0].subnet6 == "fd00:10:100::/64"


def test_a_ring_has_a_subnet_for_every_cable_and_half() -> None:
    planned = plan(ring())
    spark2 = planned.hosts["spark2"]
    assert [(pf.rail, pf.name) for pf in spark2.pfs] == [
        ("ring12a", "enp1s0f1np1"),
        ("ring12b", "enP2p1s0f1np1"),
        ("ring23a", "enp1s0f0np0"),
        ("ring23b", "enP2p1s0f0np0"),
    ]
    assert [vf.address for vf in spark2.vfs if vf.vf_index == 0] == [
        "10.112.0.2",
        "10.162.0.2",
        "10.123.0.2",
        "10.173.0.2",
    ]
    assert len({vf.address for host in planned.hosts.values() for vf in host.vfs}) == 3 * 4 * 4


def test_single_and_direct_and_the_largest_switch() -> None:
    assert plan(fabric(1, gb10_fabric_topology="single")).hosts["spark1"].vfs[0].address == "10.100.0.1"
    assert len(plan(fabric(2, gb10_fabric_topology="direct")).hosts) == 2
    assert plan(fabric(254)).hosts["spark254"].vfs[-1].address == "10.101.3.254"
    assert plan(fabric(300, gb10_fabric_subnet_prefix=23)).hosts["spark300"].vfs[1].address == "10.100.3.44"


def test_the_tables_name_pfs_by_rail_and_addresses_by_host() -> None:
    variables = fabric(2)
    variables["spark2"]["gb10_fabric_pfs"] = {"rail1": "enP2p1s0f1np1"}
    lines = format_plan(plan(variables)).splitlines()
    assert lines[0] == "2 hosts, 2 rails, 16 VFs, 12 NADs; MTU 9000, subnet-per-vf, switch"
    assert [line.split() for line in lines[2:5]] == [
        ["rail0", "10.100.0.0/16", "enp1s0f0np0", "rocep1s0f0", "4", "all"],
        ["rail1", "10.101.0.0/16", "enP2p1s0f0np0", "roceP2p1s0f0", "4", "spark1"],
        ["rail1", "10.101.0.0/16", "enP2p1s0f1np1", "roceP2p1s0f1", "4", "spark2"],
    ]
    assert lines[6] == "spark1  1   10.100.0.1/24 … 10.100.3.1/24, 10.101.0.1/24 … 10.101.3.1/24"
    assert len(lines) == 8


def test_the_table_of_sixteen_hosts_fits_a_terminal() -> None:
    variables = fabric(16, gb10_fabric_scheme="subnet-per-vf")
    lines = format_plan(plan(variables)).splitlines()
    assert len(lines) == 1 + 3 + 1 + 16
    for values in variables.values():
        values["gb10_fabric_rails"][1]["network6"] = "fd00:10:100::/48"
    lines = format_plan(plan(variables)).splitlines()
    assert len(lines) == 1 + 3 + 1 + 16 * 2
    assert max(map(len, lines)) <= 100


def test_planning_grows_at_most_linearly_with_the_hosts() -> None:
    def per_host(count: int) -> float:
        variables = fabric(count, gb10_fabric_subnet_prefix=23)
        seconds = []
        for _host in range(5):
            started = time.process_time()
            plan_fabric(variables)[0].as_dict()
            seconds.append(time.process_time() - started)
        return min(seconds) / count

    # quadratic growth would be 4; a busy machine needs some tolerance
    assert per_host(256) / per_host(64) < 2


def test_248_hosts_in_rings_are_planned_in_seconds() -> None:
    started = time.process_time()
    planned, findings = plan_fabric(many_rings(31))
    assert time.process_time() - started < 10
    assert (len(planned.hosts), len(planned.rails), findings) == (248, 496, [])


def test_two_switches_two_rings_and_a_pair_are_one_plan() -> None:
    """Each island has rails of its own, and no host gets a VF on a rail of another island."""
    variables = many_rings(2, 4)
    islands = {
        "a": [f"a{number}" for number in (1, 2, 3)],
        "b": [f"b{number}" for number in (1, 2, 3, 4)],
        "pair": ["p1", "p2"],
    }
    rails = variables["r0-spark1"]["gb10_fabric_rails"]
    for number, (island, members) in enumerate(islands.items()):
        for half, pf in enumerate(("enp1s0f0np0", "enP2p1s0f0np0")):
            rails.append(
                {"name": f"{island}{half}", "pf": pf, "network": f"10.{80 + number}.{half}.0/24", "hosts": members}
            )
        for member in members:
            own = {"gb10_node_id": 100 + len(variables), "ansible_host": f"192.168.10.{100 + len(variables)}"}
            variables[member] = {**variables["r0-spark1"], **own, "gb10_fabric_pfs": {}}
    for own in variables.values():
        own["gb10_fabric_rails"] = rails
    made, findings = plan_fabric(variables)
    assert findings == []
    seen = {name: {vf.rail for vf in host.vfs} for name, host in made.hosts.items()}
    for island, members in islands.items():
        assert all(seen[member] == {f"{island}0", f"{island}1"} for member in members)
    assert {len(own) for name, own in seen.items() if name.startswith("r")} == {4}
    assert not seen["r0-spark1"] & seen["r1-spark1"]


def path(plan: Plan, host: str, address: str) -> list[str]:
    """Return the hosts that a packet from ``host`` passes until it meets ``address``."""
    owners = {pf.address: name for name, planned in plan.hosts.items() for pf in planned.pfs}
    passed = [host]
    while owners[address] != passed[-1]:
        pfs = plan.hosts[passed[-1]].pfs
        if any(ip_address(address) in ip_network(f"{pf.address}/{pf.prefix}", strict=False) for pf in pfs):
            passed.append(owners[address])
            continue
        (via,) = [route.via for pf in pfs for route in pf.routes if ip_address(address) in ip_network(route.to)]
        # the next host must be on a cable of this one
        assert any(ip_address(via) in ip_network(f"{pf.address}/{pf.prefix}", strict=False) for pf in pfs)
        passed.append(owners[via])
        assert len(passed) <= len(plan.hosts), passed
    return passed


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 8])
def test_every_host_reaches_every_pf_by_a_shortest_path(count: int, closed: bool) -> None:
    plan, findings = plan_fabric(cabled(count, closed=closed, gb10_fabric_transit=True))
    assert not has_errors(findings)
    names = list(plan.hosts)
    for host in names:
        for peer, planned in plan.hosts.items():
            for pf in planned.pfs:
                away = abs(names.index(host) - names.index(peer))
                away = min(away, count - away) if closed else away
                # the address may be at the far end of the peer's other cable
                assert len(path(plan, host, str(pf.address))) - 1 in (away, away + 1)


def test_both_halves_carry_transit() -> None:
    plan = plan_fabric(cabled(4, gb10_fabric_transit=True))[0]
    routes = {pf.name: [route.to for route in pf.routes] for pf in plan.hosts["spark1"].pfs}
    assert {name: len(to) for name, to in routes.items()} == dict.fromkeys(routes, 1)
    assert len(routes) == 4


def test_no_address_moves_and_pods_keep_their_networks() -> None:
    without, given = (plan_fabric(cabled(4, gb10_fabric_transit=on))[0] for on in (False, True))
    assert [host.vfs for host in given.hosts.values()] == [host.vfs for host in without.hosts.values()]
    assert given.networks == without.networks
    assert all(pf.address is None and not pf.routes for host in without.hosts.values() for pf in host.pfs)
    assert format_plan(given).splitlines()[0].endswith("ring, transit")


def test_hosts_that_no_cable_reaches_get_no_route() -> None:
    variables = cabled(4, gb10_fabric_transit=True, gb10_fabric_topology="mixed")
    for own in variables.values():
        own["gb10_fabric_rails"] = [r for r in own["gb10_fabric_rails"] if r["name"][4:6] in ("12", "34")]
        own["gb10_fabric_pfs"] = {k: v for k, v in own["gb10_fabric_pfs"].items() if k[4:6] in ("12", "34")}
    plan, findings = plan_fabric(variables)
    assert not has_errors(findings)
    assert not any(pf.routes for host in plan.hosts.values() for pf in host.pfs)


@pytest.mark.parametrize(
    ("changes", "rule", "value"),
    [
        ({"gb10_fabric_transit": "perhaps"}, "fabric.transit.invalid", "perhaps"),
        ({"gb10_fabric_transit": True, "gb10_fabric_scheme": "subnet-per-rail"}, "fabric.transit.scheme", True),
        ({"gb10_fabric_transit": True, "gb10_fabric_subnet_prefix": 17}, "fabric.transit.too_small", "10.101.0.0/16"),
    ],
)
def test_transit_that_cannot_be_planned_is_refused(changes: dict[str, Any], rule: str, value: object) -> None:
    findings = plan_fabric(cabled(4, **{"gb10_fabric_vf_count": 2, **changes}))[1]
    assert (rule, value) in {(finding.rule, finding.value) for finding in findings if finding.severity == "error"}


@pytest.mark.parametrize("prefix", [17, 16])
def test_a_block_without_room_for_pfs_is_one_finding_per_rail(prefix: int) -> None:
    changes = {"gb10_fabric_vf_count": 1 if prefix == 16 else 2, "gb10_fabric_subnet_prefix": prefix}
    findings = plan_fabric(cabled(4, gb10_fabric_transit=True, **changes))[1]
    assert [finding.rule for finding in findings] == ["fabric.transit.too_small"] * 8
    assert len({finding.key for finding in findings}) == 8


def test_only_the_rail_with_too_many_vfs_lacks_room_for_pfs() -> None:
    variables = cabled(4, gb10_fabric_transit=True, gb10_fabric_subnet_prefix=17, gb10_fabric_vf_count="auto")
    for values in variables.values():
        values["gb10_pf_totalvfs"] = dict.fromkeys(values["gb10_pf_totalvfs"], 1)
    rail, pf = next(iter(variables["spark1"]["gb10_fabric_pfs"].items()))
    variables["spark1"]["gb10_pf_totalvfs"][pf] = 2
    wrong = [finding for finding in plan_fabric(variables)[1] if finding.severity == "error"]
    assert [(finding.rule, rail in str(finding)) for finding in wrong] == [("fabric.transit.too_small", True)]


@pytest.mark.parametrize("variables", [fabric(4, gb10_fabric_transit="true"), cabled(3, gb10_fabric_transit=True)])
def test_transit_where_every_pair_has_a_cable_is_a_note(variables: Variables) -> None:
    findings = plan_fabric(variables)[1]
    assert [(finding.rule, finding.severity) for finding in findings] == [("fabric.transit.unneeded", "info")]


def test_a_pf_address_that_something_else_has_is_refused() -> None:
    findings = plan_fabric(cabled(4, gb10_fabric_transit=True, gb10_fabric_reserved_addresses=["10.101.255.1"]))[1]
    assert [finding.rule for finding in findings] == ["fabric.address.in_use"]


@pytest.mark.parametrize(("count", "shown"), [(3, "a, b, c"), (4, "4 of 9"), (9, "all")])
def test_up_to_three_hosts_of_many_are_named(count: int, shown: str) -> None:
    assert _some(list("abcdefghi"[:count]), 9) == shown
