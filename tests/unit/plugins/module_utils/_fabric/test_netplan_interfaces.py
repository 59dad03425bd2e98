# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import Gid, RdmaDevice, RdmaPort

PFS = [{"name": "enp1s0f0np0"}]
VFS: list[dict[str, Any]] = [
    {"netdev": "enp1s0f0v0", "address": "10.100.0.1", "prefix": 24, "rdma_device": "rocep1s0f0v0"}
]
DESIRED = netplan.interfaces(PFS, VFS, 9000)


def link(mtu: int = 9000, *addresses: str, state: str = "UP") -> dict[str, Any]:
    split = [address.split("/") for address in addresses]
    return {
        "mtu": mtu,
        "operstate": state,
        "flags": [],
        "addr_info": [{"local": local, "prefixlen": int(prefix)} for local, prefix in split],
    }


GOOD = {"enp1s0f0np0": link(), "enp1s0f0v0": link(9000, "10.100.0.1/24")}


def test_the_file_is_yaml_with_nothing_that_could_route() -> None:
    text = netplan.render_netplan(DESIRED)
    ethernets = yaml.safe_load(text)["network"]["ethernets"]
    assert list(ethernets) == ["enp1s0f0np0", "enp1s0f0v0"]
    assert ethernets["enp1s0f0v0"] == {
        "renderer": "networkd",
        "optional": True,
        "dhcp4": False,
        "dhcp6": False,
        "accept-ra": False,
        "link-local": [],
        "mtu": 9000,
        "addresses": ["10.100.0.1/24"],
    }
    assert "addresses" not in ethernets["enp1s0f0np0"]
    assert ethernets["enp1s0f0np0"]["link-local"] == ["ipv6"], "playbook discover finds neighbours by these addresses"
    assert "route" not in text
    assert "gateway" not in text


def test_ipv6_beside_ipv4() -> None:
    both = netplan.interfaces([], [{**VFS[0], "address6": "fd00::1", "prefix6": 64}], 9000)
    assert both[0].addresses == ("10.100.0.1/24", "fd00::1/64")
    assert netplan.deviations(both, {"enp1s0f0v0": link()}, {}) == [
        "address: enp1s0f0v0 lacks 10.100.0.1/24",
        "address: enp1s0f0v0 lacks fd00::1/64",
    ]
    assert yaml.safe_load(netplan.render_netplan(both))["network"]["ethernets"]["enp1s0f0v0"]["addresses"] == [
        "10.100.0.1/24",
        "fd00::1/64",
    ]


def test_a_vf_has_its_mac_and_device_if_the_plan_names_them() -> None:
    bare = {"netdev": "v0", "address": "10.100.0.1", "prefix": 24, "mac": None, "rdma_device": None}
    found = netplan.interfaces(PFS, [{**bare, "mac": "02:00:00:00:00:01", "rdma_device": "mlx0"}, bare], 9000)
    assert [(one.mac, one.rdma_device, one.is_vf) for one in found] == [
        ("", "", False),
        ("02:00:00:00:00:01", "mlx0", True),
        ("", "", True),
    ]


@pytest.mark.parametrize(
    "vf",
    [
        {**VFS[0], "address": "10.10.10.061"},
        {**VFS[0], "netdev": "en: {dhcp4: true}"},
        {**VFS[0], "netdev": "a-name-longer-than-ifnamsiz"},
    ],
)
def test_nothing_is_written_for_a_bad_name_or_address(vf: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"10\.10\.10\.061|not the name of a network interface"):
        netplan.interfaces(PFS, [vf], 9000)


def test_each_vf_answers_only_for_itself_and_a_pf_for_none() -> None:
    names = ("enp1s0f0np0", "enp1s0f0v0")
    values = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2}
    assert netplan.sysctls(DESIRED) == {
        f"net/ipv4/conf/{name}/{key}": value for name in names for key, value in values.items()
    }
    assert "-net/ipv4/conf/enp1s0f0v0/arp_ignore = 1\n" in netplan.render_sysctl(DESIRED)


def test_the_management_link_and_missing_interfaces_are_refused_together() -> None:
    findings = netplan.check(DESIRED, {"enp1s0f0np0": link()}, {"enp1s0f0np0": "default route"}, {}, False)
    assert [finding.rule for finding in findings] == ["netplan.management", "netplan.vf.missing"]


def test_a_vf_may_be_in_a_pod_or_come_later() -> None:
    there = {"enp1s0f0np0": link()}
    assert netplan.check(DESIRED, there, {}, {"enp1s0f0v0": "pod a/b"}, False) == []
    assert netplan.check(DESIRED, there, {}, {}, True) == []
    assert [finding.rule for finding in netplan.check(DESIRED, {}, {}, {}, True)] == ["netplan.pf.missing"]


def test_other_netplan_files_and_leases_on_the_fabric_are_reported() -> None:
    leased = {"local": "192.168.177.5", "prefixlen": 24, "dynamic": True}
    others = [{**leased, "family": "inet6"}, {**leased, "dynamic": False}]
    links = {**GOOD, "enp1s0f0np0": {**link(), "addr_info": [*others, leased]}}
    files = {
        Path("/etc/netplan/40-cx7.yaml"): "network:\n  ethernets:\n    enp1s0f0np0: {dhcp4: true}\n",
        Path("/etc/netplan/41-cx7.yaml"): "network:\n  ethernets:\n    'enp1s0f0v0': {dhcp4: true}\n",
        Path("/etc/netplan/42-cx7.yaml"): "network:\n  ethernets:\n    enp1s0f0v0: {dhcp4: true}\n",
        Path("/etc/netplan/50-site.yaml"): "network:\n  ethernets:\n    enp1s0f0np01: {}\n    # enp1s0f0np0:\n",
    }
    found = netplan.leftovers(DESIRED, links, files)
    assert [(finding.rule, finding.value) for finding in found] == [
        ("netplan.leftover", "/etc/netplan/40-cx7.yaml"),
        ("netplan.lease", "192.168.177.5/24"),
        ("netplan.leftover", "/etc/netplan/41-cx7.yaml"),
        ("netplan.leftover", "/etc/netplan/42-cx7.yaml"),
    ]
    assert "sudo mv /etc/netplan/40-cx7.yaml /root/" in found[0].remedy
    assert netplan.leftovers(DESIRED, GOOD, {}) == []


def test_no_deviation_when_all_is_as_planned() -> None:
    assert netplan.deviations(DESIRED, GOOD, {}) == []
    # Some drivers report no state of a link that has a carrier.
    unknown = {**link(state="UNKNOWN"), "flags": ["UP", "LOWER_UP"]}
    assert netplan.deviations(DESIRED, {**GOOD, "enp1s0f0np0": unknown}, {}) == []


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({**GOOD, "enp1s0f0np0": link(1500)}, "mtu: enp1s0f0np0 has 1500, planned 9000"),
        ({**GOOD, "enp1s0f0v0": link(9000)}, "address: enp1s0f0v0 lacks 10.100.0.1/24"),
        ({**GOOD, "enp1s0f0np0": link(state="DOWN")}, "link: enp1s0f0np0 is down (no carrier: cable, port or switch)"),
        ({"enp1s0f0np0": link()}, "link: enp1s0f0v0 is missing"),
    ],
)
def test_a_deviation_names_its_layer(links: dict[str, Any], expected: str) -> None:
    assert netplan.deviations(DESIRED, links, {}) == [expected]


def test_a_vf_in_a_pod_is_no_deviation() -> None:
    held = {"enp1s0f0v0": "pod a/b"}
    assert netplan.deviations(DESIRED, {"enp1s0f0np0": link()}, held) == []
    assert netplan.gid_deviations(DESIRED, held, []) == []


def test_a_vf_without_its_gid_is_a_deviation() -> None:
    def device(*gids: Gid) -> RdmaDevice:
        return RdmaDevice("rocep1s0f0v0", None, None, (), (RdmaPort(1, "ACTIVE", None, None, None, 9000, 4096, gids),))

    local = Gid(0, "fe80::1", "RoCE v2", "enp1s0f0v0", None)
    mapped = Gid(3, "::ffff:10.100.0.1", "RoCE v2", "enp1s0f0v0", "10.100.0.1")
    assert netplan.gid_deviations(DESIRED, {}, [device(local, mapped)]) == []
    missing = "gid: rocep1s0f0v0 has no RoCE v2 GID for 10.100.0"
    second = {**VFS[0], "netdev": "v1", "address": "10.100.0.2"}
    bare = {"netdev": "v2", "address": "10.100.0.3", "prefix": 24}
    three = netplan.interfaces(PFS, [VFS[0], second, bare], 9000)
    assert netplan.gid_deviations(three, {}, [device(local)]) == [f"{missing}.1", f"{missing}.2"]


def test_a_port_with_transit_gets_all_its_routes_and_the_file_tells_who_wrote_it() -> None:
    routes = [{"to": "10.100.3.0/24", "via": "10.101.0.2"}, {"to": "10.100.4.0/24", "via": "10.101.0.6"}]
    pfs = [{"name": "enp1s0f0np0", "address": "10.101.0.1", "prefix": 30, "routes": routes}]
    desired = netplan.interfaces(pfs, VFS, 9000)
    text = netplan.render_netplan(desired)
    assert yaml.safe_load(text)["network"]["ethernets"]["enp1s0f0np0"]["routes"] == routes
    assert text.startswith(netplan.HEADER)
    assert netplan.render_sysctl(desired).startswith(netplan.HEADER)
    assert netplan.forwarding(desired) == ["enp1s0f0np0"]
    assert netplan.sysctls(desired)["net/ipv4/conf/enp1s0f0np0/forwarding"] == 1
    assert netplan.rendered(text) == ["enp1s0f0np0", "enp1s0f0v0"]
