# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write reports as one self-contained HTML page that also fits phones and print."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from .._paths import SWEEPS
from .answers import Answers, answers
from .rows import Report
from .sections import Section, sections


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
