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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any

from .._controller.data import SWEEPS
from .._sglang.catalogue import options_of
from .rows import (
    MIXED,
    PEAK,
    Report,
    Row,
    Winner,
    context_table,
    engines,
    figures_table,
    left_out,
    noise_floor,
    pooled,
    table,
    traffic,
    winners,
)
from .stats import RUNS_NEEDED, spread
from .sweep import cell_name

# Answer the three questions of a reader in sentences: what won, by how much, and can I trust it.

FEW = 3
"""More items than this are summarised, so that the answers fit on the first screen."""


Check = tuple[bool | None, str]
"""A sentence about the result's quality: True supports the result, False is a doubt, None is a remark."""


@dataclass(frozen=True)
class Answers:
    """The sentences of each answer."""

    won: list[str]
    lead: list[str]
    checks: list[Check]
    alone: bool = False

    @property
    def trust(self) -> str:
        """Return the verdict in one sentence."""
        doubts = sum(good is False for good, _text in self.checks)
        if not self.lead:
            return "No."
        return f"In part: {doubts} doubt{'s' * (doubts > 1)}." if doubts else "Yes."

    @property
    def parts(self) -> dict[str, list[str]]:
        """Return the sentences by question."""
        trust = [self.trust, *(text for _good, text in self.checks)]
        # A single run has no rival.
        first, second = ("What was measured?", "How fast is it?") if self.alone else ("What won?", "By how much?")
        return {first: self.won, second: self.lead or ["There is no figure."], "Can I trust it?": trust}

    @property
    def lines(self) -> list[str]:
        """Return one line per question."""
        return [f"{question} {' '.join(said)}" for question, said in self.parts.items()]


def _few(words: Sequence[str]) -> str:
    if len(words) > FEW:
        return f"{', '.join(words[: FEW - 1])} and {len(words) - FEW + 1} others"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _loads(found: Sequence[Winner], report: Report) -> str:
    if len(found) == len(report.workloads) > 1:
        return f"all {len(found)} loads"
    return _few([traffic(w.workload) for w in found])


def _groups(report: Report) -> list[list[Winner]]:
    """Return the winners of the single workloads, grouped by the engine that won."""
    by_row: dict[str, list[Winner]] = {}
    for winner in winners(report):
        if winner.workload != MIXED:
            by_row.setdefault(winner.row, []).append(winner)
    return list(by_row.values())


def _won(report: Report) -> Iterator[str]:
    for group in _groups(report):
        tied = list(dict.fromkeys(name for w in group for name in w.tied))
        but = f"; the repetitions cannot tell it from {_few(tied)}" if tied else ""
        yield f"Fastest at {_loads(group, report)}: {group[0].row}{but}."
    for mixed in winners(report):
        if mixed.workload == MIXED and len(_groups(report)) > 1:
            yield f"Best for mixed traffic: {mixed.row}, never below {mixed.tok_s:.0%} of the fastest."


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.1%}" if high - low < 0.0005 else f"{low:.1%} to {high:.1%}"


def _other(report: Report, name: str, winner: str) -> str:
    """Return what another row has instead of the winner's labels, or its whole name if its axes are different."""
    rows = {r.name: r.labels for r in report.ranked}
    ours, theirs = rows[winner], rows[name]
    different = cell_name({k: v for k, v in theirs.items() if ours.get(k) != v}) if set(ours) == set(theirs) else ""
    return f"with {different}" if different and len(different) < len(name) else name


def _lead(report: Report) -> Iterator[str]:
    base = report.baseline
    for group in _groups(report):
        first = group[0].row
        ahead = [(w, w.tok_s / w.second_tok_s - 1) for w in group if w.second_tok_s]
        for w, lead in ahead if len(ahead) <= FEW else ():
            rival = f"{_other(report, w.second, first)} ({w.second_tok_s:.2f})"
            yield f"{traffic(w.workload)}: {w.tok_s:.2f} tok/s, {lead:.1%} more than {rival}."
        if len(ahead) > FEW:
            rates = f"{min(w.tok_s for w in group):.2f} to {max(w.tok_s for w in group):.2f} tok/s"
            yield f"{first}: {rates}, {_span([lead for _w, lead in ahead])} more than the next best."
        known = [(w.tok_s, mean) for w in group if base and (mean := base.mean(w.workload))]
        if base and known and any(w.second != base.name for w in group) and first != base.name:
            more = _span([rate / mean - 1 for rate, mean in known])
            yield f"That is {more} more than the base, {_other(report, base.name, first)}."


def _alone(report: Report, row: Row) -> Iterator[str]:
    loads = [w for w in report.workloads if row.rates.get(w)]
    for workload in loads[:FEW] if len(loads) > FEW + 1 else loads:
        first, gap = row.mean(workload, "ttft_s"), row.mean(workload, "itl_s")
        more = f", first token after {first:.3f} s" if first else ""
        more += f", {1000 * gap:.1f} ms between tokens" if gap else ""
        late = row.mean(workload, "ttft_p95_s") if first else None
        more += f"; p95 of the first token {late:.3f} s" if late else ""
        yield f"{traffic(workload)}: {row.mean(workload) or 0:.2f} tok/s{more}."
    if len(loads) > FEW + 1:
        yield f"{len(loads) - FEW} more loads are in the tables."


def _on_one_node(row: Row) -> bool:
    """Tell whether a cell ran on one node, without a proof: its ranks use no network."""
    return len(row.environment.get("nodes") or ()) == 1 and not row.environment.get("transport")


def _checks(report: Report) -> Iterator[Check]:
    ranked, floors = report.ranked, noise_floor(report)
    fewest = min(n for r in engines(report) for w in report.workloads if (n := len(pooled(report, r, w))))
    differ = f"; repetitions differ by up to {max(floors.values()):.1%}" if floors else ""
    few = f"Some figures have only {fewest} repetition{'s' * (fewest > 1)}, so a lead can be chance{differ}."
    enough = fewest >= RUNS_NEEDED
    yield enough, f"Every figure has {fewest} or more repetitions{differ}." if enough else few

    found = [w for group in _groups(report) for w in group]
    if tied := [w for w in found if w.tied]:
        names = _few(list(dict.fromkeys(name for w in tied for name in w.tied)))
        yield False, f"The lead at {_loads(tied, report)} is within the spread: not distinguishable from {names}."
    if all(w.certain for w in found):
        yield True, "Every lead exceeds the spread of the repetitions."

    proofs = {r.name: r.environment.get("transport") or {} for r in ranked if not _on_one_node(r)}
    if report.source:
        yield False, "These figures were published elsewhere: their transport is not proven."
    elif without := [name for name, proof in proofs.items() if not proof.get("satisfied")]:
        yield False, f"The transport is not proven for {_few(without)}."
    elif not proofs:
        yield True, f"{ALONE[:1].upper()}{ALONE[1:]}."
    else:
        said = dict.fromkeys(str(proof.get("msg") or "it is the planned one") for proof in proofs.values())
        yield True, f"The transport of every rank is proven: {_few(list(said))}."

    judged = [m.get("judged") is not False for r in ranked for m in r.measurements]
    if not report.source:
        told = "All ranked answers were checked, and none is broken."
        yield all(judged), told if all(judged) else "Not all answers were checked, so a model may be broken."
    counts = [c for r in ranked for c in r.outcomes.values()]
    if failed := sum(c.get("failed", 0) for c in counts):
        yield False, f"{failed} of {failed + sum(c.get('ok', 0) for c in counts)} requests failed."
    out = Counter(r.status for r in report.rows if r.status not in ("ok", "duplicate"))
    if out:
        states = ", ".join(f"{n} {status}" for status, n in out.items())
        yield None, f"Not ranked, with reasons below: {states}; of {len(report.rows)} cells."


def answers(report: Report) -> Answers:
    """Return the answers for a sweep or for a single run."""
    alone = engines(report)
    if not alone:
        return Answers(["Nothing: no cell has a valid result."], [], [(False, line) for line in left_out(report)[:FEW]])
    if len(alone) > 1:
        return Answers(list(_won(report)), list(_lead(report)), list(_checks(report)))
    whose = f"Profile {report.profile}, {alone[0].name}" if report.profile else alone[0].name
    said = whose if len(report.rows) == 1 else f"Only one cell has a valid result: {alone[0].name}"
    return Answers([f"{said}."], list(_alone(report, alone[0])), list(_checks(report)), alone=True)


FABRIC = ("nodes", "networks", "rdma_devices", "mtu")
APART = frozenset({"arguments", "server", "transport", "inventory", "commit"})
ALONE = "no network carried data: it ran on one node"
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
        proof = {"msg": ALONE, "satisfied": True} if _on_one_node(row) else row.environment.get("transport") or {}
        found.append(Setup(row.name, proof, changes, facts))
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


LATE = (
    "TTFT and ITL are medians over the requests of a repetition. Its p95 needs 20 requests and its p99 100; of fewer, "
    "they lie between the slowest two."
)


def sections(report: Report) -> Iterator[Section]:
    """Yield the sections after the answers and the pictures."""
    if report.notes:
        yield Section("Notes", report.notes)
    yield Section("Throughput", table=table(report))
    if len(rows := figures_table(report)) > 1:
        late = any(column in rows[0] for column in ("TTFT p95 s", "ITL p95 ms"))
        yield Section("Figures", [LATE] if late else [], rows)
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
