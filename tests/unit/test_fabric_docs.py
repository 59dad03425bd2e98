# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the guide has every rule, and no rule that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.rules import load_rules

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "fabric.md").read_text(encoding="utf-8")
# f"{rule}.invalid" in the reader, for each kind of network it reads
NETWORK_FAULTS = {"invalid", "host_bits", "leading_zero"}


def code_rules() -> set[str]:
    """Return the planner's rules as they stand in its source."""
    found: set[str] = set()
    for path in sorted((ROOT / "plugins/plugin_utils/_fabric").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"(?:_finding|reader\.add)\(\s*\"([a-z0-9_]+\.[a-z0-9_]+)\"", text))
        found |= set(re.findall(r"\"fabric\.([a-z0-9_]+\.[a-z0-9_]+)\"", text))
        found |= set(re.findall(r"_(?:number|choice)\(.*\"([a-z_]+\.[a-z]+)\"", text))
    found |= {"value.template"}
    return found


def documented(prefix: str) -> set[str]:
    section = GUIDE.partition("## Conflicts")[2].partition("## Preflight")[0] if prefix == "fabric" else GUIDE
    if prefix == "fabric":
        return {
            rule for row in re.findall(r"^\| (`.*?) \|", section, re.M) for rule in re.findall(r"`([a-z0-9_.]+)`", row)
        }
    return set(re.findall(r"`(preflight\.[a-z_]+\.[a-z0-9_]+)`", section))


def test_every_preflight_rule_is_documented() -> None:
    assert documented("preflight") == set(load_rules())


def test_every_rule_of_the_planner_is_documented() -> None:
    rules = documented("fabric")
    assert len(code_rules()) > 50
    assert code_rules() <= rules
    assert {rule for rule in rules - code_rules() if rule.split(".")[1] not in NETWORK_FAULTS} <= {
        # chosen by a condition, so the text of the call doesn't hold them
        "address.in_use",
        "address.duplicate",
    }


def test_the_example_of_a_mac_is_right() -> None:
    assert vf_mac("gb10", "rail1", 3, 2) in GUIDE
