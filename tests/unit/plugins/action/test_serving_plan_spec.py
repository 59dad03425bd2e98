# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the action's serving plan of a shipped profile on one node, which needs no fabric."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.action.serving_plan import ActionModule
from role_samples import role_values

PROFILE = "gemma-4-26b-a4b-it-b300"
MODEL = "google/gemma-4-26B-A4B-it"
DRAFT = f"{MODEL}-assistant"


def planned(**options: Any) -> dict[str, Any]:
    """Return the plan for options of the role."""
    values = role_values("serving_plan", **{"profile": PROFILE, "preset": "mtp", "platform": "b300"} | options)
    given = {"fabric": {}, "candidates": ["b300-1"], "taken": []}
    made: dict[str, Any] = ActionModule.act(None, values | given, {})["plan"]
    return made


def word_after(flag: str, plan: dict[str, Any]) -> str:
    argv: list[str] = plan["ranks"][0]["argv"]
    return argv[argv.index(flag) + 1]


def test_pinned_revisions_are_served_and_staged() -> None:
    pins = {"model": {"revision": "deadbeef"}, "server_args": {"speculative_draft_model_revision": "v2"}}
    for directory in ("", "/srv/models"):
        plan = planned(overrides=pins, models_dir=directory)
        assert plan["revisions"] == {MODEL: "deadbeef", DRAFT: "v2"}
        assert word_after("--revision", plan) == "deadbeef"
        assert word_after("--speculative-draft-model-revision", plan) == "v2"


def test_without_a_pinned_revision_the_hub_s_default_is_used() -> None:
    plan = planned(profile="gemma-4-26b-a4b-it", preset="mtp-topk1", platform="gb10")
    assert plan["revisions"] == {MODEL: "main", DRAFT: "main"}
    assert "--revision" not in plan["ranks"][0]["argv"]
