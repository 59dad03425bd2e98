#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_ping
short_description: Ping every peer on every VF with the largest packet
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Pings the VF of the same rail and index on every other host of the fabric plan. It uses the largest payload that the
    MTU allows and forbids fragmentation (8972 bytes for MTU 9000).
  - Then compares the MAC address in the neighbour table with the planned one. If a peer answers with the MAC of its
    other VF, all pings pass but RoCE traffic goes to the wrong function.
  - Pings a VF that a pod holds from inside that pod's network namespace; the result names the pod.
  - A direction that fails is reported as a result with its broken layer. The module does not fail because of it. Judge
    the results of all hosts with the filter P(gb10.cluster.fabric_matrix#filter).
  - Needs root, iproute2, iputils-ping and util-linux on the host.
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  plan:
    description: The fabric plan.
    type: dict
    required: true
  host:
    description: Name of this host in the plan.
    type: str
    required: true
  pods_only:
    description: Probe only VFs that a pod holds.
    type: bool
    default: false
  count:
    description: Packets per direction.
    type: int
    default: 3
  wait:
    description: Seconds to wait for an answer.
    type: int
    default: 1
"""

EXAMPLES = r"""
- name: Ping every peer on every VF
  gb10.cluster.fabric_ping:
    plan: "{{ ansible_facts['gb10_fabric_plan'] }}"
    host: "{{ inventory_hostname }}"
  register: fabric_ping
"""

RETURN = r"""
results:
  description:
    - One entry per peer, rail and VF with C(ok), C(layer) (V(sriov), V(link), V(address), V(mtu), V(ethernet), V(ip) or
      empty), C(reason), C(rtt_ms), C(where), which is V(host) or the pod that has the VF, and the UID of that pod
      (C(pod_uid)).
  type: list
  elements: dict
  returned: always
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from ipaddress import ip_interface
from itertools import product
from typing import Any, cast

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.check_results import PF_INDEX, Layer, PingResult
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system

HEADERS = 28  # bytes: IPv4 header 20, ICMP header 8; MTU 9000 leaves 8972 bytes of payload
ROUND_TRIP = re.compile(r"^(?:rtt|round-trip) min/avg/max\S* = [\d.]+/([\d.]+)/", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """One direction between two hosts on one VF index of one rail; ``payload`` is in bytes of ICMP data."""

    host: str
    peer: str
    rail: str
    vf_index: int
    netdev: str
    mac: str
    source: str
    address: str
    peer_mac: str
    mtu: int

    @property
    def payload(self) -> int:
        """Return the largest ICMP payload that the MTU allows."""
        return self.mtu - HEADERS


@dataclass(frozen=True)
class Place:
    """Location of a VF: ``command`` enters its network namespace, ``where`` is ``host`` or the pod that holds it."""

    where: str
    command: tuple[str, ...]
    link: Mapping[str, Any]
    pod_uid: str = ""


def targets(plan: Mapping[str, Any], host: str) -> list[Target]:
    """Return the targets of ``host``: the VF of the same rail and index on every other host, and PFs by transit."""
    found = []
    for own in plan["hosts"][host]["vfs"]:
        known = {key: own[key] for key in ("rail", "vf_index", "netdev", "mac")}
        for peer, other in sorted(plan["hosts"].items()):
            found += [
                Target(
                    **known,
                    host=host,
                    peer=peer,
                    source=own["address"],
                    address=vf["address"],
                    peer_mac=vf["mac"],
                    mtu=plan["mtu"],
                )
                for vf in other["vfs"]
                if peer != host and (vf["rail"], vf["vf_index"]) == (own["rail"], own["vf_index"])
            ]
    return found + list(_over_others(plan, host))


def _over_others(plan: Mapping[str, Any], host: str) -> Iterator[Target]:
    """Yield the PFs of hosts without a common rail that ``host`` reaches by a route, over the hosts between them."""
    pfs = {name: planned.get("pfs", []) for name, planned in sorted(plan["hosts"].items())}
    rails = {pf["rail"] for pf in pfs[host]}
    for peer, other in pfs.items():
        if not rails & {pf["rail"] for pf in other}:
            for near, far in product(pfs[host], other):
                subnet = f"{far.get('address')}/{far.get('prefix')}"
                if any(str(ip_interface(subnet).network) == route["to"] for route in near.get("routes", ())):
                    yield Target(
                        host=host,
                        peer=peer,
                        rail=far["rail"],
                        vf_index=PF_INDEX,
                        netdev=near["name"],
                        mac="",
                        source=near["address"],
                        address=far["address"],
                        peer_mac="",
                        mtu=plan["mtu"],
                    )


def result(
    target: Target, where: str, layer: Layer, reason: str, rtt_ms: float | None = None, pod_uid: str = ""
) -> PingResult:
    """Return plain data about one target; ``layer`` is empty if the peer answered a full-size packet."""
    found = {"payload": target.payload, "ok": not layer, "where": where, "layer": layer, "reason": reason}
    return cast(PingResult, {**asdict(target), **found, "rtt_ms": rtt_ms, "pod_uid": pod_uid})


def locate(wanted: Iterable[Target]) -> dict[str, Place]:
    """Return the location of each VF by interface name; omit VFs that do not exist."""
    links = system.links()
    places = {}
    spaces: list[netns.Holder] | None = None
    for target in wanted:
        if target.netdev in places:
            continue
        if target.netdev in links:
            places[target.netdev] = Place("host", (), links[target.netdev])
            continue
        spaces = netns.holders() if spaces is None else spaces
        holder = netns.holder_of(target.netdev, target.mac, "", spaces)
        if holder:
            link = next(
                link
                for link in holder.links.values()
                if link.get("ifalias") == target.netdev or link.get("address") == target.mac
            )
            enter = ("nsenter", f"--net={holder.path}")
            places[target.netdev] = Place(str(holder), enter, link, holder.pod_uid)
    return places


def before_sending(target: Target, place: Place | None) -> tuple[Layer, str]:
    """Return a fault of this host, lowest layer first; the layer is empty if there is none."""
    if place is None:
        return "sriov", f"{target.netdev} exists neither on the host nor in a pod: run playbook fabric"
    name = place.link["ifname"]
    # At its start, a pod gets its addresses from its network, and the MTU that the VF has. Netplan changes neither.
    pod = place.where.partition(" (")[0] if place.where.startswith("pod ") else ""
    remedy = f"delete {pod}, so that its replacement gets it" if pod else "run playbook fabric"
    again = f"stop the group of {pod}, run playbook fabric and serve it again" if pod else remedy
    if place.link.get("operstate") != "UP" and "LOWER_UP" not in place.link.get("flags", []):
        return "link", f"{name} has no carrier: cable, cage or switch port"
    if target.source not in {entry.get("local") for entry in place.link.get("addr_info", [])}:
        return "address", f"{name} lacks its address {target.source}, so it has no RoCE v2 GID: {remedy}"
    if place.link.get("mtu", 0) < target.mtu:
        return "mtu", f"{name} has MTU {place.link.get('mtu')}, planned {target.mtu}: {again}"
    return "", ""


def planned_macs(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return a description of the VF that has each MAC of the plan."""
    return {
        vf["mac"].lower(): f"{vf['netdev']} of {host} ({vf['rail']}, VF {vf['vf_index']})"
        for host, planned in plan["hosts"].items()
        for vf in planned["vfs"]
    }


def wrong_mac(target: Target, found: str, owners: Mapping[str, str]) -> str:
    """Return what is wrong with the MAC that answered for the target's address; empty for the planned or no MAC.

    If both rails share a broadcast domain and arp_ignore is not set, either VF of a host answers ARP for both
    addresses. Pings then still pass, but RoCE traffic goes to the wrong function.
    """
    if found.lower() in ("", target.peer_mac.lower()):
        return ""
    owner = owners.get(found.lower(), f"no planned function ({found})")
    return (
        f"{target.address} answers with the MAC of {owner}, planned is {target.peer_mac} of {target.peer}: RoCE goes to"
        f" the wrong function, although pings pass. If {target.peer} owns that MAC, its arp_ignore is not 1: run"
        " playbook fabric, or where a pod holds the VF playbook kubernetes, and restart the pod. Otherwise find the"
        " machine that has this address"
    )


def after_failure(target: Target, small_passes: bool, state: str) -> tuple[Layer, str]:
    """Return the broken layer of a lost packet; ``state`` is the peer's state in the neighbour table."""
    if small_passes:
        return "mtu", (
            f"56 bytes pass, {target.payload} don't: the MTU of {target.peer}'s VF or port, or the switch's L2MTU, is"
            f" below {target.mtu}"
        )
    if target.vf_index == PF_INDEX:
        return "ip", (
            f"{target.address} cannot be reached over the hosts between: a route or the forwarding is missing, or a"
            " firewall drops forwarded packets. Run playbook fabric without --limit"
        )
    if state in ("", "FAILED", "INCOMPLETE"):
        return "ethernet", (
            f"{target.address} answers no ARP: {target.peer}'s VF has no address or no carrier, or the cable is in"
            " another cage, VLAN or switch"
        )
    return "ip", f"{target.address} answers ARP but no ping: a firewall on {target.peer}, or an address used twice"


def probe(target: Target, place: Place | None, owners: Mapping[str, str], count: int, wait: int) -> PingResult:
    """Ping one target with a full-size packet and without fragmentation, and find the broken layer.

    ``owners`` is the result of planned_macs().
    """
    layer, reason = before_sending(target, place)
    if layer or place is None:
        return result(target, place.where if place else "nowhere", layer, reason)
    small_passes = False
    answer = ping(target, place, target.payload, count, wait)
    if answer is None:
        small_passes = ping(target, place, 56, 1, wait) is not None
        # A busy link may lose packets, so try again; an MTU that is too small also fails the second try.
        answer = ping(target, place, target.payload, count, wait) if small_passes else None
        reason = f"passes, but a first try lost all {count} packets"
    round_trip = ROUND_TRIP.search(answer or "")
    rtt_ms = float(round_trip.group(1)) if round_trip else None
    neighbour = find_neighbour(target, place)
    mistaken = wrong_mac(target, str(neighbour.get("lladdr", "")), owners)
    if mistaken:
        layer, reason = "ethernet", mistaken
    elif answer is None:
        layer, reason = after_failure(target, small_passes, str((neighbour.get("state") or [""])[0]))
    return result(target, place.where, layer, reason, rtt_ms, place.pod_uid)


def find_neighbour(target: Target, place: Place) -> Mapping[str, Any]:
    """Return the peer's entry in the neighbour table; empty if there is none."""
    command = ["ip", "-j", "neighbour", "show", "to", target.address, "dev", place.link["ifname"]]
    shown = system.run_json([*place.command, *command])
    return shown[0] if shown else {}


def ping(target: Target, place: Place, payload: int, count: int, wait: int) -> str | None:
    """Return ping's output, or None without an answer; ping is bound to the VF, so it cannot use another rail."""
    options = f"-n -q -M do -s {payload} -c {count} -i 0.2 -W {wait} -I {place.link['ifname']} {target.address}"
    done = system.run([*place.command, "ping", *options.split()], check=False, timeout=count * (wait + 1) + 10)
    return done.stdout if done.returncode == 0 else None


def probe_all(plan: Mapping[str, Any], host: str, pods_only: bool, count: int, wait: int) -> list[PingResult]:
    """Probe all targets of a host, sixteen at a time; ``pods_only`` restricts this to VFs that a pod holds."""
    wanted, owners = targets(plan, host), planned_macs(plan)
    places = locate(wanted)
    if pods_only:
        wanted = [target for target in wanted if target.netdev in places and places[target.netdev].where != "host"]
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(lambda target: probe(target, places.get(target.netdev), owners, count, wait), wanted))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "host": {"type": "str", "required": True},
            "pods_only": {"type": "bool", "default": False},
            "count": {"type": "int", "default": 3},
            "wait": {"type": "int", "default": 1},
        },
        supports_check_mode=True,
    )
    params = module.params
    result: dict[str, Any] = {"changed": False, "msg": "", "results": []}
    if params["host"] not in params["plan"].get("hosts", {}):
        reason = f"{params['host']} is not in the fabric plan, so its VFs are unknown."
        result["msg"] = f"{reason} Put the host into group gb10_nodes, and run playbook fabric."
        module.fail_json(**result)
    try:
        reached = probe_all(params["plan"], params["host"], params["pods_only"], params["count"], params["wait"])
    except (system.HostError, OSError) as error:
        module.fail_json(**{**result, "msg": system.explain(error)})
    passed = sum(one["ok"] for one in reached)
    result |= {"msg": f"{passed} of {len(reached)} directions pass", "results": reached}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
