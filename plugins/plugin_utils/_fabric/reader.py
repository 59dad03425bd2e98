# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read single inventory values, and report invalid ones as findings. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules

_LEADING_ZERO = re.compile(r"(^|\.)0\d")
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_RULES = Rules("_fabric", "inventory")


@dataclass
class Reader:
    """Reads values and collects findings about them."""

    findings: list[Finding] = field(default_factory=list)
    # {assumed VF count: its hosts}, so that one finding can name all of them
    assumed: dict[int, dict[str, None]] = field(default_factory=dict)

    def add(self, rule: str, value: Any, where: str = "", **words: Any) -> None:
        """Add the finding of a rule; ``words`` are the values for its key and sentences."""
        self.findings.append(_RULES.finding(rule, value, where, **words))

    def integer(self, value: Any) -> int | None:
        """Return a whole number, also from text (as ``-e`` and INI inventories give it), or None; reject booleans."""
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value)
        return None

    def network(self, key: str, value: Any, where: str = "", rule: str = "network") -> IPv4Network | IPv6Network | None:
        """Return the network in ``value``, or None after adding a finding about it."""
        text = str(value)
        if _LEADING_ZERO.search(text):
            self.add(f"fabric.{rule}.leading_zero", value, where, key=key)
            return None
        if "/" not in text:
            self.add(f"fabric.{rule}.invalid", value, where, key=key, problem="no prefix length")
            return None
        try:
            return ip_network(text)
        except ValueError as error:
            try:
                wanted = ip_network(text, strict=False)
            except ValueError:
                self.add(f"fabric.{rule}.invalid", value, where, key=key, problem=error)
            else:
                self.add(f"fabric.{rule}.host_bits", value, where, key=key, network=wanted)
        return None


def some_of(names: Iterable[str]) -> str:
    """Return up to four names; of more names, the first, the last and their number."""
    known = list(names)
    return ", ".join(known) if len(known) <= 4 else f"{known[0]} … {known[-1]} ({len(known)} hosts)"


def listed(value: Any) -> Sequence[Any]:
    """Return a list from a list, a single value or nothing."""
    if value is None:
        return []
    return value if isinstance(value, (list, tuple)) else [value]
