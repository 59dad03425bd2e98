# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the facts of a host the types that the rules expect, whatever the host sent."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints, is_typeddict

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.model import Facts

# More than any fact has: a command line of Linux has 4096 characters at most.
LONGEST_TEXT, LONGEST_LIST, LARGEST = 4096, 10_000, 2**63
_EMPTY: Mapping[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}


def shape_facts(raw: Any) -> tuple[Facts, list[str]]:
    """Return facts of which every part has its type, and the names of the parts that were absent or of another type.

    Such a part becomes None, or empty if its type has no None. An element of a list or a mapping that has another type
    is left out. A text, a list or a number beyond any fact's size counts as another type. A caller must report the
    names: an empty part is not a good one.
    """
    wrong: list[str] = []
    facts = cast(Facts, _shape(raw, Facts, "", wrong))
    return facts, list(dict.fromkeys(wrong))


def _shape(raw: Any, kind: Any, name: str, wrong: list[str]) -> Any:
    if is_typeddict(kind):
        given = raw if isinstance(raw, Mapping) else {}
        if given is not raw:
            wrong.append(name)
            parts: list[str] = []  # one name for the whole part is enough
        else:
            parts = wrong
        hints = get_type_hints(kind)
        return {key: _part(given, key, hint, f"{name}.{key}".lstrip("."), parts) for key, hint in hints.items()}
    choices = [choice for choice in get_args(kind) if choice is not NoneType] if NoneType in get_args(kind) else []
    if choices:
        return None if raw is None else _shape_or_none(raw, choices[0], name, wrong)
    if get_origin(kind) is list:
        items = raw if isinstance(raw, list) and len(raw) <= LONGEST_LIST else _reported(name, wrong, [])
        return [item for item in (_element(item, get_args(kind)[0], name, wrong) for item in items) if item is not _NOT]
    if get_origin(kind) is dict:
        found = raw if isinstance(raw, Mapping) and len(raw) <= LONGEST_LIST else _reported(name, wrong, {})
        each = get_args(kind)[1]
        shaped = {str(key)[:LONGEST_TEXT]: _element(item, each, name, wrong) for key, item in found.items()}
        return {key: item for key, item in shaped.items() if item is not _NOT}
    fits = isinstance(raw, kind if kind is not float else (int, float)) and (kind is bool or not isinstance(raw, bool))
    return raw if fits and _possible(raw) else _reported(name, wrong, _EMPTY[kind])


_NOT = object()


def _possible(raw: Any) -> bool:
    """Tell whether a text or a number has a size that a fact can have; arithmetic fails with infinite numbers."""
    return len(raw) <= LONGEST_TEXT if isinstance(raw, str) else abs(raw) < LARGEST


def _part(given: Mapping[Any, Any], key: str, kind: Any, name: str, wrong: list[str]) -> Any:
    if key not in given:
        wrong.append(name)
        return _shape(None, kind, name, [])
    return _shape(given[key], kind, name, wrong)


def _shape_or_none(raw: Any, kind: Any, name: str, wrong: list[str]) -> Any:
    """Return None instead of an empty value for a part of another type, since its type has None for what is unknown."""
    mine: list[str] = []
    shaped = _shape(raw, kind, name, mine)
    wrong += mine
    return None if name in mine and not isinstance(raw, (list, Mapping)) else shaped


def _element(raw: Any, kind: Any, name: str, wrong: list[str]) -> Any:
    container = get_origin(kind) in (list, dict) or is_typeddict(kind)
    if container and not isinstance(raw, list if get_origin(kind) is list else Mapping):
        return _reported(name, wrong, _NOT)
    mine: list[str] = []
    shaped = _shape(raw, kind, name, mine)
    wrong += mine
    return shaped if container or not mine else _NOT


def _reported(name: str, wrong: list[str], value: Any) -> Any:
    wrong.append(name)
    return value
