# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the plan says about the memory that a load takes."""

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Taken
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import (
    files_beside,
    files_in_memory,
    load_peak,
    threads_of,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import launch_key
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import ResolvedProfile, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile
from serving_samples import plan
from stored import compare, said, say_words

KEY = launch_key(plan())
NO_MMAP = {"weight_loader_disable_mmap": True}
SPLIT = {"model_loader_extra_config": {"enable_multithread_load": False}}


def resolved(weights: float, swap: float = 0, draft: float | None = None, **args: Any) -> ResolvedProfile:
    """Return a group whose weights take so many GiB of each node of 119 GiB."""
    sizes = {"total_gib": 119.0, "available_gib": 103.0, "most_gib": 109.0, "static_gib": 90.0, "load_gib": 1.0}
    memory = {**sizes, "weights_gib": weights, "draft_gib": draft, "download_gb": 300.0}
    shipped = resolve(load_profile("gemma-4-31b-it", []))
    return replace(shipped, memory=memory, server_args=args, swap_gib=swap)


PEAKS = {"weights": 91.0, "caches": 99.0, "graphs": 101.5, "compile": 104.0}
OTHER = f"0.{KEY.split('.')[1]}"


def taken(state: str = "ready", key: str = KEY, gib: float = 101.5, at: str = "2026-11-29T08:00:00Z") -> Taken:
    known = {"peaks": {}, "graphs_gib": 0.0, "compiler_gib": 0.0, "compilers_gib": 0.0, "jobs": 0}
    return Taken(key=key, state=state, phase="graphs", at=at, total_gib=119.7, before_gib=9.8, taken_gib=gib, **known)


@pytest.mark.parametrize(("threads", "counted"), [(0, 3.0), (1, 2.13), (2, 4.13), (4, 8.0)])
def test_the_loader_never_held_more_files_than_the_rule_says_and_hardly_less(threads: int, counted: float) -> None:
    """Counted with the loader of SGLang 0.5.23 and eight files."""
    assert counted <= files_in_memory(threads) <= counted + 1


@pytest.mark.parametrize(("threads", "counted"), [(0, 5.15), (2, 4.74), (4, 5.26)])
def test_the_peak_of_a_whole_server_is_predicted_within_15_percent(threads: int, counted: float) -> None:
    """Counted with SGLang 0.5.20 on CPUs: eight files of 0.403 GiB, and with mmap a peak of 4.39 GiB."""
    assert counted <= 4.39 + 0.403 * files_beside(threads, 8, 1) <= 1.15 * counted


@pytest.mark.parametrize(("threads", "counted"), [(0, 3.44), (2, 4.02), (4, 6.47), (8, 8.48)])
def test_a_gpu_with_a_memory_of_its_own_leaves_the_host_with_the_loader_s_files(threads: int, counted: float) -> None:
    """Counted with SGLang 0.5.16 on an H200: 17 files of 0.411 GiB, and with mmap 2.57 GiB of the host's memory."""
    assert (2.57 + 0.411 * files_beside(threads, 17, 0)) / counted == pytest.approx(1.05, abs=0.11)


@pytest.mark.parametrize(
    ("args", "threads"),
    [
        ({}, 8),
        ({"model_loader_extra_config": {"num_threads": 2}}, 2),
        ({"model_loader_extra_config": '{"num_threads": 3}'}, 3),
        (SPLIT, 0),
        ({"model_loader_extra_config": "{"}, 8),
        ({"model_loader_extra_config": "[]"}, 8),
        ({"model_loader_extra_config": {"num_threads": "two"}}, 8),
    ],
)
def test_threads_are_those_that_sglang_would_start(args: dict[str, Any], threads: int) -> None:
    assert threads_of(args) == threads


def test_only_the_sizes_of_the_caches_leave_the_second_part_of_the_key() -> None:
    rank = plan().ranks[0]
    given = ("--mem-fraction-static", "0.7", "--max-total-tokens", "9"), ("--speculative-num-steps", "3")
    sized, drafted = (replace(plan(), ranks=(replace(rank, argv=(*rank.argv, *words)),)) for words in given)
    parts = [launch_key(one).split(".") for one in (plan(), sized, drafted)]
    assert len({whole for whole, _rest in parts}) == 3 and [rest for _whole, rest in parts[:2]] == [parts[0][1]] * 2
    assert parts[2][1] != parts[0][1]


def counted(key: str = KEY, **values: Any) -> Taken:
    return Taken(**(taken(key=key) | values))  # type: ignore[typeddict-item]


GROUPS: dict[str, ResolvedProfile] = {
    f"{weights} {swap} {draft} {download} {args}": replace(found, memory=found.memory | {"download_gb": download})
    for weights, swap, draft, download in (
        *((20.0, 0, None, download) for download in (300.0, 12.0, 5.0, None)),
        *((weights, swap, draft, 300.0) for weights in (40.0, 60.0) for swap, draft in ((0, None), (8, 3.0))),
    )
    for args in ({}, {"num_threads": 1}, {"num_threads": 4}, {"enable_multithread_load": False})
    for found in [resolved(weights, swap, draft, **NO_MMAP, model_loader_extra_config=args)]
}
COMPILED = {"peaks": PEAKS, "compiler_gib": 1.5, "compilers_gib": 4.0}
LOADS: dict[str, list[Taken]] = {
    "none": [],
    "of nobody": [counted(""), counted(key="x.y"), counted(state=""), counted(total_gib=0.0)],
    "the newest": [counted(at="1"), counted(at="2", peaks=PEAKS), counted(at="3", total_gib=0)],
    "ended": [counted(state="ended")],
    "other caches": [counted(OTHER, at="1", peaks=PEAKS), counted(OTHER, at="2", peaks={"start": 15.0, **PEAKS})],
    "other caches, no peaks": [counted(OTHER, graphs_gib=4.5)],
    "other caches, draft": [counted(OTHER, peaks={"draft": 116.0, "caches": 99.0, "warm-up": 98.0})],
    "other caches, little": [counted(OTHER, peaks={"caches": 20.0, "graphs": 19.0, "compile": 18.0})],
    "other caches, much": [counted(OTHER, peaks={**PEAKS, "warm-up": 112.0}, total_gib=119.0)],
    **{f"{jobs} compilers": [counted(jobs=jobs, **COMPILED)] for jobs in (0, 1, 2, 3, 8)},
    **{f"{jobs} compilers, other caches": [counted(OTHER, jobs=jobs, **COMPILED)] for jobs in (0, 1, 2, 3, 8)},
}


def test_what_is_said_about_loads_is_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    found = {name: load_peak(group, plan(), {}, {}, full=True) for name, group in GROUPS.items()}
    held = {"spark1": 3.0, "spark2": 21.5, "spark3": 23.85}
    for name, loads in LOADS.items():
        more = [one | {"taken_gib": one["taken_gib"] + 1} for one in loads]
        each = {"spark2": loads, "spark3": more, "spark9": more}
        found |= {
            f"loads: {name}, {full}": load_peak(resolved(80), plan(), each, held, full=full) for full in (True, False)
        }
    alone = replace(plan(), ranks=tuple(replace(rank, env={"MAX_JOBS": "two"}) for rank in plan().ranks))
    found["no number of compilers"] = load_peak(resolved(80), alone, {"spark1": LOADS["2 compilers"]}, {}, full=False)
    found["no ranks"] = load_peak(resolved(80), replace(plan(), ranks=()), {"spark1": [counted()]}, {}, full=True)
    for key in ("load_gib", "weights_gib"):
        group = replace(resolved(80, **NO_MMAP), memory=resolved(80).memory | {key: None})
        found[f"unknown {key}"] = load_peak(group, plan(), {}, {}, full=True)
    for draft in (None, 8, 14):
        found[f"80 and a draft of {draft}"] = load_peak(
            resolved(80, draft=draft, **NO_MMAP), plan(), {}, {}, full=False
        )
    compare("serving_loads", {name: [*lines, *said(findings)] for name, (lines, findings) in found.items()})
