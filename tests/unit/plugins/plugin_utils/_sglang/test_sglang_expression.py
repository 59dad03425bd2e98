# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the small language in which rules say when they apply."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.expression import evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a > 1", False),
        ("b > 1 and not a", True),
        ("b + 1 == 3", True),
        ("a + 1 == 3", False),
        ("b % 0 == 0", False),
        ("b in (1, 2)", True),
        ("a in (None,)", False),
        ("'x' in c", True),
        ("'x' not in a", True),
        ("1 if b else 2", 1),
        ("-b < 0 < b", True),
        ("a is None or d", True),
    ],
)
def test_expressions(text: str, value: Any) -> None:
    assert evaluate(text, {"a": None, "b": 2, "c": "xyz", "d": False}) == value


@pytest.mark.parametrize("text", ["e", "b.real", "b()", "b ** 2", "b +", "~b", "[x for x in c]"])
def test_expressions_allow_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"b|e|x"):
        evaluate(text, {"b": 2, "c": "x"})
