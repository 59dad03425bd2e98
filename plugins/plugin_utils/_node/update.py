# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what an update would do to each node, and say it before anything changes. Pure functions.

A host's answer is a stranger's data: what has another form than names, versions and kernels have is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE
from ansible_collections.gb10.cluster.plugins.module_utils._node import update
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import PACKAGES
from ansible_collections.gb10.cluster.plugins.module_utils._node.update import Observed

from .._controller.data import Rules
from .combinations import REPORTED, find_matching

RULES = Rules("_node", "APT and GRUB of the host")
SYSTEMS = ("debian", "ubuntu")  # DGX OS calls itself ubuntu
BOOT_MIB = (
    400  # vmlinuz, and an initial RAM disk with the driver, which is written beside the old one when it is made again
)
SHOWN = 6  # packages that the plan names
PROVE = "prove its transport and its answers"
_WORD = re.compile(r"[\w.+:~>/@-]{1,200}", re.ASCII)
_DRIVER = re.compile(r"libnvidia-compute-\d+")


@dataclass(frozen=True)
class Node:
    """A host: its name and its node's, what preflight read (None: nothing), and what module node_update found."""

    host: str
    name: str
    facts: Mapping[str, Any] | None
    seen: Observed | None


def read_observed(found: Any) -> Observed | None:
    """Return what a host found; None if a part of it has another form."""
    try:
        seen = plain.load(Observed, found)
        state = seen.state
        words = [
            seen.kernel,
            *seen.lines,
            *seen.hold,
            *seen.kernels,
            state.kernel_before,
            state.kernel_after,
            state.begun,
        ]
        words += [word for each in seen.changes for word in (each.name, each.before, each.after)]
        fits = all(isinstance(word, str) and (not word or _WORD.fullmatch(word)) for word in words)
        return seen if fits and seen.kernel and isinstance(seen.boot_free_mib, int | None) else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def check_nodes(
    nodes: Sequence[Node], groups: Mapping[str, Sequence[str]], severities: Mapping[str, str]
) -> list[Finding]:
    """Return what speaks against the update of each node, and what its owner should know."""
    several = [RULES.finding("update.group.several", ", ".join(sorted(groups)))] if len(groups) > 1 else []
    states = {node.host: node.seen.state for node in nodes if node.seen}
    failed = {
        each.kernel_after: host for host, each in states.items() if each.phase == "returned" and each.kernel_after
    }
    elsewhere = [
        RULES.finding("update.kernel.failed", node.seen.next_kernel, node.host, other=failed[node.seen.next_kernel])
        for node in nodes
        if node.seen and node.seen.next_kernel in failed and not node.seen.retry
    ]
    return [*several, *elsewhere, *(finding for node in nodes for finding in _check(node, severities))]


def _check(node: Node, severities: Mapping[str, str]) -> Iterator[Finding]:
    seen, facts = node.seen, node.facts
    if seen is None or facts is None:
        yield RULES.finding("update.facts.odd", None, node.host)
        return
    if seen.back:
        return
    if facts["os"]["id"] not in SYSTEMS:
        yield RULES.finding("update.system.unsupported", facts["os"]["name"][:80], node.host)
        return
    removed = [each.name for each in seen.changes if not each.after and each.name.startswith(PACKAGES)]
    if removed:
        yield RULES.finding("update.packages.removed", ", ".join(removed), node.host)
    for kernel in update.images(seen.changes):
        if update.line_of(kernel) not in seen.lines:
            words = {"running": seen.kernel, "line": update.line_of(kernel)}
            yield RULES.finding("update.kernel.line", kernel, node.host, **words)
    if seen.next_kernel and seen.kernel not in seen.kernels:
        yield RULES.finding("update.kernel.no_way_back", seen.next_kernel, node.host, running=seen.kernel)
    if seen.next_kernel and not seen.grub_writes:
        yield RULES.finding("update.kernel.not_once", seen.next_kernel, node.host)
    if update.images(seen.changes) and (seen.boot_free_mib or 0) < BOOT_MIB:
        yield RULES.finding("update.boot.space", seen.boot_free_mib, node.host, needed=BOOT_MIB)
    if seen.hold:
        yield RULES.finding("update.kernel.held", ", ".join(seen.hold), node.host, line=" and ".join(seen.lines))
    state = seen.state
    if state.phase == "returned" and state.kernel_after and not seen.retry:
        yield RULES.finding("update.kernel.returned", state.kernel_after, node.host, before=state.kernel_before)
    yield from _known(node.host, facts, seen, severities)


def _known(host: str, facts: Mapping[str, Any], seen: Observed, severities: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the known problems that the host would have after the update, and does not have now."""
    has = {entry.id for entry in find_matching(facts)}
    for entry in find_matching(facts_after(facts, seen)):
        severity = severities.get(entry.id, entry.severity)
        if entry.id in has or severity not in REPORTED or not entry.id.startswith("preflight."):
            continue
        words = {"about": entry.about, "happens": entry.happens, "remedy": entry.remedy, "rule": entry.id}
        weight = "info" if severity == "info" else "error"
        yield RULES.finding("update.known", seen.next_kernel or entry.id, host, severity=weight, **words)


def facts_after(facts: Mapping[str, Any], seen: Observed) -> dict[str, Any]:
    """Return the facts of a host as far as they can be known before its update; ``installs`` are its new packages.

    What a kernel of 7.x that never ran here reserves as CMA is not known. All that were seen on a Spark show 0.
    """
    after = update.versions(seen.changes, "after")
    known = {**facts, "packages": {**facts["packages"], **after}, "installs": sorted(after)}
    if seen.next_kernel:
        known |= {"kernel": seen.next_kernel, "cma_kib": 0, "cma_free_kib": None}
    drivers = [version.partition("-")[0] for name, version in after.items() if _DRIVER.fullmatch(name)]
    return known | ({"gpu_driver": drivers[0]} if drivers and facts["gpu_driver"] else {})


def find_groups(pods: Iterable[Mapping[str, Any]], nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return ``{group: its nodes}`` for the groups with a rank on one of the nodes; ``pods`` are those of all ranks."""
    places: dict[str, set[str]] = {}
    for pod in pods:
        group = (pod["metadata"].get("labels") or {}).get(INSTANCE)
        if group and pod["spec"].get("nodeName"):
            places.setdefault(group, set()).add(pod["spec"]["nodeName"])
    mine = {node.name for node in nodes if node.seen and node.seen.due}
    return {group: sorted(found) for group, found in sorted(places.items()) if found & mine}


def begins(nodes: Iterable[Node]) -> bool:
    """Tell whether no host goes on with an update or goes back, so that the group that runs was not changed yet."""
    return not any(node.seen and (node.seen.back or node.seen.state.open) for node in nodes)


def describe(nodes: Sequence[Node], groups: Mapping[str, Sequence[str]], proof: str) -> list[str]:
    """Return the plan, a line per step of the run; ``proof`` says whether it follows each ``node`` or the ``group``."""
    due = [(node, node.seen) for node in nodes if node.seen and node.seen.due]
    back = any(seen.back for _node, seen in due)
    before = ", after it has passed its proof" if begins(nodes) else ""
    lines = [f"stop group {group}, which has ranks on {', '.join(places)}{before}" for group, places in groups.items()]
    for node, seen in due:
        mine = [group for group, places in groups.items() if node.name in places and proof == "node"]
        lines.append(_describe(node.host, seen, [f"start group {group}, and {PROVE}" for group in mine]))
    hosts = ", ".join(node.host for node, seen in due if _wanted_kernel(seen))
    for group in groups:
        # A host without a new kernel does not boot again.
        who = "that node" if proof == "node" else f"each of {hosts}"
        booted = f"{who} boots the kernel from before, " if hosts else ""
        again = f"{booted}group {group} starts again, and the run ends"
        if back:
            lines.append(f"start group {group}, and {PROVE}")
        elif proof == "node":
            lines.append(f"leave group {group} running; if a check or a proof fails, {again}")
        else:
            lines.append(f"start group {group}, and {PROVE}; if that fails, {again}")
    return lines


def _wanted_kernel(seen: Observed) -> str:
    return seen.next_kernel or (seen.state.kernel_after if seen.state.open and not seen.fell_back else "")


def _describe(host: str, seen: Observed, proofs: Sequence[str]) -> str:
    if seen.back:
        return f"{host}: boot {seen.state.kernel_before} again instead of {seen.kernel}; check the host and the fabric"
    names = [each.name for each in seen.changes if each.after]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    parts = [f"go on with the update of {seen.state.begun}"] if seen.state.open else []
    parts += [f"hold {', '.join(seen.hold)}"] if seen.hold else []
    parts += [f"install {', '.join(names[:SHOWN])}{more}"] if names else []
    removed = [each.name for each in seen.changes if not each.after]
    parts += [f"remove {', '.join(removed)}"] if removed else []
    wanted = _wanted_kernel(seen)
    if wanted and wanted != seen.kernel:
        parts += [f"boot {wanted} once instead of {seen.kernel}"]
    elif seen.state.reboot or seen.reboot_required or update.needs_reboot(seen.changes):
        parts += ["reboot"]
    made = "; ".join([*parts, "check the host and the fabric", *proofs])
    return f"{host}: {made}" + (f"; make {wanted} the default" if wanted else "")
