# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the preset that serves while a node of the group is gone. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, combinations
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._fallback.state import MAIN, Status

from .._rules import Rules
from .model import Plan, Profile, Service, Settings
from .plan import plan_group

OPTION = "serving_plan_fallback_preset"
# Kubernetes needs about 50 s to notice that a node is gone, and a restart of a node takes a few minutes.
SHORTEST = 10
# If there are at most so many sets of nodes, each gets a plan, so that the group also survives the loss of more nodes.
# A fallback of four out of eight nodes has 70 sets, and each is a StatefulSet per rank.
MOST_SETS = 6
_finding = Rules("_serving").finding


@dataclass(frozen=True)
class Fallback:
    """The preset that serves while a node is gone: a complete plan per set of nodes, by the name of the set.

    ``after`` is how long a node has to be gone, ``return_after`` how long all nodes have to be back, in seconds.
    """

    preset: str
    after: int
    return_after: int
    plans: Mapping[str, Plan]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data in the shape of the fact."""
        return {**vars(self), "plans": {name: plan.as_dict() for name, plan in self.plans.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fallback:
        """Return what :meth:`as_dict` wrote."""
        return plain.load(cls, data)


def kept(config_maps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the set of nodes that serves (empty: the planned one) and a sentence, from what the switch has kept.

    ``config_maps`` has the group's ConfigMap for that, if it has a fallback.
    """
    if not config_maps:
        return {"set": "", "text": ""}
    text = (config_maps[0].get("data") or {}).get("status", "")
    if not text:
        return {"set": "", "text": "Fallback: its switch has not started yet."}
    status = Status.parse(text)
    active = status.serving != MAIN
    if status.reason == "Planned":
        return {"set": "", "text": "Fallback: not in use; the planned preset serves."}
    since = datetime.fromtimestamp(status.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = "in use" if active else "not in use"
    return {
        "set": status.serving if active else "",
        "text": f"Fallback: {state} since {since}: {status.message} [{status.reason}].",
    }


def plan_fallback(
    fabric: Mapping[str, Any] | None, profile: Profile, main: Profile, settings: Settings, after: int, return_after: int
) -> tuple[Fallback, list[Finding]]:
    """Return the fallback of the group ``main`` with ``settings``, and all findings.

    There is a plan for the loss of each node, the head's included; equal sets of remaining nodes share one. In a small
    group there is also one for every other set of nodes that can run the preset.
    """
    findings = list(_check(profile, main, settings, after, return_after))
    plans: dict[str, Plan] = {}
    if not has_errors(findings):
        chosen: dict[tuple[str, ...], Plan] = {}
        for lost in settings.nodes:
            plan, found = _without(lost, fabric, profile, settings, _name(profile, len(chosen)))
            nodes = tuple(rank.node for rank in plan.ranks)
            findings += [finding for finding in found if finding not in findings]
            if nodes and nodes not in chosen:
                chosen[nodes] = plan
        every = list(combinations(settings.nodes, profile.nodes))
        for nodes in every if len(every) <= MOST_SETS else []:
            if nodes not in chosen:
                plan, found = _on(nodes, fabric, profile, settings, _name(profile, len(chosen)))
                if not has_errors(found):
                    chosen[nodes] = plan
        plans = {_name(profile, number): plan for number, plan in enumerate(chosen.values())}
    return Fallback(profile.preset, after, return_after, plans), findings


def _name(profile: Profile, number: int) -> str:
    """Return the name of a set of nodes. Sets of one name have equally many StatefulSets, also in later plans."""
    return f"f{profile.nodes}-{number + 1}"


def _without(
    lost: str, fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings, name: str
) -> tuple[Plan, list[Finding]]:
    """Return the plan on the first remaining nodes, in rank order, that can run the preset together.

    In a ring not every set of nodes can. If no set can, the findings are those of the first one.
    """
    rest = [node for node in settings.nodes if node != lost]
    tried = (_on(nodes, fabric, profile, settings, name) for nodes in combinations(rest, profile.nodes))
    first = next(tried)
    plan, found = next((one for one in chain([first], tried) if not has_errors(one[1])), first)
    return plan, [_placed(finding, lost) for finding in found]


def _on(
    nodes: tuple[str, ...], fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings, name: str
) -> tuple[Plan, list[Finding]]:
    """Return the plan on these nodes. Its workloads have names of their own; its Service is that of the group."""
    taken = tuple(other for other in settings.taken if other["instance"] != settings.instance)
    own = replace(settings, instance=f"{settings.instance}-{name}", nodes=nodes, taken=taken)
    plan, found = plan_group(fabric, profile, own)
    return replace(plan, instance=settings.instance, service=Service(settings.instance, settings.port)), found


def _placed(finding: Finding, lost: str) -> Finding:
    """Return a finding about certain nodes with the node whose loss it is about; others concern every set of nodes."""
    if finding.severity != "error":
        return finding
    return replace(finding, where=", ".join(filter(None, (finding.where, f"fallback without {lost}"))))


def _check(profile: Profile, main: Profile, settings: Settings, after: int, return_after: int) -> Iterator[Finding]:
    preset, where = profile.preset, f"profile {profile.name}/{profile.preset}"
    if profile.nodes >= len(settings.nodes):
        words: dict[str, object] = {"needed": profile.nodes, "left": len(settings.nodes) - 1}
        yield _finding("serving.fallback.nodes", preset, where, **words)
    if (profile.image, profile.sglang_version) != (main.image, main.sglang_version):
        words = {"own": profile.sglang_version, "image": profile.image}
        words |= {"version": main.sglang_version, "other": main.image}
        yield _finding("serving.fallback.image", preset, where, **words)
    for name in profile.models:
        if name in main.models and profile.revisions.get(name) != main.revisions.get(name):
            own, revision = profile.revisions.get(name), main.revisions.get(name)
            yield _finding("serving.fallback.revision", own, where, key=name, revision=revision)
    for key, seconds in (("after", after), ("return_after", return_after)):
        if seconds < SHORTEST:
            option = f"serving_plan_fallback_{key}"
            yield _finding("serving.fallback.seconds", seconds, key=option, shortest=SHORTEST)
