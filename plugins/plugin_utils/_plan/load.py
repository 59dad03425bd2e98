# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell how much of a node's memory a load takes at its peak, where GPU and CPU share it. Private to the collection.

A load of the same image and command that was watched (roles/sglang/files/watch_load.py) is the best answer. Without
one, the arithmetic has what was there before, weights, draft and the loader. Graphs, compilers and fragmentation are
not modelled; they have to fit into what mem_fraction_static leaves.

The loader of SGLang 0.5.10 to 0.5.23 opens as many files as it has threads and one more
(buffered_multi_thread_safetensors_weights_iterator), eight threads by default. It maps the files, so what it reads is
page cache, which the kernel gives back. Without mmap each file is in memory twice while it is read. Counted with the
code of 0.5.23, safetensors 0.8.0 and eight files of 0.5 GiB: 1, 2 and 4 threads held 2.1, 4.1 and 8.0 files, no thread
3.0, and every number of threads none with mmap. In a whole server (0.5.20 on a busy CPU, 3.3 GiB of weights) 2 and 4
threads held 0.9 and 2.2 files, no thread 2.0, and with mmap the peak was the sum. So the rule is an upper bound without
mmap: it was 1.35 and 1.52 times the counted peak of that server, without threads 1.08 times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.model import Taken

from .._rules import Rules
from .._serving.model import Plan
from .._serving.pods import PodOptions, launch_key
from .._sglang.profile import ResolvedProfile

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
    # A checkpoint of few files has no more of them, each twice.
    files = 0 if mapped else min(files_in_memory(threads), 2 * ceil(whole / size))
    loader = files * size
    before = total - memory["available_gib"]
    how = "files are mapped" if mapped else f"{files} files of up to {size:.1f} with {threads} threads"
    weighs = before + weights + draft + loader
    lines = [
        f"load: {before:.1f} GiB before it + {weights:.1f} of weights + {draft:.1f} of the draft + {loader:.1f} in the"
        f" loader ({how}) = {weighs:.1f} of {total:.1f}; {before + memory['static_gib']:.1f} with the caches. Graphs"
        " and compilers are not modelled"
    ]
    if not loader:
        return lines, []
    # What the loader holds may be swapped out.
    room = total * ROOM + resolved.swap_gib
    least = total - memory["most_gib"] + weights + draft
    if weighs <= room:
        return lines, []
    fits = [count for count in range(threads - 1, 0, -1) if weighs - loader + files_in_memory(count) * size <= room]
    # The rule is an upper bound, and a load that takes too much is ended, so only what can't fit is refused.
    severity: Severity = "error" if least + min(files_in_memory(1) * size, loader) > room else "warning"
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
    lines = [
        f"load: as counted on {node} ({most['at']}, {len(found)} of {len(plan.ranks)} nodes known), up to"
        f" {most['taken_gib']:.1f} of {most['total_gib']:.1f} GiB were taken, {most['before_gib']:.1f} of them before"
        f" the load"
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


def _last(plan: Plan, loads: Mapping[str, Sequence[Taken]]) -> Iterator[tuple[str, Taken]]:
    key = launch_key(plan) if plan.ranks else ""
    for rank in plan.ranks:
        # A part that a host did not tell is empty.
        whole = [taken for taken in loads.get(rank.node, ()) if taken["state"] and taken["total_gib"] > 0]
        same = [taken for taken in whole if taken["key"] == key]
        if same:
            yield rank.node, same[-1]


def load_peak(
    resolved: ResolvedProfile,
    plan: Plan,
    loads: Mapping[str, Sequence[Taken]],
    held: Mapping[str, float],
    full: bool,
) -> tuple[list[str], list[Finding]]:
    """Return the lines and findings about the load: what was counted, or else the arithmetic (``full``)."""
    lines, findings = measured(plan, loads, held)
    if lines and not findings:
        return lines, []
    reckoned, more = predicted(resolved)
    return lines + (reckoned if full else []), findings + more
