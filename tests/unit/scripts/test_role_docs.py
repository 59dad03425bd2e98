# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the generated tables, and that specs, defaults and shared variables agree."""

import re
from pathlib import Path
from typing import Any

import pytest
import role_docs
from _generated import with_parts
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import VARIABLES

ROOT = Path(__file__).resolve().parents[3]
SHARED = {name: variable for group in role_docs.shared() for name, variable in group["variables"].items()}
# Variables of the command line. A role that read one would also read an inventory's variable of the same name.
BARE_NAMES = ("profile", "preset", "transport", "instance", "vf_index", "sweep", "repo", "name")
INTERNAL = {"gb10_assumed_vf_count", "gb10_fabric_plan", "gb10_serving_plan", "gb10_preflight"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Reads C(/metrics) of V(a\\)b) and O(bench_url).", "Reads `/metrics` of `a)b` and `bench_url`."),
        ("Only I(now) and B(always).", "Only *now* and **always**."),
        (["First.", "Second\n  line."], "First. Second line."),
        ("NCCL (log) stays.", "NCCL (log) stays."),
    ],
)
def test_markup_becomes_markdown(text: str | list[str], expected: str) -> None:
    assert role_docs.markdown(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ gb10_namespace | default('gb10-serving') }}", "`gb10_namespace`, else `gb10-serving`"),
        ("{{ gb10_models_dir | default('') }}", "`gb10_models_dir`, else empty"),
        ("{{ k3s_dir | default('/k3s') }}/data/cni", "`/k3s/data/cni`, which follows `k3s_dir`"),
        ("{{ groups['gb10_nodes'] }}", "`groups['gb10_nodes']`"),
        ("{{ bench_results_dir }}/profiles", "`{{ bench_results_dir }}/profiles`"),
        ("", ""),
        (None, ""),
        (True, "`true`"),
        ([], "`[]`"),
        ({"limits": {"cpu": 1}}, "`{limits: {cpu: 1}}`"),
        (["x" * 90], "see `defaults/main.yml`"),
    ],
)
def test_defaults_are_shown_in_words(value: Any, expected: str) -> None:
    assert role_docs.shown_default(value) == expected


def test_a_page_without_generated_is_named() -> None:
    with pytest.raises(ValueError, match=r"page\.md lacks the markers"):
        with_parts("text\n", {"variables": "x"}, "page.md")


def test_only_the_text_between_generated_is_replaced() -> None:
    page = "a\n<!-- v: begin (by x) -->\nold\n<!-- v: end -->\nz\n"
    assert with_parts(page, {"v": "new"}, "page.md") == "a\n<!-- v: begin (by x) -->\nnew\n<!-- v: end -->\nz\n"


@pytest.mark.parametrize("role", role_docs.roles())
def test_shared_variables_are_declared_with_the_default_that_the_role_takes(role: str) -> None:
    for name, value in role_docs.defaults(role).items():
        for variable, fallback in re.findall(r"(gb10_\w+) \| default\((.*?)\)", str(value)):
            expected = SHARED[variable].get("default", "")
            assert fallback in (repr(expected), str(expected).lower()), f"{name}: {variable}"


def test_the_planner_reads_no_undeclared_variable() -> None:
    assert {name for name in VARIABLES if name.startswith("gb10_")} - INTERNAL <= set(SHARED)


@pytest.mark.parametrize("role", role_docs.roles())
def test_no_role_reads_a_name_that_an_inventory_may_use_for_something_else(role: str) -> None:
    bare = re.compile(rf"\{{\{{ *({'|'.join(BARE_NAMES)})\b *[|}}]")
    for path in (ROOT / "roles" / role).rglob("*.yml"):
        assert bare.findall(path.read_text(encoding="utf-8")) == [], path


def test_the_models_have_only_published_figures_of_presets_for_so_many_sparks() -> None:
    profiles = {path.stem: role_docs._load(path) for path in ROOT.glob("plugins/profiles/*.yml")}
    shown = set()
    for line in role_docs.models_tables().splitlines():
        named = re.findall(r"-e profile=(\S+) -e preset=([^\s`]+)", line)
        shown |= {profile for profile, _preset in named}
        for profile, preset in named:
            entry = (profiles[profile]["presets"][preset] or {}).get("expected") or {}
            rates = {one["concurrency"]: one["tokens_per_second"] for one in entry.get("results", [])}
            _model, _weights, peak, one, several, source, _command = line.strip("| ").split(" | ")
            assert one == (f"{rates[1]:g}" if 1 in rates else "-")
            assert several == (f"{rates[max(rates)]:g} ({max(rates)} users)" if max(rates, default=1) > 1 else "-")
            weights, caches = map(int, peak.split(" / "))
            assert 16 < weights <= caches < 119
            assert entry["source"].startswith(source) if rates else source == "-"
    assert shown == {name for name, profile in profiles.items() if profile.get("hardware", "gb10") == "gb10"}
    assert list(role_docs.best_presets()) == [1, 2, 3, 4, 8]
