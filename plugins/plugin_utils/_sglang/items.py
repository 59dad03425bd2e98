# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flags while they are converted between a command line, a profile and another release. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .catalogue import Flag, History


@dataclass(frozen=True)
class Item:
    """One flag on a command line: ``written`` by the user, ``option`` in full; ``flag`` is None if unknown."""

    option: str
    written: str
    words: tuple[str, ...] = ()
    inline: bool = False
    flag: Flag | None = None

    @property
    def argv(self) -> list[str]:
        """Return the words of the item, with the full name of the flag."""
        if self.inline and self.words:
            return [f"{self.option}={self.words[0]}"]
        return [self.option, *self.words]


@dataclass
class Parsed:
    """A parsed command line: its flags in order, their values by canonical key, and the findings about them.

    ``stored`` holds the values under the names that the release's own parser uses.
    ``refused`` holds the words that are not valid choices in the release, so that a rule can explain why.
    """

    items: list[Item] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def key_of(option: str) -> str:
    """Return the name of a flag as a mapping key: ``--tp-size`` becomes ``tp_size``."""
    return option.lstrip("-").replace("-", "_")


def options_of(argv: Sequence[str]) -> dict[str, str]:
    """Return a command line as {option: value}; a switch has the value ``set``; of a repeated one the last counts."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = found[name] = [value] if equals else []
        else:
            values.append(word)
    return {name: " ".join(words) or "set" for name, words in found.items()}


def canonical(history: History, flag: Flag, value: Any) -> dict[str, Any]:
    """Return the effect of a flag under the newest names, so that rules need only those.

    ``--disable-piecewise-cuda-graph`` of 0.5.12 becomes ``{"cuda_graph_backend_prefill": "disabled"}``.
    """
    newest = history.catalogues[-1].options
    pending: list[tuple[str, Any]] = [(flag.name, value)]
    done: dict[str, Any] = {}
    while pending:
        name, current = pending.pop()
        moves: Iterable[tuple[str, str | None]] = history.forward.get(name, ())
        if not moves:
            done[key_of(newest[name].name if name in newest else name)] = current
        elif all(constant is None for *_flag, constant in moves) or current not in (None, False):
            pending += [(new, current if constant is None else constant) for new, constant in moves]
    return done
