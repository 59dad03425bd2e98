# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the records of a sweep, or a published table, into the tables of a report. Private to the collection.

Everything here is data in, data out; `_bench_rank` judges it, `_bench_table`, `_bench_html` and `_bench_plots` show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._load_stats import spread
from ._sweep_plan import cell_name


@dataclass
class Row:
    """One cell: its labels, its state, and per workload name the figures of its repetitions.

    ``rates`` maps a workload's name to the list of peak rates in tok/s, one a repetition. ``figures`` holds the other
    columns by (workload, column), ``requests`` each request's own rate, ``overlay`` what the cell changes of its
    profile. ``remark`` is what resolver and guards say of a published row, ``reason`` why the row is not ranked.
    """

    id: str
    labels: dict[str, str]
    status: str = "ok"
    reason: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[tuple[str, str], float] = field(default_factory=dict)
    requests: dict[str, list[float]] = field(default_factory=dict)
    overlay: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    remark: str = ""
    key: str = ""

    def mean(self, workload: str) -> float | None:
        """Return the mean peak rate of a workload in tok/s."""
        return spread(self.rates.get(workload, []))["mean"]

    @property
    def name(self) -> str:
        """Return the labels as one short text."""
        return cell_name(self.labels) or self.id


@dataclass
class Report:
    """All rows of one run and what is known about it."""

    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    source: str = ""
    reproduce: str = ""
    profile: str = ""

    @property
    def workloads(self) -> list[str]:
        """Return every workload's name, in the order of first use."""
        return list(dict.fromkeys(w for row in self.rows for w in row.rates))

    @property
    def ranked(self) -> list[Row]:
        """Return the rows that count."""
        return [r for r in self.rows if r.status == "ok" and r.rates]


def _measured(row: Row, record: Mapping[str, Any]) -> None:
    row.status = str(record.get("status", "failed"))
    failure = record.get("failure") or {}
    row.reason = failure.get("line", "") or record.get("reason", "")
    row.environment = dict(record.get("environment", {}))
    for cell in record.get("measurements", []):
        workload = cell["workload"]["name"]
        good = [run for run in cell.get("runs", []) if run["status"] == "ok"]
        if cell["status"] != "ok":
            row.status = cell["status"] if row.status == "ok" else row.status
            signs = [g["detail"] for run in cell.get("runs", []) for g in run["garbage"]]
            row.reason = row.reason or cell.get("reason", "") or "; ".join(signs[:2])
        row.rates[workload] = [run["figures"]["peak_tok_s"] for run in good if run["figures"]["peak_tok_s"]]
        row.requests[workload] = [r["tok_s"] for run in good for r in run.get("requests", []) if r.get("tok_s")]
        for column in ("wall_tok_s", "ttft_s", "itl_s", "prefill_tok_s", "accept_length", "accept_rate"):
            mean = (cell.get(column) or {}).get("mean")
            if mean is not None:
                row.figures[workload, column] = mean


def from_records(title: str, records: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report of a sweep's journal: the plan's cells, each with its last result."""
    rows: dict[str, Row] = {}
    report = Report(title, [])
    for record in records:
        if record.get("kind") == "plan":
            report.profile = str(record.get("profile", ""))
            for cell in record["cells"]:
                row = rows.setdefault(cell["id"], Row(cell["id"], dict(cell["labels"]), key=cell.get("key", "")))
                row.overlay = dict(cell.get("overlay", {}))
                row.status = {"run": "not run", "invalid": "invalid", "duplicate": "duplicate"}[cell["status"]]
                reasons = [r["reason"] for r in cell.get("reasons", []) if r.get("severity") == "error"]
                row.reason = "; ".join(reasons)
                if cell["status"] == "duplicate":
                    original = rows.get(cell["duplicate_of"])
                    row.reason = (
                        f"SGLang makes the engine of {original.name if original else cell['duplicate_of']} of it"
                    )
        elif record.get("kind") == "result" and record["cell"] in rows:
            _measured(rows[record["cell"]], record)
    measured = [m for r in records for m in r.get("measurements", [])]
    if any(m.get("judged") is False for m in measured):
        report.notes.append("The output of these cells was not judged: they may be of a collapsed model.")
    report.rows = list(rows.values())
    return report


def from_published(table: Mapping[str, Any]) -> Report:
    """Return the report of a published table: ``{title, source, columns: {label: …}, rows: [{labels, n1, n4, …}]}``.

    A column ``n<k>`` is the peak rate in tok/s at k streams, ``c<ctx>-n<k>`` the same at a context; a row with
    ``status`` other than ``ok`` is shown and not ranked.
    """
    rows = []
    for i, entry in enumerate(table["rows"]):
        row = Row(f"row{i + 1}", {k: str(v) for k, v in entry["labels"].items()}, entry.get("status", "ok"))
        row.reason = entry.get("reason", "")
        row.key = str(entry.get("key", ""))
        for column, value in entry.get("rates", {}).items():
            row.rates[column if column.startswith("c") else f"c0-{column}"] = [float(value)]
        for column, value in entry.get("figures", {}).items():
            workload, name = column.split(".", 1)
            row.figures[workload if workload.startswith("c") else f"c0-{workload}", name] = float(value)
        rows.append(row)
    return Report(str(table["title"]), rows, list(table.get("notes", [])), str(table.get("source", "")))
