# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the inventory's interfaces and addresses with those that the hosts have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules
from .model import HostPlan, Plan

_RULES = Rules("_fabric", "host")

Addresses = Mapping[str, Sequence[str]]
"""The addresses with prefix of every interface of a host."""

# Rules of the plan that compare a value of the inventory with what the port reports.
_PORT_RULES = {
    f"fabric.{rule}"
    for rule in ("pf.unknown", "rdma.unknown", "rdma.differs", "sriov.disabled", "vf_count.hardware", "mtu.port")
}


def about_ports(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of a plan that say how the ports of a host differ from the inventory."""
    return [finding for finding in findings if finding.rule in _PORT_RULES]


def check_hosts(
    plan: Plan, variables: Mapping[str, Mapping[str, Any]], found: Mapping[str, Addresses]
) -> Iterator[Finding]:
    """Return where the management interface or the fabric's addresses of a host differ from the inventory."""
    for host, known in found.items():
        yield from _check_management(host, variables.get(host, {}), known)
        if host in plan.hosts:
            yield from _check_addresses(host, plan.hosts[host], known)


def _check_management(host: str, variables: Mapping[str, Any], known: Addresses) -> Iterator[Finding]:
    declared, address = variables.get("gb10_management_interface"), str(variables.get("ansible_host", ""))
    holders = [name for name, own in known.items() if address in {one.split("/")[0] for one in own}]
    if not declared or declared in holders or (declared in known and not holders):
        return
    place = f"{address} is the address of {holders[0]}" if holders else "`ip -br address` lists its interfaces"
    what = "Ansible reaches the host elsewhere" if declared in known else "the host has no such interface"
    wanted = holders[0] if holders else "the one that Ansible uses"
    yield _RULES.finding("cabling.management", declared, host, host=host, what=what, place=place, wanted=wanted)


def _check_addresses(host: str, planned: HostPlan, known: Addresses) -> Iterator[Finding]:
    wrong = [
        (vf, [one for one in known[vf.netdev] if ":" not in one])
        for vf in planned.vfs
        if known.get(vf.netdev) and f"{vf.address}/{vf.prefix}" not in known[vf.netdev]
    ]
    if wrong:
        vf, has = wrong[0]
        ids = {one.split("/")[0].rpartition(".")[2] for _vf, own in wrong for one in own}
        cause = ""
        if len(ids) == 1 and ids != {str(planned.node_id)}:
            cause = f", so the host was set up as gb10_node_id {ids.pop()}, not {planned.node_id}"
        yield _RULES.finding(
            "cabling.address",
            ", ".join(has) or None,
            host,
            key=vf.netdev,
            wrong=len(wrong),
            count=len(planned.vfs),
            planned=f"{vf.address}/{vf.prefix}",
            cause=cause,
        )
