# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a serving group from the options of an inventory, with the load and the needs of its nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

from ansible.template import Templar
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Taken

from .._controller.data import ROLES, Rules
from .._controller.options import from_options, role_options
from .._fabric.checks import check_mtu, check_node_ids
from .._fabric.parse import VARIABLES, parse_fabric
from .._fabric.plan import plan_fabric
from .._inventory.variables import Known, load_known, meant
from .._node.host import Needs
from .._sglang.profile import Library, ResolvedProfile, merge, resolve
from .._sglang.profile_files import (
    ProfileError,
    known_images,
    load_profile,
    look_up,
    newest,
    override_findings,
    release_of,
)
from .._sglang.schema import BrokenInstallation
from .checks import POD_INTERFACE, holes
from .model import Plan, Profile, Settings, instance_name, repositories, to_serving
from .nccl_env import lint_env
from .plan import OPTION, Fallback, plan_fallback, plan_group, summarize
from .pods import PodOptions, launch_key

# Tell how much of a node's memory a load takes at its peak, where GPU and CPU share it.
#
# A load of the same image and command that was watched (roles/sglang/files/watch_load.py) is the best answer. Without
# one, the arithmetic has what was there before, weights, draft and the loader. What CUDA graphs, compilers and a loader
# that converts weights take is in no file of a model, so it comes from the last load that differs in its caches or in
# the number of compilers alone. Before there was one, it is not in the sum, and has to fit into what
# mem_fraction_static leaves. Fragmentation is a part of what was counted, and is not told apart.
#
# The loader of SGLang 0.5.10 to 0.5.23 opens as many files as it has threads and one more
# (buffered_multi_thread_safetensors_weights_iterator), eight threads by default. It maps the files, so what it reads is
# page cache, which the kernel gives back. Without mmap each file is in memory twice while it is read. Counted with the
# code of 0.5.23, safetensors 0.8.0 and eight files of 0.5 GiB: 1, 2 and 4 threads held 2.1, 4.1 and 8.0 files, no
# thread 3.0, and every number of threads none with mmap. The weights of the files that a thread reads, and of the one
# that is ready, are not copied to their place yet, so the peak has them once less. In a whole server (0.5.20 on a busy
# CPU, 3.3 GiB of weights in files of 0.4 GiB) that is 5.2, 6.0 and 5.2 GiB with 2, 4 and no threads, where 4.7, 5.3 and
# 5.15 were counted (+10, +14 and +1 %), and 4.4 with mmap, as counted.

THREADS = 8
"""SGLang's default (DefaultModelLoader.DEFAULT_NUM_THREADS)."""

FILE_GIB = 5e9 / 2**30
"""The largest file of a checkpoint that huggingface_hub writes by default; the plan does not know the real ones."""

ROOM = 1 - PodOptions.memory_guard_percent[1] / 100
"""The share of a node's memory above which a load is ended by default."""

_RULES = Rules("_serving")


def files_in_memory(threads: int) -> int:
    """Return how many files a loader without mmap holds at most; 0 threads read one file after the other."""
    return 2 * threads + 1 if threads else 3


def files_beside(threads: int, files: int, share: float) -> float:
    """Return how many files a loader without mmap holds at the peak of a load beside the weights.

    ``files`` is the number of the checkpoint's files, ``share`` the part of a file that becomes weights of this node.
    """
    # A checkpoint of few files has no more of them, each twice.
    return min(files_in_memory(threads), 2 * files) - min(threads + 1, files) * share


def threads_of(server_args: Mapping[str, Any]) -> int:
    """Return the threads of the loader, 0 if it has none."""
    given = server_args.get("model_loader_extra_config") or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = {}
    given = given if isinstance(given, Mapping) else {}
    wanted = given.get("num_threads", THREADS) if given.get("enable_multithread_load", True) else 0
    return wanted if isinstance(wanted, int) else THREADS


def predicted(resolved: ResolvedProfile) -> tuple[list[str], list[Finding]]:
    """Return the arithmetic, and what does not fit into a node; nothing where the GPU has a memory of its own."""
    memory, args = resolved.memory, resolved.server_args
    if memory.get("load_gib") is None or memory.get("weights_gib") is None:
        return [], []
    total, weights, draft = memory["total_gib"], memory["weights_gib"], memory["draft_gib"] or 0.0
    threads = threads_of(args)
    whole = float(memory.get("download_gb") or 1e9) * 1e9 / 2**30
    size = min(FILE_GIB, whole)
    mapped = not args.get("weight_loader_disable_mmap")
    count, share = ceil(whole / size), min(1.0, weights / whole)
    loader = 0.0 if mapped else files_beside(threads, count, share) * size
    before = total - memory["available_gib"]
    files = min(files_in_memory(threads), 2 * count)
    how = "files are mapped" if mapped else f"up to {files} files of {size:.1f} with {threads} threads"
    weighs = before + weights + draft + loader
    lines = [
        f"load: {before:.1f} GiB before it + {weights:.1f} of weights + {draft:.1f} of the draft + {loader:.1f} in the"
        f" loader ({how}) = {weighs:.1f} of {total:.1f}; {before + memory['static_gib']:.1f} with the caches. Graphs"
        " and compilers are known after the first load"
    ]
    if not loader:
        return lines, []
    # What the loader holds may be swapped out.
    room = total * ROOM + resolved.swap_gib
    least = total - memory["most_gib"] + weights + draft
    if weighs <= room:
        return lines, []
    fits = [n for n in range(threads - 1, 0, -1) if weighs - loader + files_beside(n, count, share) * size <= room]
    # The rule is an upper bound, and a load that takes too much is ended, so only what can't fit is refused.
    severity: Severity = "error" if least + min(files_beside(1, count, share) * size, loader) > room else "warning"
    values = {"peak": f"{weighs:.0f}", "room": f"{room:.0f}", "loader": f"{loader:.0f}", "how": how}
    said = f"num_threads {fits[0]} would fit" if fits else "no number of threads would fit"
    return lines, [_RULES.finding("serving.load.peak", threads, severity=severity, fits=said, **values)]


def measured(
    plan: Plan, loads: Mapping[str, Sequence[Taken]], held: Mapping[str, float]
) -> tuple[list[str], list[Finding]]:
    """Return what the last load of the same image and command took on its nodes, and which ones were ended.

    ``loads`` has the ledgers of each host, the oldest first, ``held`` the GiB that programs outside Kubernetes hold
    there now. What a load added to these is the least that it needs: the system itself comes on top.
    """
    found = dict(_last(plan, loads))
    if not found:
        return [], []
    node = max(found, key=lambda name: found[name]["taken_gib"])
    most = found[node]
    each = ", ".join(f"{phase} {gib:.1f}" for phase, gib in most["peaks"].items())
    lines = [
        f"load: as counted on {node} ({most['at']}, {len(found)} of {len(plan.ranks)} nodes known), up to"
        f" {most['taken_gib']:.1f} of {most['total_gib']:.1f} GiB were taken, {most['before_gib']:.1f} of them before"
        f" the load" + (f" ({each})" if each else "")
    ]
    findings = [
        _RULES.finding(
            "serving.load.ended",
            f"{taken['taken_gib']:.1f} GiB",
            node,
            phase=taken["phase"],
            at=taken["at"],
            total=f"{taken['total_gib']:.1f}",
        )
        for node, taken in found.items()
        if taken["state"] == "ended"
    ]
    for node, taken in found.items():
        needs = taken["taken_gib"] - taken["before_gib"] + held.get(node, 0.0)
        if needs > taken["total_gib"] * ROOM:
            figures = {"held": f"{held[node]:.1f}", "needs": f"{needs:.1f}", "total": f"{taken['total_gib']:.1f}"}
            findings.append(_RULES.finding("serving.load.held", figures["held"], node, **figures))
    return lines, findings


def _last(plan: Plan, loads: Mapping[str, Sequence[Taken]], part: int = 0) -> Iterator[tuple[str, Taken]]:
    """Yield the last load on each node whose key has the same part: 0 the whole command, 1 all but the caches."""
    key = launch_key(plan).split(".")[part] if plan.ranks else ""
    for rank in plan.ranks:
        # A part that a host did not tell is empty.
        whole = [taken for taken in loads.get(rank.node, ()) if taken["state"] and taken["total_gib"] > 0]
        same = [taken for taken in whole if taken["key"].split(".")[part:][:1] == [key]]
        if same:
            yield rank.node, same[-1]


def after_caches(taken: Taken, jobs: int) -> dict[str, float]:
    """Return what each phase after the caches took beside them, in GiB, with ``jobs`` compilers."""
    peaks = taken["peaks"]
    caches = peaks.get("caches", 0.0)
    found = {name: peaks[name] - caches for name in ("graphs", "compile", "warm-up") if caches and name in peaks}
    # While a compiler runs, its phase has what the graphs take too.
    found["graphs"] = max(found.get("graphs", 0.0), taken["graphs_gib"])
    counted = found.get("compile", 0.0)
    if taken["compilers_gib"] and taken["jobs"] and jobs:
        # Most compilers take less than the largest one: a bound. Fewer of them take no more than was counted.
        bound = counted - taken["compilers_gib"] + jobs * taken["compiler_gib"]
        found["compile"] = min(bound, counted) if jobs <= taken["jobs"] else bound
    return {name: max(0.0, gib) for name, gib in found.items()}


def rescaled(
    resolved: ResolvedProfile, plan: Plan, loads: Mapping[str, Sequence[Taken]]
) -> tuple[list[str], list[Finding]]:
    """Return what a load would take whose last one had other caches or another number of compilers.

    SGLang's share is of what was available when its processes had started. What came after the caches is added as it
    was counted.
    """
    memory, jobs = resolved.memory, _jobs(plan)
    rows = []
    for node, taken in _last(plan, loads, 1) if memory.get("load_gib") is not None else ():
        share = memory["static_gib"] / memory["available_gib"]
        started = taken["peaks"].get("start", taken["before_gib"])
        caches = started + share * (taken["total_gib"] - started)
        early = {name: taken["peaks"][name] for name in ("weights", "draft") if name in taken["peaks"]}
        later = {name: caches + more for name, more in after_caches(taken, jobs).items()}
        peaks = early | {"caches": caches} | later
        rows.append((max(peaks.values()), node, taken, peaks))
    if not rows:
        return [], []
    peak, node, taken, peaks = max(rows, key=lambda row: row[0])
    room, phase = taken["total_gib"] * ROOM, max(peaks, key=lambda name: peaks[name])
    each = ", ".join(f"{name} {gib:.1f}" for name, gib in peaks.items())
    lines = [
        f"load: up to {peak:.1f} of {taken['total_gib']:.1f} GiB ({each}) with these caches and {jobs} compilers, from"
        f" the last load on {node} ({taken['at']}); its graphs took {taken['graphs_gib']:.1f}, as SGLang told, and a"
        f" compiler at most {taken['compiler_gib']:.1f}"
    ]
    if peak <= room:
        return lines, []
    figures = {"peak": f"{peak:.1f}", "room": f"{room:.1f}", "at": taken["at"]}
    return lines, [_RULES.finding("serving.load.phase", phase, node, **figures)]


def _jobs(plan: Plan) -> int:
    given = plan.ranks[0].env.get("MAX_JOBS", "") if plan.ranks else ""
    return int(given) if given.isdecimal() else 0


def load_peak(
    resolved: ResolvedProfile,
    plan: Plan,
    loads: Mapping[str, Sequence[Taken]],
    held: Mapping[str, float],
    full: bool,
) -> tuple[list[str], list[Finding]]:
    """Return the lines and findings about the load: what was counted, or else the arithmetic (``full``)."""
    lines, findings = measured(plan, loads, held)
    alike = all(taken["jobs"] in (0, _jobs(plan)) for _node, taken in _last(plan, loads))
    if lines and not findings and alike:
        return lines, []
    other, later = ([], []) if lines and alike else rescaled(resolved, plan, loads)
    if other:
        return lines + other, findings + later
    reckoned, more = predicted(resolved)
    return lines + (reckoned if full else []), findings + more


# Read the options of role serving_plan from the variables of a host.

ROLE = "serving_plan"
PROFILE, PRESET = "serving_plan_profile", "serving_plan_preset"


def serving_defaults(loader: Any) -> dict[str, Any]:
    """Return the defaults of the role as templates."""
    defaults: dict[str, Any] = loader.load_from_file(f"{ROLES / ROLE}/defaults/main.yml", trusted_as_template=True)
    return defaults


def serving_options(loader: Any, values: Mapping[str, Any], wrong: Set[str] = frozenset()) -> dict[str, Any]:
    """Return the options for the variables of a host and those given with -e, without the ``wrong`` variables.

    Raise AnsibleActionFail for an option of another type.
    """
    own, extra, known, defaults = dict(values), load_extra_vars(loader), load_known(), serving_defaults(loader)
    profile = own.get(PROFILE, defaults[PROFILE])
    if "preset" not in extra and extra.get("profile", profile) != profile:
        # As vars/command_line.yml of the playbooks: a preset of the inventory belongs to its profile.
        own.pop(PRESET, None)
    for name, value in extra.items():
        own |= {known.command_line[name]["sets"]: value} if name in known.command_line else {}
    variables = defaults | {name: value for name, value in own.items() if name not in wrong}
    return role_options(ROLE, variables, Templar(loader, variables).template)


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
        profile = to_serving(resolved, options)
        nodes = options["nodes"] or options["candidates"][: profile.nodes]
        theirs = [_named(one, options["namespace"]) for one in options["networks"]]
        settings = from_options(Settings, options, instance=instance, nodes=nodes, networks=theirs)
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


def _named(network: Mapping[str, Any], namespace: str) -> dict[str, str]:
    """Return name, namespace and resource of a network of others, without a name if the entry is invalid."""
    text = str(network.get("name") or "") if network.keys() <= {"name", "resource"} else ""
    space, _slash, name = text.rpartition("/")
    resource = str(network.get("resource") or "")
    return {"name": name, "namespace": space or namespace, "resource": resource, "given": str(dict(network))}


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
    return kept + [_RULES.finding("serving.waive", name) for name in rules if name not in known], said


def _idle(options: Mapping[str, Any], nodes: Sequence[str], profile: Profile) -> list[Finding]:
    """Return a warning with the nodes that neither this group nor a running one uses."""
    used = {*nodes, *(str(other["node"]) for other in options["taken"])}
    idle = [node for node in options["candidates"] if node not in used]
    words = {"count": len(nodes), "all": len(options["candidates"]), "profile": profile.name}
    return [_RULES.finding("serving.nodes.idle", idle, **words)] if idle else []


def _fallback(options: Mapping[str, Any], main: Profile, settings: Settings) -> tuple[Fallback | None, list[Finding]]:
    """Return the plans of the preset that serves while a node is gone, if the owner named one, and all findings."""
    if not options["fallback_preset"]:
        return None, []
    # An override of the topology is that of the group's own nodes.
    overrides = {key: value for key, value in options["overrides"].items() if key != "topology"}
    resolved, findings = resolve_options({**options, "preset": options["fallback_preset"], "overrides": overrides})
    if resolved is None:
        return None, [replace(finding, key=OPTION, value=options["fallback_preset"]) for finding in findings]
    profile = to_serving(resolved, options)
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
            return None, [_RULES.finding("serving.version", version, newest=best)]
        wrong = override_findings(options["overrides"], "serving_plan_overrides")
        unusable = {finding.key.partition(".")[0] for finding in wrong}
        overrides = {key: value for key, value in options["overrides"].items() if key not in unusable}
        library = Library.load(options["profile_dirs"])
        try:
            raw = load_profile(options["profile"], options["profile_dirs"])
        except ProfileError as error:
            if error.usable:
                # Without one of these sizes the others do not fit together.
                whole = {"tp", "nodes"} <= {*(error.usable.get("topology") or {})}
                with suppress(ValueError):
                    found = resolve(error.usable, preset, version, overrides, library, options["platform"]).findings
                    wrong += [finding for finding in found if whole or finding.rule != "par.nnodes"]
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
        return None, [_RULES.finding("serving.installation", None, error=error.reason, remedy=error.remedy)]
    except ValueError as error:
        key = "preset" if raw is not None and preset and preset not in (raw.get("presets") or {}) else "profile"
        said = "; ".join(str(error).rstrip(".").splitlines())
        return None, [_RULES.finding("serving.profile", options[key], key=key, error=said), *wrong]
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
        # A preset may be for another release than the profile.
        release = merge(raw, options["preset"] or None, None).get("sglang_version")
        unsure = _RULES.finding("serving.image.release", reference, release=release)
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
        devices = [network.rdma_device for network in rank.networks if network.rdma_device]
        interfaces = [POD_INTERFACE, *(network.interface for network in rank.networks)]
        expected = plan.transport == "roce" and bool(rank.networks)
        for finding in lint_env(rank.env, expect_rdma=expected, hcas=devices, netdevs=interfaces):
            found.setdefault((finding.rule, finding.key), finding)
    return list(found.values())


# Tell what the planned group needs of its nodes: space for image and weights, and swap.

IMAGE_GB = 23.0
"""Space of an image of SGLang on a node where the profile does not know more: what owners of Sparks saw."""

WEIGHTS_GIB = 100.0
"""Space of weights whose size nobody stated."""


def find_needs(options: Mapping[str, Any]) -> Needs | None:
    """Return what the group of these options of role serving_plan needs, or None if its profile cannot be resolved.

    With a fallback preset, each node needs what either preset needs.
    """
    presets = [options["preset"], *filter(None, [options["fallback_preset"]])]
    found = [resolve_options({**options, "preset": preset})[0] for preset in presets]
    known = [resolved for resolved in found if resolved is not None]
    if len(known) < len(found):
        return None
    return Needs(
        nodes=tuple(options["nodes"] or options["candidates"][: int(known[0].topology["nodes"])]),
        profile=f"{known[0].name}/{known[0].preset}",
        images={resolved.image: max(resolved.image_gb or 0.0, IMAGE_GB) * 1e9 / 2**30 for resolved in known},
        models={
            tuple(repo.replace("/", "--") for repo in repositories(resolved)): _weights(resolved) for resolved in known
        },
        models_dir=options["models_dir"],
        swap_gib=max(resolved.swap_gib for resolved in known),
    )


def _weights(resolved: ResolvedProfile) -> float:
    """Return the GiB of the weights that have to be on a node; 0 where the owner has put them somewhere else."""
    size = resolved.memory.get("download_gb")
    if not repositories(resolved):
        return 0.0
    return WEIGHTS_GIB if size is None else float(size) * 1e9 / 2**30


# Find what the plans would refuse, together with the mistakes in single variables.
#
# A finding that only follows from a mistake which is reported already would mislead, so it is left out.

# Variables of the fabric on whose values no check of another one depends
INDEPENDENT = {"gb10_fabric_mtu", "gb10_fabric_vf_count", "gb10_management_interface"}
# Findings about the values of hosts that have one, also if the value of another host is wrong
OF_OTHER_HOSTS = {"fabric.node_id.duplicate", "fabric.node_id.range", "fabric.node_id.invalid"}
# Options by which a profile is resolved, before nodes, networks and ports matter.
RESOLVING = ("profile", "preset", "profile_dirs", "overrides", "sglang_version", "image", "images_from", "platform")


def wrong_variables(known: Known, findings: Iterable[Finding]) -> set[str]:
    """Return the variables that have no usable value: those with an error, and those that a misspelt name means."""
    keys = {variable_of(finding.key) for finding in findings if finding.severity == "error"}
    names = keys | {meant(known, key) for key in keys}
    return names | {known.command_line[name]["sets"] for name in names & set(known.command_line)}


def fabric_findings(
    variables: Mapping[str, Mapping[str, Any]], wrong: Set[str]
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the plan of the fabric and its findings.

    With ``wrong`` variables of the fabric there is no plan, and only the findings that do not depend on them.
    """
    if wrong & set(VARIABLES) <= INDEPENDENT:
        plan, findings = plan_fabric(variables)
        return None if has_errors(findings) else plan.as_dict(), unexplained(findings, wrong)
    fabric, findings = parse_fabric(variables)
    findings += [*check_node_ids(fabric), *check_mtu(fabric)]
    return None, unexplained(findings, wrong)


def unexplained(findings: Iterable[Finding], wrong: Set[str]) -> list[Finding]:
    """Return the findings that do not follow from a ``wrong`` variable, which has a finding of its own.

    Each host has its own node id: a host whose id has a misspelt name says nothing about the ids of others.
    """
    return [f for f in findings if variable_of(f.key) not in wrong or f.rule in OF_OTHER_HOSTS]


def serving_findings(
    options: Mapping[str, Any], fabric: Mapping[str, Any] | None, wrong: Set[str], defaults: Mapping[str, Any]
) -> list[Finding]:
    """Return the findings about profile and group; with ``wrong`` those that do not depend on these variables.

    ``defaults`` are those of role serving_plan, as templates; they name the shared variables behind each option.
    """
    if not wrong.isdisjoint(_behind(RESOLVING, defaults)):
        return []
    if not wrong.isdisjoint(_behind((name.removeprefix(f"{ROLE}_") for name in defaults), defaults)):
        return resolve_options(options)[1]
    return plan_serving({**options, "fabric": fabric})[1]


def _behind(options: Iterable[str], defaults: Mapping[str, Any]) -> set[str]:
    """Return the variables that decide about options: the role's own and the shared ones in their defaults."""
    names = {f"{ROLE}_{option}" for option in options}
    return names | {shared for name in names for shared in re.findall(r"\bgb10_\w+", str(defaults.get(name)))}


def variable_of(key: str) -> str:
    """Return the variable in the key of a finding, such as gb10_fabric_rails[0].network."""
    return re.split(r"[.\[]", key.removeprefix("-e "), maxsplit=1)[0]
