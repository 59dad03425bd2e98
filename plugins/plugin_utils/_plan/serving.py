# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a serving group from the options of role serving_plan. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._controller.options import from_options
from .._rules import Rules
from .._serving.cables import POD_INTERFACE
from .._serving.checks import holes
from .._serving.fallback import OPTION, Fallback, plan_fallback
from .._serving.model import Plan, Profile, Settings, instance_name
from .._serving.nccl_env import lint_env
from .._serving.plan import plan_group, summarize
from .._serving.profile import to_serving
from .._sglang.profile import Library, ResolvedProfile, merge, resolve
from .._sglang.profile_checks import override_findings
from .._sglang.profile_files import (
    ProfileError,
    known_images,
    load_profile,
    look_up,
    newest,
    override_problems,
    release_of,
)
from .._sglang.schema import BrokenInstallation
from .load import load_peak


def plan_serving(options: Mapping[str, Any], full: bool = False) -> tuple[dict[str, Any], list[Finding], list[str]]:
    """Return the plan as plain data, all findings, and lines for people.

    ``full`` lines have the command of the head and the arithmetic of its memory. The option ``readings`` has the memory
    (GiB) of each node in their order, None where preflight has not read the host; by host, ``loads`` has what loads
    took there, and ``held`` the GiB that others hold.
    Without a fabric (None) only what does not depend on it is checked, and the plan has no ranks.
    """
    resolved, findings = resolve_options(options)
    instance = instance_name(options["instance"], options["profile"])
    fact: dict[str, Any] = {"instance": instance, "ranks": [], "models_dir": options["models_dir"]}
    done = [f"Group {instance} is planned."]
    if resolved is not None:
        profile = to_serving(resolved, options["models_dir"], options["metrics"])
        nodes = options["nodes"] or options["candidates"][: profile.nodes]
        settings = from_options(Settings, options, instance=instance, nodes=nodes)
        plan, found = plan_group(options["fabric"], profile, settings)
        findings = _with_presets(_unexplained(findings + found), options, nodes) + _lint(plan)
        findings += _idle(options, nodes, profile)
        done += summarize(plan, resolved.memory, full, resolved.image_gb, resolved.image_note)
        done += [f"context: {one.value} tokens, {one.reason}" for one in findings if one.rule == "profile.context"]
        done += holes(profile, settings) + resolved.published
        fallback, found = _fallback(options, profile, settings)
        findings += [finding for finding in found if finding not in findings]
        lines, found = load_peak(resolved, plan, options.get("loads") or {}, options.get("held") or {}, full)
        done, findings = done + lines, findings + found
        if resolved.swap_gib:
            done.append(f"swap: {resolved.swap_gib:g} GiB on each node while the weights load")
        fact = plan.as_dict()
        if fallback:
            fact |= _with_models(plan, fallback) | {"fallback": fallback.as_dict()}
            done += _summarized(fallback, full)
    findings, fact["waived"] = waive(findings, options.get("waive") or (), Library.load(options["profile_dirs"]))
    done += [f"waived: {rule}, {len(texts)} finding(s)" for rule, texts in fact["waived"].items()]
    fact["findings"] = [finding.as_dict() for finding in findings]
    return fact, findings, done


def _unexplained(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings without those that only repeat in SGLang's words what the topology says."""
    known = list(findings)
    world = any(finding.rule == "serving.topology.world" for finding in known)
    return [finding for finding in known if not (world and finding.rule == "par.nnodes")]


def _with_presets(findings: Iterable[Finding], options: Mapping[str, Any], nodes: Sequence[str]) -> list[Finding]:
    """Return the findings, that of a wrong number of nodes with the presets that are for this number."""
    raw = load_profile(options["profile"], options["profile_dirs"])
    fit = [name for name in raw.get("presets") or {} if merge(raw, name, None)["topology"]["nodes"] == len(nodes)]
    which = f": {', '.join(fit)}" if fit else " of another profile (docs/prepare.md lists their nodes)"
    return [replace(f, remedy=f"{f.remedy}{which}") if f.rule == "serving.nodes.count" else f for f in findings]


def waive(
    findings: list[Finding], rules: Sequence[str], library: Library
) -> tuple[list[Finding], dict[str, list[str]]]:
    """Return the findings without those of the named rules of a launch, and what they said by rule.

    Only rules about SGLang's flags can be waived. A name that is none of them is an error.
    """
    known = {rule.id for rule in library.knowledge.rules.rules}
    said = {name: [str(one) for one in findings if one.rule == name] for name in rules if name in known}
    kept = [finding for finding in findings if finding.rule not in said]
    remedy = "Take the name in brackets from a finding, or from docs/launch-rules.md"
    for name in rules:
        if name not in known:
            reason = "it is not a rule about a launch that can be waived"
            kept.append(Finding("error", "serving.waive", "serving_plan_waive", name, reason, remedy))
    return kept, said


def _idle(options: Mapping[str, Any], nodes: Sequence[str], profile: Profile) -> list[Finding]:
    """Return a warning with the nodes that neither this group nor a running one uses."""
    used = {*nodes, *(str(other["node"]) for other in options["taken"])}
    idle = [node for node in options["candidates"] if node not in used]
    words = {"count": len(nodes), "all": len(options["candidates"]), "profile": profile.name}
    return [Rules("_serving").finding("serving.nodes.idle", idle, **words)] if idle else []


def _fallback(options: Mapping[str, Any], main: Profile, settings: Settings) -> tuple[Fallback | None, list[Finding]]:
    """Return the plans of the preset that serves while a node is gone, if the owner named one, and all findings."""
    if not options["fallback_preset"]:
        return None, []
    # An override of the topology is that of the group's own nodes.
    overrides = {key: value for key, value in options["overrides"].items() if key != "topology"}
    resolved, findings = resolve_options({**options, "preset": options["fallback_preset"], "overrides": overrides})
    if resolved is None:
        return None, [replace(finding, key=OPTION, value=options["fallback_preset"]) for finding in findings]
    profile = to_serving(resolved, options["models_dir"], options["metrics"])
    times = options["fallback_after"], options["fallback_return_after"]
    fallback, found = plan_fallback(options["fabric"], profile, main, settings, *times)
    return fallback, [*findings, *found, *(finding for plan in fallback.plans.values() for finding in _lint(plan))]


def _with_models(plan: Plan, fallback: Fallback) -> dict[str, Any]:
    """Return the models of both presets, because every node may have to run either."""
    plans = [plan, *list(fallback.plans.values())[:1]]
    revisions = {name: revision for one in plans for name, revision in one.revisions.items()}
    paths = dict.fromkeys(path for one in plans for path in one.paths)
    return {"models": list(revisions), "revisions": revisions, "paths": list(paths)}


def _summarized(fallback: Fallback, full: bool) -> list[str]:
    sets = [", ".join(rank.node for rank in plan.ranks) for plan in fallback.plans.values()]
    title = f"fallback: preset {fallback.preset}, if a node is gone for {fallback.after} s, on {' or on '.join(sets)}"
    first = next(iter(fallback.plans.values()), None)
    return [title, *(first.memory if first and full else ())]


def resolve_options(options: Mapping[str, Any]) -> tuple[ResolvedProfile | None, list[Finding]]:
    """Return the profile as resolved for the wanted release, or None, and all findings about it."""
    preset, version = options["preset"] or None, options["sglang_version"] or None
    raw: Mapping[str, Any] | None = None
    wrong: list[Finding] = []
    try:
        if version and Version.find(version) is None:
            best = newest(known_images(options["profile_dirs"])).sglang
            return None, [Rules("_serving").finding("serving.version", version, newest=best)]
        wrong = override_findings(override_problems(options["overrides"]), "serving_plan_overrides")
        unusable = {finding.key.partition(".")[0] for finding in wrong}
        overrides = {key: value for key, value in options["overrides"].items() if key not in unusable}
        library = Library.load(options["profile_dirs"])
        try:
            raw = load_profile(options["profile"], options["profile_dirs"])
        except ProfileError as error:
            if error.usable:
                with suppress(ValueError):
                    wrong += resolve(error.usable, preset, version, overrides, library, options["platform"]).findings
            raise
        readings = options.get("readings") or ()
        if options["image"]:
            raw, version, unsure = _with_image(raw, options, version)
            overrides["image"] = options["image"]
            wrong += unsure
        elif raw.get("default_preset") == "" and not preset:
            named = ", ".join(raw["presets"])
            raise ValueError(f"the profile has no default, because its image has no digest; set preset to {named}")
        resolved = resolve(raw, preset, version, overrides, library, options["platform"], readings)
    except BrokenInstallation as error:
        return None, [Finding("error", "serving.installation", "gb10.cluster", None, error.reason, error.remedy)]
    except ValueError as error:
        remedy = "Correct profile, preset or version; playbooks/profile_new.yml writes a new profile to start from"
        key = "preset" if raw is not None and preset and preset not in (raw.get("presets") or {}) else "profile"
        reason = str(error).rstrip(".")
        return None, [Finding("error", "serving.profile", key, options[key], reason, remedy), *wrong]
    if options["images_from"]:
        copy = options["images_from"].replace("{version}", resolved.sglang_version)
        resolved = replace(resolved, image=copy)
    return resolved, [*wrong, *resolved.findings]


def _with_image(
    raw: Mapping[str, Any], options: Mapping[str, Any], version: str | None
) -> tuple[dict[str, Any], str | None, list[Finding]]:
    """Return the profile with the owner's image and what the profiles or its tag say of it, and the release to run."""
    images, reference = known_images(options["profile_dirs"]), str(options["image"])
    found, told = look_up(images, reference), release_of(images, reference)
    if not told and not version:
        unsure = Rules("_serving").finding("serving.image.release", reference, release=raw.get("sglang_version"))
        return dict(raw), None, [unsure]
    if found and not found.profile:
        return dict(raw), version or told, []
    entry: dict[str, Any] = {"sglang": told or version, "image": reference}
    if found:
        entry |= {"carries": list(found.carries)} | ({"gb": found.gb} if found.gb else {})
    return {**raw, "images": [entry]}, version or told, []


def _lint(plan: Plan) -> list[Finding]:
    """Return NCCL's problems with the environment of each rank; a finding that all ranks share appears once."""
    found: dict[tuple[str, str], Finding] = {}
    for rank in plan.ranks:
        devices = [network.rdma_device for network in rank.networks]
        interfaces = [POD_INTERFACE, *(network.interface for network in rank.networks)]
        expected = plan.transport == "roce" and bool(devices)
        for finding in lint_env(rank.env, expect_rdma=expected, hcas=devices, netdevs=interfaces):
            found.setdefault((finding.rule, finding.key), finding)
    return list(found.values())
