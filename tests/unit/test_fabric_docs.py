# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the guide documents every rule and no other names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import CodeType
from typing import cast

from ansible_collections.gb10.cluster.plugins.plugin_utils import _fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "fabric.md").read_text(encoding="utf-8")
# The reader makes these names from the kind of network: f"{rule}.invalid"
NETWORK_FAULTS = {"invalid", "host_bits", "leading_zero"}
NETWORKS = {"network", "network6", "cluster_network", "management_network"}
RULE = re.compile(r"(?:fabric\.)?(?!\w+\.(?:yml|json)$)([a-z0-9_]+\.[a-z0-9_]+)")


def strings(code: CodeType) -> Iterator[str]:
    """Yield every text constant of a compiled module, and of its classes and functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from strings(constant)
        else:
            texts = constant if isinstance(constant, tuple) else (constant,)
            yield from (text for text in texts if isinstance(text, str))


def code_rules() -> set[str]:
    """Return the names of rules among the constants of the planner's modules."""
    loaders = [find_spec(f"{_fabric.__name__}.{module.name}") for module in iter_modules(_fabric.__path__)]
    codes = [cast(SourceFileLoader, spec.loader).get_code(spec.name) for spec in loaders if spec]
    texts = {text for code in codes if code for text in strings(code)}
    return {match[1] for match in map(RULE.fullmatch, texts) if match}


def documented() -> set[str]:
    section = GUIDE.partition("## Conflicts")[2].partition("## Preflight")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.M)
    return {rule for row in rows for rule in re.findall(r"`([a-z0-9_.]+)`", row)}


def test_every_rule_of_the_planner_is_documented() -> None:
    made = {f"{network}.{fault}" for network in NETWORKS for fault in NETWORK_FAULTS}
    assert len(code_rules()) > 50
    assert documented() - made == code_rules()


def test_the_example_of_a_mac_is_right() -> None:
    assert vf_mac("gb10", "rail1", 3, 2) in GUIDE
