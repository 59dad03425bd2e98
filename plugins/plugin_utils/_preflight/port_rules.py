# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a planned port in the facts of its host, by rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .host import Fault, Find, Host, fault_if

# A ConnectX-7 that came up degraded carries about 13 Gb/s. The slowest link that owners chose is 40 Gb/s.
DEGRADED_GBPS = 25
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


def _slow(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    rate = pf["rate_gbps"]
    slow = pf["carrier"] and rate is not None and rate < DEGRADED_GBPS
    return [{"value": f"{rate:g} Gb/s"}] if slow else []


def _no_rate(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    return fault_if(pf["carrier"] and pf["rdma_device"] and pf["rate_gbps"] is None, None)


def compare_rates(hosts: Iterable[Host]) -> Iterator[tuple[str, Fault]]:
    """Yield the rule and the fault of each rail whose ports differ in rate, or all have less than was asked for.

    A rail of 100 Gb/s on all ports is often meant: breakout cables, or a switch of 100 Gb/s. Ports of unequal rates
    were seen with silent stalls and packet_seq_err.
    """
    rates: dict[str, dict[float, list[str]]] = defaultdict(lambda: defaultdict(list))
    wanted = 0.0
    for host in hosts:
        for pf in host.facts["pfs"] if host.facts is not None else ():
            rate = pf["rate_gbps"]
            if pf["name"] in host.pfs and pf["carrier"] and rate is not None and rate >= DEGRADED_GBPS:
                rates[host.rails.get(pf["name"], pf["name"])][rate].append(f"{host.name} {pf['name']}")
                wanted = max(wanted, host.settings.min_rate_gbps)
    for rail, found in rates.items():
        if len(found) > 1:
            shown = "; ".join(f"{rate:g} Gb/s: {', '.join(ports)}" for rate, ports in sorted(found.items()))
            yield "preflight.link.unequal", {"value": shown, "key": rail, "rail": rail}
        elif (rate := min(found)) < wanted:
            fault = {"value": f"{rate:g} Gb/s", "rate": f"{rate:g}", "wanted": f"{wanted:g}", "key": rail, "rail": rail}
            yield "preflight.link.below", fault


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


PORT_RULES: Mapping[str, Find] = {
    "preflight.netplan.dhcp_lease": _ports(_lease),
    "preflight.driver.other": _ports(lambda host, pf: fault_if(pf["driver"] != "mlx5_core", pf["driver"])),
    "preflight.driver.no_rdma": _ports(lambda host, pf: fault_if(pf["rdma_device"] is None, None)),
    "preflight.link.down": _ports(_down),
    # mlx5_lag_check_prereq in the kernel refuses a RoCE bond of ports with virtual functions
    "preflight.link.member": _ports(lambda host, pf: fault_if(pf["master"], pf["master"])),
    "preflight.link.not_active": _ports(_not_active),
    "preflight.link.slow": _ports(_slow),
    "preflight.link.no_rate": _ports(_no_rate),
    "preflight.pcie.unknown": _ports(lambda host, pf: fault_if(_pcie_unknown(pf), None)),
    "preflight.pcie.narrow": _ports(_narrow),
    "preflight.pcie.slow": _ports(_pcie_slow),
    "preflight.mtu.not_yet": _ports(
        lambda host, pf: fault_if(pf["mtu"] is not None and pf["mtu"] < host.mtu, pf["mtu"], planned=host.mtu)
    ),
}
