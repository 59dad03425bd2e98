# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build dataclasses from the plain data that dataclasses.asdict and JSON made of them. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row, with every column as wide as its widest cell; all rows must have the same length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


T = TypeVar("T")


def load(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass with the dataclasses in its fields; keys that are no field are ignored.

    Raise KeyError or TypeError if a field is missing. An empty mapping stands for a part that may be None.
    """
    hints = _hints(kind)  # type: ignore[arg-type]
    known = [field.name for field in fields(kind) if field.name in data]  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], data[name]) for name in known})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(kind: Any, value: Any) -> Any:
    outer, inner = get_origin(kind), get_args(kind)
    if type(None) in inner:
        part = inner[0]
        return None if value is None or (is_dataclass(part) and not value) else _value(part, value)
    if is_dataclass(kind):
        return load(kind, value)  # type: ignore[arg-type]
    if outer in (list, tuple):
        return outer(_value(inner[0], one) for one in value)
    if outer in (dict, Mapping):
        return {key: _value(inner[1], one) for key, one in value.items()}
    return value
