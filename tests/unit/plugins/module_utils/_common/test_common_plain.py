# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that dataclasses survive a way through JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align


@dataclass(frozen=True)
class Part:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    by_name: Mapping[str, Part] = field(default_factory=dict)
    more: Part | None = None
    choices: tuple[str, ...] | None = None


WHOLE = Whole((Part("a", (1, 2)), Part("b")), {"c": Part("c")}, Part("d"), ("x",))


@pytest.mark.parametrize("value", [WHOLE, Whole(())])
def test_what_json_made_of_a_dataclass_becomes_the_same_dataclass(value: Whole) -> None:
    assert plain.load(Whole, json.loads(json.dumps(asdict(value)))) == value


def test_other_keys_are_ignored_and_an_empty_part_is_none() -> None:
    assert plain.load(Whole, {"parts": [], "schema": 1, "more": {}}) == Whole(())


def test_a_missing_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="name"):
        plain.load(Part, {})


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert align([["rank", "node"], ["0", "spark1"], ["10", ""]]) == ["rank  node", "0     spark1", "10"]


def test_a_table_without_rows_has_no_lines() -> None:
    assert align([]) == []


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        align([["a"], ["a", "b"]])
