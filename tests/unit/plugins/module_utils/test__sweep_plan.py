# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._sweep_plan import (
    Resolved,
    SweepPlan,
    check,
    plan,
)

SWEEP: dict[str, Any] = {
    "name": "nemotron",
    "profile": "nemotron-3-super-120b",
    "base": {"server_args": {"speculative_algorithm": "EAGLE"}},
    "axes": {
        "depth": [
            {"name": "3/4", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4},
            {"name": "5/5", "speculative_num_steps": 5, "speculative_num_draft_tokens": 5},
            {"name": "5/7", "speculative_num_steps": 5, "speculative_num_draft_tokens": 7},
        ],
        "ep_size": [1, 3, 4],
    },
    "exclude": [{"depth": "5/7", "ep_size": 4}],
    "include": [{"labels": {"depth": "none"}, "preset": "no-spec", "server_args": {"ep_size": 1}}],
}


def as_sglang(overlay: Mapping[str, Any]) -> Resolved:
    args = overlay["server_args"]
    steps = args.get("speculative_num_steps")
    findings = []
    if args["ep_size"] == 3:
        findings = [Finding("error", "moe.ep_divides", "ep_size", 3, "does not divide tp_size 4", "Use 1, 2 or 4.")]
    return Resolved(f"{overlay.get('preset')}:{steps}:{args['ep_size']}", findings)


def by_label(result: SweepPlan) -> dict[str, str]:
    return {"|".join(c.labels.values()): c.status for c in result.cells}


def test_product_exclusion_inclusion_and_folding() -> None:
    result = plan(SWEEP, as_sglang)
    assert by_label(result) == {
        "3/4|1": "run",
        "3/4|3": "invalid",
        "3/4|4": "run",
        "5/5|1": "run",
        "5/5|3": "invalid",
        "5/5|4": "run",
        "5/7|1": "duplicate",
        "5/7|3": "invalid",
        "none": "run",
    }
    double = next(c for c in result.cells if c.status == "duplicate")
    original = next(c for c in result.cells if c.id == double.duplicate_of)
    assert original.labels == {"depth": "5/5", "ep_size": "1"}
    invalid = next(c for c in result.cells if c.status == "invalid")
    assert invalid.reasons[0]["rule"] == "moe.ep_divides"


def test_cells_keep_their_names_when_the_file_grows() -> None:
    before = {c.id for c in plan(SWEEP, as_sglang).cells}
    more = SWEEP | {"axes": SWEEP["axes"] | {"ep_size": [1, 2, 3, 4]}}
    assert before < {c.id for c in plan(more, as_sglang).cells}


def test_overlay_keys_and_server_arguments_are_told_apart() -> None:
    sweep = {"profile": "p", "axes": {"transport": ["roce", "socket"], "max_running_requests": [8]}}
    overlays = [c.overlay for c in plan(sweep, lambda o: Resolved(str(o))).cells]
    assert overlays[1] == {"transport": "socket", "server_args": {"max_running_requests": 8}}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"profile": None}, "sweep.profile"),
        ({"axes": ["ep"]}, "sweep.axes"),
        ({"axes": {"ep_size": []}, "exclude": []}, "sweep.axes"),
        ({"axes": {"ep_size": [1, 1]}, "exclude": []}, "sweep.axes"),
        ({"exclude": [{"colour": "red"}]}, "sweep.exclude"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_runs(change: dict[str, Any], rule: str) -> None:
    wrong = SWEEP | change
    assert rule in {f.rule for f in check(wrong)}
    assert plan(wrong, as_sglang).cells == []


def test_a_stop_rule_that_does_not_exist_is_named() -> None:
    assert "sweep.stop" in {f.rule for f in check(SWEEP | {"stop": {"minutes": 3}})}
    assert check(SWEEP | {"stop": {"hours": 3, "infrastructure": 2, "failures": 5}}) == []
