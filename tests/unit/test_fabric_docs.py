# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the examples of the guide are those of the planner."""

from pathlib import Path

from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "fabric.md"


def test_the_example_of_a_mac_is_right() -> None:
    assert vf_mac("gb10", "rail1", 3, 2) in GUIDE.read_text(encoding="utf-8")
