# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rings and chains of Sparks without a switch, in the format of the planners."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import Variables, fabric

HALVES = (("a", "enp1s0", 100), ("b", "enP2p1s0", 150))


def cabled(count: int, *, closed: bool = True, cages: tuple[int, int] = (0, 1), **group: Any) -> Variables:
    """Return hosts in a ring, or a chain if not ``closed``; a cable joins ``cages[0]`` of a host to ``cages[1]``."""
    near, far = cages
    rails, pfs = [], {f"spark{number}": {} for number in range(1, count + 1)}  # type: ignore[var-annotated]
    for first in range(1, count + 1 if closed else count):
        second = first % count + 1
        for half, start, step in HALVES:
            name = f"ring{first}{second}{half}"
            ends = [f"spark{first}", f"spark{second}"]
            rails.append(
                {"name": name, "pf": f"{start}f0np0", "network": f"10.{step + first}.0.0/16", "hosts": ends},
            )
            pfs[ends[0]][name], pfs[ends[1]][name] = f"{start}f{near}np{near}", f"{start}f{far}np{far}"
    topology = {"gb10_fabric_topology": "ring" if closed else "chain", "gb10_fabric_rails": rails}
    return {
        name: {**values, "gb10_fabric_pfs": pfs[name]}
        for name, values in fabric(count, **{**topology, **group}).items()
    }


def cabled_plan(count: int, **options: Any) -> dict[str, Any]:
    """Return the fabric plan of a ring or chain, with its findings."""
    plan, findings = plan_fabric(cabled(count, **options))
    return {**plan.as_dict(), "findings": [finding.as_dict() for finding in findings]}


def many_rings(rings: int, size: int = 8) -> Variables:
    """Return several rings of Sparks without a cable between them, as one fabric."""
    one = cabled(size)
    rails: list[dict[str, Any]] = []
    hosts: Variables = {}
    for ring in range(rings):
        for rail in one["spark1"]["gb10_fabric_rails"]:
            block = f"10.{64 + len(rails) // 256}.{len(rails) % 256}.0/24"
            ends = [f"r{ring}-{host}" for host in rail["hosts"]]
            rails.append({**rail, "name": f"r{ring}-{rail['name']}", "network": block, "hosts": ends})
        for name, own in one.items():
            pfs = {f"r{ring}-{rail}": pf for rail, pf in own["gb10_fabric_pfs"].items()}
            number = len(hosts) + 1
            place = {"gb10_node_id": number, "ansible_host": f"192.168.10.{number}"}
            group = {"gb10_fabric_topology": "mixed", "gb10_fabric_rails": rails, "gb10_fabric_vf_count": 1}
            hosts[f"r{ring}-{name}"] = {**own, **group, **place, "gb10_fabric_pfs": pfs}
    return hosts
