# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is concluded, told and named of the cells of a sweep against stored texts."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import (
    Evidence,
    best_so_far,
    conclude,
    engines,
    environment,
    estimate_s,
    from_results,
    identity,
    measured_status,
    progress_line,
    remaining,
    single_cell,
    stop_reason,
    took_s,
    workloads_id,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import (
    cell_name,
    label_of,
    merge,
    overlay_of,
    serving_of,
)
from stored import compare, flat

RANKS = [
    {
        "node": "a",
        "argv": ["x", "y"],
        "networks": [{"name": "n1", "rdma_device": "d1"}, {"name": "n2", "rdma_device": ""}],
    },
    {
        "node": "b",
        "argv": ["z"],
        "networks": [{"name": "n1", "rdma_device": "d1"}, {"name": "n3", "rdma_device": "d3"}],
    },
]
SERVING = {
    "sglang_version": "0.5",
    "image": "i",
    "profile": "p",
    "preset": "q",
    "ranks": RANKS,
    "image_verdict": {"engine": "e"},
}
PODS = {
    "resources": [
        {"status": {"containerStatuses": [{"name": "other", "imageID": "o"}, {"name": "sglang", "imageID": "s1"}]}},
        {"status": {"containerStatuses": [{"name": "sglang", "imageID": "s2"}, {"name": "sglang", "imageID": "s1"}]}},
        {"status": {}},
        {},
        {"status": {"containerStatuses": [{"name": "sglang", "imageID": ""}, {"name": "sglang"}]}},
    ]
}
KERNELS = {
    "results": [
        {"stdout_lines": ["6.1", "580"]},
        {"stdout_lines": ["6.1", "580"]},
        {"stdout_lines": ["6.2"]},
        {},
        {"stdout_lines": []},
    ]
}
RESULTS = {
    "plan": SERVING,
    "mtu": 9000,
    "pods": PODS,
    "kernels": KERNELS,
    "server": {"server_info": {"tp": 2}},
    "verify": True,
    "proof": {"satisfied": True, "nccl_versions": ["2.29"]},
    "measured": {"cells": [{"status": "ok"}, {"status": "eager"}]},
}
FAILED = {"measured": None, "failure": {"task": "T", "msg": "no port"}}
DEAD = {"rank": 1, "pod": "x-1", "restarts": 0, "trouble": "crashed: 139"}


def test_the_records_of_cells_are_stored() -> None:
    known = "ValueError: unknown thing"
    cases: dict[str, dict[str, Any]] = {
        "measured": {},
        "no preset": {"plan": SERVING | {"preset": "", "ranks": [], "image_verdict": None}},
        "no proof": FAILED | {"proof": None},
        "not verified": FAILED | {"proof": None, "verify": None},
        "no versions": {"proof": {"satisfied": False}},
        "no server": FAILED | {"server": None, "pods": None, "kernels": None},
        "nothing": dict.fromkeys(RESULTS),
        "no words": {"measured": None, "failure": {"task": None, "msg": None}},
        "dead": FAILED | {"group": {"ranks": [DEAD], "logs": {"x-1": ["", " "]}}},
        "restarted": FAILED | {"group": {"ranks": [DEAD | {"trouble": "", "restarts": 1}, DEAD], "logs": None}},
        "second of two": FAILED
        | {
            "group": {
                "ranks": [DEAD, DEAD | {"pod": "x-2", "rank": 2}],
                "logs": {"x-1": [], "x-2": ["INFO", known, "bye"]},
            }
        },
        "first of two": FAILED
        | {"group": {"ranks": [DEAD, DEAD | {"pod": "x-2"}], "logs": {"x-1": ["INFO last"], "x-2": [known]}}},
        "alive": FAILED | {"group": {"ranks": [DEAD | {"trouble": "waits"}], "logs": {"x-1": [known]}}},
        "lost": FAILED
        | {
            "group": {
                "ranks": [{"rank": 0}, {"rank": 3, "lost": True, "node": "n"}, {"rank": 4, "lost": True}],
                "logs": {},
            }
        },
        "lost without a node": FAILED | {"group": {"ranks": [{"rank": 3, "lost": True}], "logs": {}}},
        "killed": FAILED | {"group": {"ranks": [{"rank": 0}, {"rank": 3, "last_exit": "OOMKilled"}], "logs": {}}},
        "measured while dead": {
            "measured": {"cells": [{"status": "ok"}, {"status": "failed"}]},
            "group": {"ranks": [DEAD], "logs": {}},
        },
        "garbage while dead": {
            "measured": {"cells": [{"status": "garbage"}, {"status": "failed"}]},
            "group": {"ranks": [DEAD], "logs": {}},
        },
        "long reason": FAILED | {"proof": None, "failure": {"msg": "x" * 600}},
    }
    found = {name: flat(conclude(from_results(RESULTS | more), {"commit": "c"}), "x") for name, more in cases.items()}
    usual = set(found["measured"])
    found |= {
        name: [line for line in lines if line not in usual] for name, lines in found.items() if name != "measured"
    }
    twin = from_results(RESULTS | {"measured": None, "failure": {"msg": "x [serving.verdict.known_engine]"}})
    found["duplicate"] = [
        *flat(conclude(twin, {}, {"e": "a"}), "x")[-2:],
        conclude(twin, {}, {"f": "a"})["status"],
        conclude(twin, {})["status"],
    ]
    found["url"] = [str(environment(Evidence(server={}), {"commit": "c"})), str(Evidence())]
    found["worst"] = [
        measured_status([{"status": s} for s in states])
        for states in (["ok", "eager"], ["shared", "failed"], ["infrastructure", "eager"], ["ok"])
    ]
    compare("sweep_records", found)


START = datetime(2026, 6, 1, 22, 0, tzinfo=UTC)
CELLS: list[dict[str, Any]] = [
    {"id": name, "labels": {"cell": name}, "status": "run", "key": f"{name}|r"} for name in "abcdef"
]


def ended(cell: str, status: str, took: float | None = 100.0, run: str = "1", **rates: float) -> dict[str, Any]:
    measured = [
        {"workload": {"name": name}, "status": status, "peak_tok_s": {"mean": rate}} for name, rate in rates.items()
    ]
    return {
        "kind": "result",
        "cell": cell,
        "status": status,
        "took_s": took,
        "run": run,
        "measurements": measured,
        "environment": {"engine": f"e{cell}"},
    }


def begun(cell: str, hours: float, run: str = "1") -> dict[str, Any]:
    return {"kind": "start", "cell": cell, "run": run, "at": (START + timedelta(hours=hours)).isoformat()}


def test_the_progress_of_a_sweep_is_stored() -> None:
    plan = {"cells": CELLS, "workloads": [{"concurrency": 1}]}
    records = [
        begun("a", 0),
        ended("a", "ok", n1=5.0, n8=30.0),
        ended("b", "ok", 300.0, n1=6.0, n8=29.0),
        ended("c", "duplicate", 5.0),
        ended("d", "shared", 900.0, n1=90.0),
        ended("e", "garbage", None, n1=99.0),
        ended("z", "ok", 200.0, n4=1.0),
        begun("a", 1),
        begun("b", 2),
    ]
    found = {
        "left": [c["id"] for c in remaining(CELLS, records)],
        "seconds": [str(estimate_s(CELLS, each, 60.0)) for each in (records, [], records[4:6])],
        "best": [
            str(best_so_far(CELLS, records)),
            str(best_so_far(CELLS, [*records, ended("c", "ok", n1=6.0, n8=30.5)])),
        ],
        "took": [str(took_s(cell, records, START + timedelta(hours=3))) for cell in "abz"],
        "lines": [progress_line(cell, CELLS, records, guess) for cell in "dfz" for guess in (60.0,)],
        "guesses": [progress_line("a", CELLS, [], guess) for guess in (899.0, 900.0, 60.0)],
        "engines": [str(engines(cell, plan, records)) for cell in "abf"],
        "single": [json.dumps(single_cell("s", preset)) for preset in ("", "p")],
        "identity": [str(identity(cell, plan)["key"]) for cell in "az"],
        "same work": [
            str(
                len(
                    {
                        workloads_id(w)
                        for w in (
                            [{"concurrency": 1}],
                            [{"concurrency": 1, "seed": 1}],
                            [{"concurrency": 1, "seed": 2}],
                            [{"concurrency": 1}, {"concurrency": 2}],
                        )
                    }
                )
            )
        ],
    }
    rules = [
        {"hours": 3},
        {"hours": 2.9},
        {"hours": 0},
        {"infrastructure": 1},
        {"infrastructure": 2},
        {"failures": 1},
        {"failures": 2},
        {"failures": 0},
    ]
    tails = {
        "none": [],
        "start": [begun("a", 0), begun("b", 2.5)],
        "other run": [begun("a", 0, "0"), ended("a", "crash", run="0"), ended("b", "shared", run="0")],
        "broken": [ended("a", "ok"), ended("b", "infrastructure"), ended("c", "shared")],
        "bad": [ended("a", "ok"), ended("b", "crash"), ended("c", "garbage"), ended("d", "crash")],
        "twin": [ended("a", "crash"), ended("b", "duplicate")],
    }
    for name, tail in tails.items():
        for run in ("1", None):
            said_of = [stop_reason(rule, tail, START + timedelta(hours=3), run) for rule in rules]
            found[f"{name} of run {run}"] = [
                f"{rule}: {reason}" for rule, reason in zip(rules, said_of, strict=True) if reason
            ]
    compare("sweep_progress", found)


def test_names_and_overlays_of_axes_are_stored() -> None:
    values: list[tuple[str, Any]] = [
        ("tp_size", 2),
        ("tp-size", 2),
        ("nodes", 4),
        ("nnodes", 4),
        ("image", "i"),
        ("preset", "p"),
        ("env", {"A": 1, "B": 2}),
        ("env", {"name": "n", "env": {"A": 1}, "image": "i"}),
        ("server_args", {"x": 1}),
        ("mode", {"name": "n", "x": 1, "y": 2, "tp": 2, "ep_size": 4, "env": {"A": 1}, "server_args": {"z": 3}}),
        ("mode", {"x": 1, 2: True}),
        ("flag", True),
        ("flag", None),
    ]
    found = {f"{axis} {value}": [label_of(value), json.dumps(overlay_of(axis, value))] for axis, value in values}
    found["merged"] = [
        str(merge({"a": {"b": 1, "c": {"d": 1}}, "e": 1}, {"a": {"c": {"f": 2}, "b": 3}, "e": {"g": 1}, "h": 2}))
    ]
    labels = [{"transport": "roce"}, {"mode": "x", "transport": "socket"}, {"moe_backend": "y", "a_b": "z"}, {}]
    found["names"] = [cell_name(each) for each in labels]
    found["serving"] = [
        str(serving_of(*each))
        for each in (
            ({},),
            ({"image": "i"}, "0.5"),
            ({"preset": "p", "transport": "socket", "sglang_version": "1"}, "0.5"),
        )
    ]
    compare("sweep_axes", found)
