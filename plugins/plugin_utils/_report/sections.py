# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a report as data and as the ordered sections that Markdown and HTML share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._load.stats import spread
from .answers import answers
from .rank import noise_floor, winners
from .rows import PEAK, Report, Row
from .setup import FABRIC, Setup, again, base_of, setups, shared_facts
from .table import context_table, figures_table, left_out, table


@dataclass(frozen=True)
class Section:
    """A part of a report: its lines, then its table (the header first), then commands to copy.

    ``good`` is the verdict of the first line, None if the line is not a verdict.
    """

    title: str
    lines: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    code: str = ""
    level: int = 2
    good: bool | None = None


def _facts(facts: Mapping[str, str]) -> list[list[str]]:
    return [["what", "value"], *([k, v] for k, v in facts.items())]


def _cell(setup: Setup) -> Section:
    same = ["the base's arguments"] if not setup.arguments else setup.arguments
    lines = [setup.verdict, *same, *(f"{k}: {v}" for k, v in setup.facts.items())]
    good = bool(setup.transport.get("satisfied")) if setup.transport else None
    return Section(setup.cell, lines, setup.ranks, level=3, good=good)


def sections(report: Report) -> Iterator[Section]:
    """Yield the sections after the answers and the pictures."""
    if report.notes:
        yield Section("Notes", report.notes)
    yield Section("Throughput", table=table(report))
    if len(rows := figures_table(report)) > 1:
        yield Section("Figures", table=rows)
    if len(rows := context_table(report)) > 1:
        yield Section("Prefill by context", table=rows)
    if lines := left_out(report):
        yield Section("Left out, and remarks", lines)
    facts = shared_facts(report)
    if fabric := {k: v for k, v in facts.items() if k in FABRIC}:
        yield Section("Fabric", table=_facts(fabric))
    if others := {k: v for k, v in facts.items() if k not in FABRIC}:
        yield Section("Environment", table=_facts(others))
    if base := base_of(report):
        yield Section("Configuration", [f"the base, {base.name}:"], code=shlex.join(base.environment["arguments"]))
    if cells := setups(report):
        yield Section("Cells: transport, and what differs from the base")
        yield from map(_cell, cells)
    if lines := again(report):
        yield Section("How to reproduce", code="\n".join(lines))


def _escaped(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *("| " + " | ".join(r) + " |" for r in body)]


def _markdown(section: Section) -> list[str]:
    out = [f"{'#' * section.level} {section.title}", ""]
    if section.lines:
        out += [*(f"- {line}" for line in section.lines), ""]
    if section.table:
        out += [*_escaped(section.table), ""]
    if section.code:
        out += ["```shell", section.code, "```", ""]
    return out


def markdown(report: Report) -> str:
    lines = [f"# {report.title}", ""]
    if report.source:
        lines += [f"Source: {report.source}", ""]
    first = [Section(question, said) for question, said in answers(report).parts.items()]
    for section in (*first, *sections(report)):
        lines += _markdown(section)
    return "\n".join(lines).rstrip() + "\n"


def _row(row: Row) -> dict[str, Any]:
    figures: dict[str, dict[str, Any]] = {}
    known = [*((w, PEAK, v) for w, v in row.rates.items()), *((w, c, v) for (w, c), v in row.figures.items())]
    for workload, column, values in known:
        figures.setdefault(workload, {})[column] = spread(values) | {"values": values}
    kept = {k: v for k, v in asdict(row).items() if k not in ("rates", "figures", "requests")}
    return kept | {"name": row.name, "figures": figures}


def data(report: Report) -> dict[str, Any]:
    """Return the report as plain data with all measured values, requests and arguments.

    Each of ``rows`` has under ``figures`` the repetitions of each workload and column in tok/s and seconds, with their
    spread, and under ``measurements`` the measurements of the journal.
    """
    base = base_of(report)
    return {
        "title": report.title,
        "source": report.source,
        "profile": report.profile,
        "answers": answers(report).parts,
        "winners": [asdict(w) for w in winners(report)],
        "noise_floor": noise_floor(report),
        "left_out": left_out(report),
        "rows": [_row(row) for row in report.rows],
        "environment": shared_facts(report),
        "base": base.name if base else None,
        "cells": [
            {"cell": s.cell, "verdict": s.verdict, "differences": s.arguments, "facts": s.facts} for s in setups(report)
        ],
        "reproduce": again(report),
    }
