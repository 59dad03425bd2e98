# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read single inventory values, and report invalid ones as findings. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

_LEADING_ZERO = re.compile(r"(^|\.)0\d")
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")


@dataclass
class Reader:
    """Reads values and collects findings about them."""

    findings: list[Finding] = field(default_factory=list)
    # {assumed VF count: its hosts}, so that one finding can name all of them
    assumed: dict[int, dict[str, None]] = field(default_factory=dict)

    def add(
        self, rule: str, key: str, value: Any, reason: str, remedy: str, where: str = "", severity: Severity = "error"
    ) -> None:
        """Add one finding; ``rule`` has no ``fabric.`` prefix."""
        self.findings.append(Finding(severity, f"fabric.{rule}", key, value, reason, remedy, where, "inventory"))

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
            reason = "an octet with a leading zero is octal to some parsers, decimal to others"
            remedy = "Write the octets without leading zeros, 10.100.1.0 for 10.100.01.0."
            self.add(f"{rule}.leading_zero", key, value, reason, remedy, where)
            return None
        if "/" not in text:
            reason = "no prefix length"
            remedy = "Write address/prefix, for example 10.100.0.0/16."
            self.add(f"{rule}.invalid", key, value, reason, remedy, where)
            return None
        try:
            return ip_network(text)
        except ValueError as error:
            try:
                wanted = ip_network(text, strict=False)
            except ValueError:
                self.add(
                    f"{rule}.invalid", key, value, str(error), "Write address/prefix, for example 10.100.0.0/16.", where
                )
            else:
                reason = "an address inside a network, not a network"
                self.add(f"{rule}.host_bits", key, value, reason, f"Write {wanted}.", where)
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
