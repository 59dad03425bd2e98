# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the course of a measurement with a server, times and repetitions that are given."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import client
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import (
    SO_TIMESTAMPNS,
    STAMP,
    Busy,
    Request,
    Server,
    StampedSocket,
    Target,
    measure,
    run_level,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import RequestRecord, Workload
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.metrics import Scrape
from output_corpus import prose
from stored import compare, flat

TARGET = Target("http://x", "m")


@pytest.mark.parametrize(
    ("count", "stamps", "reads"),
    [
        (3, [], [100.0]),
        (3, [(6, 500_000_000)], [98.5]),
        (3, [(9, 0)], [100.0]),
        (3, [(7, 0), (7, 500_000_000)], [98.5]),
        (0, [(6, 0)], []),
    ],
)
def test_a_read_has_the_time_of_its_stamp(
    monkeypatch: pytest.MonkeyPatch, count: int, stamps: list[tuple[int, int]], reads: list[float]
) -> None:
    clock = SimpleNamespace(perf_counter=lambda: 100.0, time_ns=lambda: 8 * 10**9)
    with StampedSocket() as made:
        monkeypatch.setattr(client, "time", clock)
        other = (socket.SOL_SOCKET, SO_TIMESTAMPNS + 1, b"")
        made._note(count, [other, *((socket.SOL_SOCKET, SO_TIMESTAMPNS, STAMP.pack(*each)) for each in stamps)])
        assert made.reads == reads
        made.reads[:] = [1.0, 2.0, 3.0]
        assert (made.take(2.0), made.take(2.0)) == ([2.0, 3.0], [100.0])


def level(answers: Iterable[dict[str, Any]], concurrency: int, patch: pytest.MonkeyPatch, **more: Any) -> list[int]:
    """Return the indices of the records of requests that end like this."""
    given = list(answers)

    async def one(*words: Any) -> RequestRecord:
        index, over = words[4], words[6]
        fields = dict(given[index % len(given)])
        await asyncio.sleep(fields.pop("wait", 0.0))
        if fields.pop("raises", False):
            raise LookupError(index)
        if fields.get("finish_reason") == "budget":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(9)
            assert over.is_set()
        return RequestRecord(index=index, sent=0.0, **fields)

    patch.setattr(client, "_run_one", one)
    requests = [Request("q", 1)] * more.pop("number", len(given))
    return [record.index for record in asyncio.run(run_level(TARGET, requests, concurrency, **more))]


def test_every_request_has_a_record_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[dict[str, Any]] = [{"wait": 0.02}, {"wait": 0.01}, {}, {"error_class": "infrastructure"}, {}]
    assert level(ends, 3, monkeypatch) == [0, 1, 2, 3, 4]
    assert level(ends, 1, monkeypatch) == [0, 1, 2, 3, 4]
    with pytest.raises(LookupError):
        level([{}, {"raises": True}, {}], 1, monkeypatch)
    # With a duration a broken server ends a stream, and one that was cut without a token is left out.
    assert level([{"error_class": "infrastructure"}], 2, monkeypatch, duration_s=5.0, number=9) == [0, 1]
    assert level([{"error_class": "server"}], 1, monkeypatch, duration_s=5.0, number=9) == list(range(9))
    cut = [{"finish_reason": "budget"}, {"finish_reason": "budget", "chunk_times": [1.0]}]
    assert level(cut, 2, monkeypatch, duration_s=0.01) == [1]


def test_a_server_has_to_be_idle_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []
    now = [50.0]
    slept: list[float] = []

    async def scraped(_target: Target) -> Scrape:
        return Scrape(gauges={"num_running_reqs": left.pop(0)})

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(client, "_scrape", scraped)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(client, "asyncio", SimpleNamespace(sleep=sleep))
    left[:] = [0.0]
    assert asyncio.run(client._idle(TARGET, 0.0)).busy == 0
    left[:] = [3.0, 2.0, 1.0, 0.0]
    assert asyncio.run(client._idle(TARGET, 5.0)).busy == 0
    assert slept == [2.0, 2.0, 2.0]
    left[:] = [3.0, 2.0, 4.0]
    with pytest.raises(Busy, match="http://x already runs 4 requests: measure when it is idle"):
        asyncio.run(client._idle(TARGET, 4.0))
    left[:] = [3.0, 0.0]
    assert asyncio.run(client._idle(TARGET, 0.5)).busy == 0
    assert slept[3:] == [2.0, 2.0, 0.5]


def test_the_gauges_are_read_again_and_again_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Scrape(gauges={"x": 1.0}), OSError(), Scrape(gauges={"x": 2.0}), LookupError()]
    slept: list[float] = []

    async def scraped(_target: Target) -> Scrape:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(client, "_scrape", scraped)
    monkeypatch.setattr(client, "asyncio", SimpleNamespace(sleep=sleep))
    seen: list[Scrape] = []
    with pytest.raises(LookupError):
        asyncio.run(client._watch(TARGET, seen))
    assert ([reading.gauges["x"] for reading in seen], slept) == ([1.0, 2.0], [0.5, 2, 2, 2])


def made(index: int, **more: Any) -> RequestRecord:
    fields = {
        "chunk_times": [1.0, 2.0 + index],
        "output_tokens": 9,
        "content": prose(2, index),
        "finish_reason": "stop",
    }
    return RequestRecord(index=index, sent=0.0, **(fields | more))


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(("repetition", "metrics", "judged"), [(0, True, True), (1, True, True), (1, False, False)])
def test_a_repetition_asks_for_what_it_is_to_measure(
    monkeypatch: pytest.MonkeyPatch, repetition: int, metrics: bool, judged: bool, forced: bool
) -> None:
    asked: list[Any] = []
    readings = iter([Scrape(), Scrape(counters={"generation_tokens_total": 18.0})])

    async def levelled(_target: Target, _requests: Any, *rest: Any) -> list[RequestRecord]:
        asked.extend(rest)
        return [made(1), made(2, content="")]

    async def scraped(_target: Target) -> Scrape:
        return next(readings)

    monkeypatch.setattr(client, "run_level", levelled)
    monkeypatch.setattr(client, "_scrape", scraped)
    known = Server(metrics=metrics, judged=judged, longest_step=4, graphs_expected=False)
    work = Workload(2, duration_s=7.0, forced=forced)
    run = asyncio.run(client._repeat(TARGET, work, repetition, known))
    assert asked == [2, judged, 7.0 if repetition else 0.0]
    assert run["repetition"] == repetition
    assert (run["status"], [g["kind"] for g in run["garbage"]]) == (
        ("garbage", ["no_content"]) if judged else ("ok", [])
    )
    kept = {key: run["server"].get(key) for key in ("tokens", "longest_step", "graphs_expected")}
    seen = {"tokens": 18.0, "longest_step": None if forced else 4, "graphs_expected": False}
    assert kept == (seen if metrics else dict.fromkeys(seen))
    assert run["figures"]["ok"] == len(run["requests"]) == 2


def test_a_cell_has_the_spread_of_its_good_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeated(status: str, rate: float | None, by: str, source: str | None) -> dict[str, Any]:
        figures = {"peak_tok_s": rate, "wall_tok_s": rate, "ttft_s": {"p50": 1.0}, "itl_s": {"p50": rate}}
        server = {"accept_length": rate} | ({"accept_length_source": source} if source else {})
        return {"status": status, "figures": figures | {"tokens_counted_by": [by, "server"]}, "server": server}

    cases = {
        "good": [("ok", 99.0, "x", None), ("ok", 2.0, "chunks", "gauge"), ("ok", 4.0, "b", "counters")],
        "worst": [
            ("garbage", 99.0, "x", None),
            ("eager", 2.0, "a", None),
            ("ok", 4.0, "b", "counters"),
            ("failed", None, "c", None),
        ],
        "garbage": [("ok", 99.0, "x", None), ("garbage", 2.0, "a", None), ("ok", 4.0, "b", None)],
        "none": [("ok", 99.0, "x", None)],
    }
    found = {}
    for name, runs in cases.items():

        async def repeat(_target: Target, _work: Workload, number: int, _known: Server, runs: Any = runs) -> Any:
            return repeated(*runs[number])

        monkeypatch.setattr(client, "_repeat", repeat)
        told: list[str] = []
        work = Workload(3, repetitions=len(runs) - 1)
        cell = asyncio.run(measure(TARGET, work, Server(judged=name != "none"), told.append))
        found[name] = [*told, *flat(cell | {"runs": len(cell["runs"])}, "x")]
    compare("load_cells", found)
