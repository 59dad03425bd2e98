# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write reports as one self-contained HTML page that also fits phones and print."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .._paths import SWEEPS
from .rows import Report
from .sections import Section, sections
from .table import headlines, table


def _e(value: object) -> str:
    return html.escape(str(value))


def _table(rows: Sequence[Sequence[str]], quiet: Sequence[bool] = ()) -> str:
    head, *body = rows
    out = ["<div class=scroll><table><thead><tr>", *(f"<th>{_e(c)}</th>" for c in head), "</tr></thead><tbody>"]
    for i, row in enumerate(body):
        out.append('<tr class="out">' if i < len(quiet) and quiet[i] else "<tr>")
        out += [f"<td>{_e(c)}</td>" for c in row[:-1]] + [
            f"<td{' class=wide' if len(row[-1]) > 24 else ''}>{_e(row[-1])}</td></tr>"
        ]
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


def _report(report: Report, svgs: Sequence[str]) -> str:
    out = [f"<h1>{_e(report.title)}</h1>"]
    if report.source:
        out.append(f'<p class="quiet">Source: {_e(report.source)}</p>')
    out += ["<ul>", *(f"<li>{_e(line)}</li>" for line in headlines(report)), "</ul>"]
    out += [f"<figure>{svg}</figure>" for svg in svgs]
    out.append(_table(table(report), [r.status != "ok" for r in report.rows]))
    return "\n".join([*out, *(line for section in sections(report) for line in _section(section))])


def page(reports: Sequence[tuple[Report, Sequence[str]]]) -> str:
    """Return the page with the reports and their pictures."""
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
