# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the comparison of the running group with the wanted one."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action.serving_changes import ActionModule
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from serving_samples import plan

WANTED = render(plan(), PodOptions(), {}, {})
OTHER = render(plan(vf_index=1), PodOptions(), {}, {})


@pytest.mark.parametrize(
    ("live", "changed", "outdated", "said"),
    [
        ([], True, False, "The group is new."),
        (WANTED, False, False, "The group runs what the plan asks for."),
        (OTHER, True, True, "The group differs from the plan and is going to be replaced as a whole."),
    ],
    ids=["new", "as wanted", "other"],
)
def test_changes(live: list[dict[str, Any]], changed: bool, outdated: bool, said: str) -> None:
    result = ActionModule.act(None, {"live": live, "wanted": WANTED}, {})
    assert (result["changed"], result["outdated"], result["msg"]) == (changed, outdated, said)
    assert result["diff"]["after"].startswith("rank 0:")
