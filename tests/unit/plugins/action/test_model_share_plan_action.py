# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the plan of a transfer from what the module read on every node."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.action.model_share_plan import ActionModule
from model_transfers import FILES, REPO, files

LISTING = {"commit": "c0ffee", "files": [vars(file) for file in files()]}
TOTAL = sum(map(len, FILES.values()))


def planned(free: int = 10**12, share: bool = True) -> dict[str, Any]:
    model = {"dest": "/srv/models/org--tiny", "commit": "", "complete": False, "held": {}, "parts": {}}
    model |= {"listing": LISTING, "error": ""}
    nodes = {
        f"spark{number}": {
            "disk": {"path": "/srv/models", "free_bytes": free, "reserve_bytes": 0},
            "addresses": [f"10.100.0.{number}/24"],
            "models": {REPO: model},
        }
        for number in (1, 2)
    }
    return ActionModule.__new__(ActionModule).act({"nodes": nodes, "share": share}, {})


def test_each_node_gets_its_options() -> None:
    result = planned()
    assert result["needed"] and not result.get("failed")
    assert [each["download_bytes"] for each in result["nodes"].values()] == [TOTAL, 0]
    assert result["nodes"]["spark2"]["addresses"] == ("10.100.0.2",)
    assert "spark2: copies 4.4 MB over the fabric from spark1" in result["table"]
    assert [len(each["hub"]) for each in planned(share=False)["nodes"].values()] == [3, 3]


def test_small_disks_are_refused_together() -> None:
    result = planned(free=1000)
    assert result["failed"] and not result["needed"] and "nodes" not in result
    assert {(finding["rule"], finding["severity"]) for finding in result["findings"]} == {("models.disk", "error")}
    assert all(host in str(result["findings"]) for host in ("spark1", "spark2"))
