# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the plan lists the rules that the user turned off, and refuses names that are no rules."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.action.serving_plan import ActionModule
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import summary
from role_samples import role_values
from serving_samples import fabric

NODES = ["spark1", "spark2", "spark3", "spark4"]
WRONG = {"server_args": {"attention_backend": "flashinfer"}}


def planned(*waive: str, **options: Any) -> dict[str, Any]:
    values = role_values("serving_plan", profile="gemma-4-31b-it", preset="current", waive=list(waive), **options)
    return ActionModule.act(None, values | {"fabric": fabric(), "candidates": NODES, "taken": []}, {})


def test_a_waived_rule_no_longer_refuses_and_is_listed() -> None:
    assert planned(overrides=WRONG)["failed"]
    result = planned("attn.gemma4.allow", overrides=WRONG)
    assert not result.get("failed"), result["findings"]
    assert "attn.gemma4.allow" not in {finding["rule"] for finding in result["findings"]}
    (said,) = result["plan"]["waived"]["attn.gemma4.allow"]
    assert "Gemma-4" in said
    assert "waived: attn.gemma4.allow, 1 finding(s)" in result["msg"]
    lines = summary(Plan.from_dict(result["plan"]), [], {}, {}, {}, {}, "~/.kube/config", "gb10")
    assert "Waived: attn.gemma4.allow (serving_plan_waive)" in lines


def test_a_name_that_is_no_rule_of_a_launch_is_refused() -> None:
    result = planned("serving.port.range", port=80)
    assert result["failed"]
    found = {(finding["rule"], finding["value"]) for finding in result["findings"]}
    assert {("serving.waive", "serving.port.range"), ("serving.port.range", 80)} <= found
