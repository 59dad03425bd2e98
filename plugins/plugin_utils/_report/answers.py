# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer the three questions of a reader in sentences: what won, by how much, and can I trust it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._load.stats import RUNS_NEEDED
from .._sweep.plan import cell_name
from .rank import Winner, engines, noise_floor, pooled, winners
from .rows import MIXED, Report, Row, left_out, traffic

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
        return {"What won?": self.won, "By how much?": self.lead or ["There is no figure."], "Can I trust it?": trust}

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
        yield f"{traffic(workload)}: {row.mean(workload) or 0:.2f} tok/s{more}."
    if len(loads) > FEW + 1:
        yield f"{len(loads) - FEW} more loads are in the tables."


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

    if report.source:
        yield False, "These figures were published elsewhere: their transport is not proven."
    elif without := [r.name for r in ranked if not (r.environment.get("transport") or {}).get("satisfied")]:
        yield False, f"The transport is not proven for {_few(without)}."
    else:
        said = dict.fromkeys(str(r.environment["transport"].get("msg") or "it is the planned one") for r in ranked)
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
    only = "Only one cell was measured" if len(report.rows) == 1 else "Only one cell has a valid result"
    return Answers([f"{only}: {alone[0].name}."], list(_alone(report, alone[0])), list(_checks(report)))
