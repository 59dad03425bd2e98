# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a plan of the fabric to people. Private to the collection."""

from __future__ import annotations

from itertools import combinations

from ansible_collections.gb10.cluster.plugins.module_utils._common.tables import align

from .checks import LARGEST_RING
from .links import shared_rails, unlinked
from .model import Plan

# Two ranges of addresses fit a terminal of 100 columns, beside a host name of 20.
_RANGES_PER_LINE = 2


def format_plan(plan: Plan) -> str:
    """Return a summary line, a table of the rails' PFs, one of the hosts' addresses, and the cables of a ring."""
    total = sum(len(host.vfs) for host in plan.hosts.values())
    title = (
        f"{len(plan.hosts)} hosts, {len(plan.rails)} rails, {total} VFs, {len(plan.networks)} NADs; "
        f"MTU {plan.mtu}, {plan.scheme}, {plan.topology}{', transit' if plan.transit else ''}"
    )
    return "\n".join([title, *align(_pfs(plan)), *align(_addresses(plan)), *_cables(plan)])


def _pfs(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for every rail and name of its PF, with the hosts that have a PF of this name there."""
    networks = {rail.name: rail.network for rail in plan.rails}
    hosts: dict[tuple[int, str, str, str, int], list[str]] = {}
    for name, host in plan.hosts.items():
        for pf in host.pfs:
            vf_count = sum(vf.rail == pf.rail for vf in host.vfs)
            hosts.setdefault((pf.rail_index, pf.rail, pf.name, pf.rdma_device, vf_count), []).append(name)
    rows: list[tuple[str, ...]] = [("rail", "network", "PF", "RDMA device", "VFs", "hosts")]
    for (_index, rail, pf_name, device, vf_count), names in sorted(hosts.items()):
        rows.append((rail, networks[rail], pf_name, device, str(vf_count), _some(names, len(plan.hosts))))
    return rows


def _some(names: list[str], total: int) -> str:
    """Return few names as they are, and many as their number."""
    if len(names) == total:
        return "all"
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} of {total}"


def _addresses(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the first and the last address of every host on each of its rails, in the order of the rails."""
    rows = [("host", "id", "addresses")]
    for name, host in plan.hosts.items():
        by_rail = [[vf for vf in host.vfs if vf.rail == pf.rail] for pf in host.pfs]
        ranges = [_ends([f"{vf.address}/{vf.prefix}" for vf in vfs]) for vfs in by_rail]
        ranges += [_ends([f"{vf.address6}/{vf.prefix6}" for vf in vfs if vf.address6]) for vfs in by_rail]
        ranges = [text for text in ranges if text]
        for at in range(0, len(ranges) or 1, _RANGES_PER_LINE):
            known = ("", "") if at else (name, str(host.node_id))
            rows.append((*known, ", ".join(ranges[at : at + _RANGES_PER_LINE])))
    return rows


def _ends(texts: list[str]) -> str:
    return " … ".join(dict.fromkeys([*texts[:1], *texts[-1:]]))


def _cables(plan: Plan) -> list[str]:
    """Return a line per pair of hosts with a cable and one for those without, for few hosts without a common rail."""
    rails = {name: tuple(pf.rail for pf in host.pfs) for name, host in plan.hosts.items()}
    if not 2 <= len(rails) <= LARGEST_RING or shared_rails(rails, *rails):
        return []
    pairs = [(pair, shared) for pair in combinations(rails, 2) if (shared := shared_rails(rails, *pair))]
    missing = "; ".join(" and ".join(pair) for pair in unlinked(rails, list(rails)))
    lines = [f"{' and '.join(pair)}: {', '.join(shared)}" for pair, shared in pairs]
    return [*lines, f"no cable: {missing}"] if missing else lines
