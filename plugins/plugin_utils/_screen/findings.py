# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show findings: each once, its remedy on a line of its own, and where its value was set. Private to the collection."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, clip, merge_places

from .screen import NARROWEST, WIDEST

_INDENT = "    "


def render_findings(findings: Iterable[Finding], width: int = 100) -> str:
    """Return all findings, worst first, wrapped at ``width`` columns; words are not broken."""
    return render_in_order(merge_places(findings), width)


def render_in_order(findings: Iterable[Finding], width: int) -> str:
    """Return the findings as they are given, wrapped at ``width`` columns."""
    return "\n".join(line for finding in findings for line in _lines(finding, width))


def _lines(finding: Finding, width: int) -> list[str]:
    where = f"{finding.where}: " if finding.where else ""
    value = "" if finding.value is None else f" = {clip(repr(finding.value), 200)}"
    reason = clip(finding.reason)
    end = "" if reason.endswith((".", "?")) else "."
    texts = [f"{finding.severity}: {where}{clip(finding.key, 200)}{value}: {reason}{end}"]
    texts.append(f"{clip(finding.remedy)} [{finding.rule}]".strip())
    if finding.place:
        texts.append(f"Set in {finding.place}.")
    return [
        line
        for number, text in enumerate(texts)
        for line in textwrap.wrap(
            text,
            max(NARROWEST, min(width, WIDEST)),
            initial_indent=_INDENT if number else "",
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def counted(findings: Iterable[Finding], zero: bool = False) -> str:
    """Return how many errors and warnings there are: ``1 error``, or with ``zero`` ``0 errors, 2 warnings``."""
    severities = [finding.severity for finding in merge_places(findings)]
    numbers = [(severities.count(word), word) for word in ("error", "warning")]
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in numbers if number or zero)
