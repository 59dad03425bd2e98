# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules for a planned port, applied to the facts of its host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.rule import Fault, Host, Rule, fault_if

_ENCODING = 128 / 130  # PCIe 3.0 and later


def _ports(find: Callable[[Host, Mapping[str, Any]], Sequence[Fault]]) -> Callable[[Host], Iterator[Fault]]:
    """Return a function that checks each planned port; a fault without a key gets the port's name as key."""

    def each(host: Host) -> Iterator[Fault]:
        for pf in host.known["pfs"]:
            if pf["name"] in host.pfs:
                for fault in find(host, pf):
                    yield {"key": pf["name"], "port": pf["name"], **fault}

    return each


def _lease(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    leases = ", ".join(entry["address"] for entry in pf["addresses"] if entry["dynamic"])
    return fault_if(leases, leases)


def _down(host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    # an unused port with a link suggests that the cable is in the other cage
    linked = [other["name"] for other in host.known["pfs"] if other["carrier"] and other["name"] not in host.pfs]
    do = "Check cable, cage and switch port."
    if linked:
        do = f"{' and '.join(linked)} has a link: if the cable is in that cage, name it in gb10_fabric_pfs."
    return fault_if(not pf["carrier"], "down", do=do)


def _not_active(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    wrong = pf["carrier"] and pf["rdma_device"] and pf["port_state"] != "ACTIVE"
    return fault_if(wrong, pf["port_state"], device=pf["rdma_device"])


def _slow(host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    rate, wanted = pf["rate_gbps"], host.settings.min_rate_gbps
    slow = pf["carrier"] and rate is not None and rate < wanted
    return [{"value": f"{rate:g} Gb/s", "wanted": f"{wanted:g}"}] if slow else []


def _pcie_unknown(pf: Mapping[str, Any]) -> bool:
    return pf["pcie_gts"] is None or pf["pcie_width"] is None


def _narrow(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    speed, width = pf["pcie_gts"], pf["pcie_width"]
    best_speed, best_width = pf["pcie_max_gts"] or speed, pf["pcie_max_width"] or width
    if _pcie_unknown(pf) or (speed >= best_speed and width >= best_width):
        return []
    return [{"value": f"{speed:g} GT/s x{width}", "best": f"{best_speed:g} GT/s x{best_width}"}]


def _pcie_slow(host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    if _pcie_unknown(pf):
        return []
    speed, width, wanted = pf["pcie_gts"], pf["pcie_width"], host.settings.min_pcie_gbps
    rate = speed * width * _ENCODING
    return fault_if(rate < wanted, f"{speed:g} GT/s x{width}", rate=f"{rate:.0f}", wanted=f"{wanted:g}")


PORT_RULES = (
    Rule(
        "preflight.netplan.dhcp_lease",
        "warning",
        "port",
        "a DHCP server answers on the fabric, and its default route could take the host's traffic",
        "Switch the DHCP server off in the fabric's network, and remove dhcp4 of {port} from /etc/netplan.",
        _ports(_lease),
    ),
    Rule(
        "preflight.driver.other",
        "warning",
        "port",
        "this port is not driven by ConnectX's mlx5_core, the only driver that the collection was made for",
        "Name a ConnectX port in gb10_fabric_rails.",
        _ports(lambda host, pf: fault_if(pf["driver"] != "mlx5_core", pf["driver"])),
    ),
    Rule(
        "preflight.driver.no_rdma",
        "error",
        "port",
        "no RDMA device belongs to this port",
        "Run modprobe mlx5_ib, and check that RoCE is enabled (devlink dev param, enable_roce).",
        _ports(lambda host, pf: fault_if(pf["rdma_device"] is None, None)),
    ),
    Rule(
        "preflight.link.down",
        "error",
        "port",
        "there is no link, so the rail would be idle and NCCL would use only the others",
        "{do}",
        _ports(_down),
    ),
    Rule(
        "preflight.link.not_active",
        "error",
        "port",
        "the link is up, but the port of {device} is not active, and NCCL skips it",
        "Run ip link set {port} up.",
        _ports(_not_active),
    ),
    Rule(
        "preflight.link.slow",
        "warning",
        "port",
        "the link is below {wanted} Gb/s: a degraded NIC, a slow cable or a shaped switch port",
        "Take the power off, not only the system; check the switch port's speed.",
        _ports(_slow),
    ),
    Rule(
        "preflight.pcie.unknown",
        "warning",
        "port",
        "speed and width of the PCIe link are unknown, so the rail may be limited by it",
        "Look at LnkSta in lspci -vv.",
        _ports(lambda host, pf: fault_if(_pcie_unknown(pf), None)),
    ),
    Rule(
        "preflight.pcie.narrow",
        "warning",
        "port",
        "the PCIe link is below what the port can do ({best})",
        "Take the power off for a minute; update the system's firmware.",
        _ports(_narrow),
    ),
    Rule(
        "preflight.pcie.slow",
        "warning",
        "port",
        "the PCIe link carries {rate} Gb/s at most, and each half needs {wanted}",
        "Update the system's firmware: early GB10 firmware gave the halves x2.",
        _ports(_pcie_slow),
    ),
    Rule(
        "preflight.mtu.not_yet",
        "info",
        "port",
        "MTU {planned} is planned; a firmware update resets it",
        "Nothing to do: role netplan sets it.",
        _ports(lambda host, pf: fault_if(pf["mtu"] is not None and pf["mtu"] < host.mtu, pf["mtu"], planned=host.mtu)),
    ),
)
