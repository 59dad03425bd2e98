# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flags on their way between a command line, a profile and another release. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .catalogue import Flag, History


@dataclass(frozen=True)
class Item:
    """One flag on a command line: ``written`` as it stands there, ``option`` in full; None is an unknown ``flag``."""

    option: str
    written: str
    words: tuple[str, ...] = ()
    inline: bool = False
    flag: Flag | None = None

    @property
    def argv(self) -> list[str]:
        """Return the item's words, with the flag's full name."""
        if self.inline and self.words:
            return [f"{self.option}={self.words[0]}"]
        return [self.option, *self.words]


@dataclass
class Parsed:
    """A judged command line: its flags in order, the values by canonical key, and what is wrong with it.

    ``stored`` has the values under the names that the release's own parser gives them.
    ``refused`` keeps the words that are no choice of the release, so that a rule can say why.
    """

    items: list[Item] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def key_of(option: str) -> str:
    """Return a flag's name as a key of a mapping: ``--tp-size`` is ``tp_size``."""
    return option.lstrip("-").replace("-", "_")


def canonical(history: History, flag: Flag, value: Any) -> dict[str, Any]:
    """Return a flag's effect under the newest names, so that rules need to know only those.

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
