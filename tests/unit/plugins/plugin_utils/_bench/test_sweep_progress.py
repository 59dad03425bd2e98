# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import (
    current,
    engines,
    estimate_s,
    identity,
    progress_line,
    remaining,
    stop_reason,
)

START = datetime(2026, 6, 1, 22, 0, tzinfo=UTC)
CELLS: list[dict[str, Any]] = [
    {"id": name, "labels": {"cell": name}, "status": status}
    for name, status in (("a", "run"), ("b", "run"), ("c", "duplicate"), ("d", "run"))
]


def start(cell: str, minutes: float, run: str = "one") -> dict[str, Any]:
    return {"kind": "start", "cell": cell, "run": run, "at": (START + timedelta(minutes=minutes)).isoformat()}


def result(cell: str, status: str, run: str = "one", took: float = 100, rate: float | None = None) -> dict[str, Any]:
    measured = {"workload": {"name": "c0-n8"}, "status": status, "peak_tok_s": {"mean": rate}}
    return {"kind": "result", "cell": cell, "status": status, "run": run, "took_s": took, "measurements": [measured]}


def test_a_cell_is_done_however_it_ended_but_not_when_the_cluster_broke() -> None:
    records = [result("a", "illegal_instruction"), result("b", "infrastructure", took=900), result("d", "shared")]
    assert [c["id"] for c in remaining(CELLS, records)] == ["b", "d"]
    assert estimate_s(CELLS, records, 600) == 200
    assert estimate_s(CELLS, [], 600) == 1800


def test_a_result_of_another_engine_or_other_work_does_not_count_for_this_sweep() -> None:
    cells = [c | {"key": f"engine {c['id']}"} for c in CELLS]
    plan = {"cells": cells, "workloads": [{"concurrency": 1}]}
    records = [start("a", 0), result("a", "ok") | identity("a", plan), result("b", "ok") | identity("b", plan)]
    assert [c["id"] for c in remaining(cells, current(records, plan))] == ["d"]
    same = plan | {"workloads": [{"concurrency": 1, "repetitions": 1}]}
    assert current(records, same) == records
    longer = plan | {"workloads": [{"concurrency": 1, "max_tokens": 9}]}
    assert [r["kind"] for r in current(records, longer)] == ["start"]
    other = plan | {"cells": [c | {"key": "new"} if c["id"] == "a" else c for c in cells]}
    assert [c["id"] for c in remaining(cells, current(records, other))] == ["a", "d"]
    assert current([result("a", "ok")], plan) == []


def test_the_measured_engines_are_those_of_cells_that_differ_in_their_command_line_only() -> None:
    keys = {"a": "1|roce|i", "b": "2|roce|i", "d": "3|socket|i"}
    plan = {"cells": [c | {"key": keys.get(c["id"], "")} for c in CELLS], "workloads": [{"concurrency": 1}]}
    records = [
        result(cell, status) | {"environment": {"engine": engine}}
        for cell, status, engine in (("a", "crash", "e"), ("b", "infrastructure", "f"), ("d", "ok", "g"))
    ]
    assert engines("b", plan, records) == {"e": "a"}
    assert engines("a", plan, records) == engines("d", plan, records) == {}
    assert engines("b", plan, [result("a", "duplicate") | {"environment": {"engine": "e"}}, result("a", "ok")]) == {}


def test_the_line_of_a_cell_shows_position_time_and_the_best_cell() -> None:
    records = [result("a", "ok", took=240, rate=153.24), result("z", "garbage", took=240, rate=900)]
    records.append({key: value for key, value in records[1].items() if key != "measurements"} | {"status": "crash"})
    line = progress_line("b", CELLS, records, 60)
    assert line == "cell 2 of 3: cell b; about 8 min left; best so far: c0-n8 153.2 tok/s (cell a)"
    assert progress_line("a", CELLS, [], 3600) == "cell 1 of 3: cell a; about 3.0 h left; best so far: nothing yet"


@pytest.mark.parametrize(
    ("rules", "records", "reason"),
    [
        ({}, [result("a", "infrastructure")] * 9, ""),
        ({"hours": 2}, [start("a", 0)], "limit of 2 hours"),
        ({"hours": 4}, [start("a", 0)], ""),
        ({"infrastructure": 2}, [result("a", "infrastructure"), result("b", "shared")], "2 cells in a row"),
        ({"infrastructure": 2}, [result("a", "infrastructure"), result("b", "ok")], ""),
        ({"failures": 2}, [result("a", "nan"), result("b", "garbage")], "2 cells in a row"),
        ({"failures": 1}, [result("a", "nan")], "a cell ended with nan"),
        ({"failures": 2}, [result("a", "nan", run="earlier"), result("b", "nan")], ""),
    ],
)
def test_a_sweep_stops_by_its_rules_and_a_new_run_counts_failures_anew(
    rules: dict[str, Any], records: list[dict[str, Any]], reason: str
) -> None:
    said = stop_reason(rules, records, START + timedelta(hours=3), "one")
    assert said.startswith(reason) if not reason else reason in said
    assert bool(said) is bool(reason)
