# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a report as data and as the ordered sections that Markdown and HTML share.

A record's environment holds facts by name and, in addition, ``arguments`` (the requested arguments of the server),
``server`` (the arguments that it reports) and ``transport`` (the proof).
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any

from .._load.stats import spread
from .._paths import SWEEPS
from .._sglang.catalogue import options_of
from .answers import Answers, answers
from .rank import noise_floor, winners
from .rows import PEAK, Report, Row, context_table, figures_table, left_out, table

FABRIC = ("nodes", "networks", "rdma_devices", "mtu")
APART = frozenset({"arguments", "server", "transport", "inventory", "commit"})
RANK_COLUMNS = ("rank", "host", "verdict", "evidence")


@dataclass(frozen=True)
class Setup:
    """The setup of one cell: its transport proof, its differences from the base, and facts that not all cells share."""

    cell: str
    transport: Mapping[str, Any]
    arguments: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return the verdicts of the transport proof and of the counters as one line."""
        said = self.transport.get("msg") or self.transport.get("verdict") or "its transport was not proved"
        counters = (self.transport.get("counters") or {}).get("msg")
        return f"{said}. {counters}" if counters else str(said)

    @property
    def ranks(self) -> list[list[str]]:
        """Return the evidence of every rank as a table, the header first; an empty list if there is none."""
        lines = []
        for rank in self.transport.get("ranks") or []:
            devices = [(net, d, n) for net, devs in rank.get("channels", {}).items() for d, n in devs.items()]
            channels = ", ".join(f"{net}/{device}: {n}" for net, device, n in devices)
            lines.append([*(str(rank.get(k, "")) for k in RANK_COLUMNS), channels])
        return [[*RANK_COLUMNS, "channels"], *lines] if lines else []


def _text(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(v, (list, Mapping)) for v in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _differences(base: Mapping[str, Any], mine: Mapping[str, Any], prefix: str) -> list[str]:
    def shown(values: Mapping[str, Any], key: str) -> str:
        return _text(values[key]) if key in values else "not set"

    changed = [k for k in dict.fromkeys([*base, *mine]) if shown(base, k) != shown(mine, k)]
    return [f"{prefix}{k}: {shown(base, k)} → {shown(mine, k)}" for k in changed]


def base_of(report: Report) -> Row | None:
    """Return the row with which the others are compared: the baseline, otherwise the first row with arguments."""
    known = [r for r in report.rows if r.environment.get("arguments")]
    return next(iter([*(r for r in known if r is report.baseline), *known]), None)


def shared_facts(report: Report) -> dict[str, str]:
    """Return the facts that are equal for all cells that have them."""
    seen: dict[str, set[str]] = {}
    for row in report.rows:
        for key, value in row.environment.items():
            if key not in APART:
                seen.setdefault(key, set()).add(_text(value))
    return {key: next(iter(values)) for key, values in seen.items() if len(values) == 1}


def setups(report: Report) -> list[Setup]:
    """Return the setup of every cell that was served."""
    base = base_of(report)
    shared = shared_facts(report)
    found = []
    for row in report.rows:
        if not row.environment:
            continue
        changes: list[str] = []
        ours, theirs = row.environment, base.environment if base else {}
        if ours.get("arguments") and theirs.get("arguments"):
            changes += _differences(options_of(theirs["arguments"]), options_of(ours["arguments"]), "")
        if ours.get("server") and theirs.get("server"):
            changes += _differences(theirs["server"], ours["server"], "resolved ")
        facts = {k: _text(v) for k, v in row.environment.items() if k not in APART and k not in shared}
        found.append(Setup(row.name, row.environment.get("transport") or {}, changes, facts))
    return found


def again(report: Report) -> list[str]:
    """Return the commands that repeat the measurement: the collection's commit, the command, and its workloads."""
    environments = [r.environment for r in report.rows if r.environment]
    commits = sorted({e["commit"] for e in environments if e.get("commit")})
    inventories = dict.fromkeys(path for e in environments for path in e.get("inventory") or [])
    words = "".join(f" -i {quote(path)}" for path in inventories)
    workloads = {m["workload"]["name"]: m["workload"] for r in report.rows for m in r.measurements}
    lines = [f"git checkout {commit}" for commit in commits]
    # A sweep of which no cell was served has no environment, and there is no default inventory.
    lines += [f"{c}{words or ('' if ' -i ' in c else ' -i inventory/mine')}" for c in report.reproduce.splitlines()]
    for name, workload in workloads.items():
        kept = ", ".join(f"{k} {_text(v)}" for k, v in workload.items() if k != "name" and v)
        lines.append(f"# {name}: {kept}")
    return lines


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


def _e(value: object) -> str:
    return html.escape(str(value))


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    out = ["<div class=scroll><table><thead><tr>", *(f"<th>{_e(c)}</th>" for c in head), "</tr></thead><tbody>"]
    for row in body:
        wide = " class=wide" if len(row[-1]) > 24 else ""
        out += ["<tr>", *(f"<td>{_e(c)}</td>" for c in row[:-1]), f"<td{wide}>{_e(row[-1])}</td></tr>"]
    return "".join([*out, "</tbody></table></div>"])


def _section(section: Section) -> list[str]:
    out = [f"<h{section.level}>{_e(section.title)}</h{section.level}>"]
    lines = list(section.lines)
    if section.good is not None:
        out.append(f'<p class="verdict {"good" if section.good else "bad"}">{_e(lines.pop(0))}</p>')
    if lines:
        out += ["<ul>", *(f"<li>{_e(line)}</li>" for line in lines), "</ul>"]
    if section.table:
        out.append(_table(section.table))
    if section.code:
        out.append(f"<pre>{_e(section.code)}</pre>")
    return out


def _answers(found: Answers) -> list[str]:
    out = ['<div class="answers">']
    marks = {text: {True: "good", False: "bad", None: "quiet"}[good] for good, text in found.checks}
    for question, (first, *others) in found.parts.items():
        items = [f'<li class="{marks.get(line, "")}">{_e(line)}</li>' for line in others]
        out += [f"<section><h2>{question}</h2><p>{_e(first)}</p>", *(["<ul>", *items, "</ul>"] if items else [])]
        out.append("</section>")
    return [*out, "</div>"]


def _report(report: Report, pictures: Sequence[Mapping[str, str]]) -> str:
    out = [f"<h1>{_e(report.title)}</h1>"]
    if report.source:
        out.append(f'<p class="quiet">Source: {_e(report.source)}</p>')
    out += _answers(answers(report))
    for picture in pictures:
        out += ["<figure>", *(f'<div class="{width}">{svg}</div>' for width, svg in picture.items()), "</figure>"]
    return "\n".join([*out, *(line for section in sections(report) for line in _section(section))])


def page(reports: Sequence[tuple[Report, Sequence[Mapping[str, str]]]]) -> str:
    title = reports[0][0].title if len(reports) == 1 else "Reports"
    style = (SWEEPS / "data/report.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_e(title)}</title><style>{style}</style></head><body>",
            *(_report(report, svgs) for report, svgs in reports),
            "</body></html>\n",
        ]
    )
