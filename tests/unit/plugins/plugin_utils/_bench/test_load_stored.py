# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is read from streams, recordings and servers against stored texts."""

import asyncio
import json
import re
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import client
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import (
    Request,
    Target,
    cleaned,
    graphs_expected,
    longest_step,
    requests_of,
    served_model,
    server_info,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.garbage import Garbage
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.judge import (
    Recording,
    accepted_share,
    judge_cell,
    judge_recording,
    parse_recording,
    signs_of_garbage,
    status_of,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import (
    RequestRecord,
    Workload,
    distinguishable,
    figure_at,
    spread,
    summarise,
)
from output_corpus import prose
from stored import compare, flat


def event(**value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def said(finish: str | None = None, **delta: Any) -> bytes:
    return event(choices=[{"delta": delta, "finish_reason": finish}])


TWO = said(content="a ") + said("stop", content="b")
STREAMS: dict[str, list[tuple[bytes, list[float]]]] = {
    "one read": [(TWO, [5.0])],
    "two reads": [(TWO, [5.0, 6.0])],
    "three reads of two events": [(TWO, [4.0, 5.0, 6.0])],
    "two reads of three events": [(said(content="x ") + TWO, [5.0, 6.0])],
    "three reads of five events": [(TWO + TWO + said(content="e"), [5.0, 6.0, 7.0])],
    "parts": [(TWO[:20], [5.0]), (TWO[20:-1], [6.0]), (TWO[-1:], [7.0])],
    "other ends of lines": [(TWO.replace(b"\n", b"\r\n"), [5.0])],
    "notes": [(b": alive\n\nevent: x\n" + TWO + b"data: [DONE]\n\n" + said(content="c"), [5.0])],
    "no JSON": [(b"data: {oops\n\n" + TWO, [5.0])],
    "error": [(said(content="a") + event(error={"message": "x" * 400}) + TWO, [5.0])],
    "counts": [
        (event(usage={"completion_tokens": 5, "prompt_tokens": 7}) + event(usage={"completion_tokens": 6}), [5.0])
    ],
    "no counts": [
        (
            event(usage={"completion_tokens": 5})
            + event(usage={"completion_tokens": 0, "prompt_tokens": 2})
            + event(usage=None),
            [5.0],
        )
    ],
    "two choices": [
        (event(choices=[{"delta": {"content": "a"}}, {"delta": {"content": "b"}, "finish_reason": "stop"}]), [5.0])
    ],
    "no choices": [(event(choices=None) + event() + event(choices=[{"delta": None}]), [5.0])],
    "reasoning": [
        (said(reasoning_content="r1 ", reasoning="no") + said(reasoning="r2 ") + said("length", content="c"), [5.0])
    ],
    "ends once": [(said("stop", content="a") + said(content="b"), [5.0])],
    "collapse": [(said(content="!") * 40, [5.0])],
    "collapse of thoughts": [(said(reasoning="!") * 40, [5.0])],
}


def changed(record: RequestRecord) -> dict[str, Any]:
    """Return the fields that are not as they were before the first read."""
    before = asdict(RequestRecord(index=1, sent=1.0))
    return {key: value for key, value in asdict(record).items() if value != before[key]}


def rounded(lines: list[str]) -> list[str]:
    """Return the lines without the last digits of numbers, in which versions of Python differ."""
    return [re.sub(r"\d+\.\d{7,}(e-\d+)?", lambda number: f"{float(number[0]):.6g}", line) for line in lines]


def test_each_stream_is_read_as_stored() -> None:
    found = {}
    for name, reads in STREAMS.items():
        lines = []
        for guarded in (True, False):
            record = RequestRecord(index=1, sent=1.0)
            reader = client._Reader(record, guarded)
            goes_on = [reader.take(data, moments) for data, moments in reads]
            reader.close()
            lines.append(f"{goes_on}: {changed(record)}")
        found[name] = lines if lines[0] != lines[1] else lines[:1]
    target, request = Target("http://x", "m", "key"), Request("q", 9, {"seed": 1})
    found["bodies"] = [json.dumps(client._body(target, request, limited)) for limited in (True, False)]
    found["defaults"] = [str(asdict(Target("http://x", "m"))), str(asdict(Workload(3))), str(asdict(client.Server()))]
    work = Workload(2, max_tokens=40, warmup=2, seed=3)
    for each in (work, Workload(2, max_tokens=16, requests=3, context_tokens=2, forced=True)):
        for repetition in (0, 1):
            asked = list(requests_of(each, repetition))
            found[f"{each.name}, repetition {repetition}"] = [f"{r.max_tokens} {r.extra} {r.prompt!r}" for r in asked]
    compare("load_streams", found)


LINES = {
    "plain": "one\ntwo",
    "empty": "",
    "null": "null",
    "number in a line": '"a"\n7',
    "broken line": '{"text": "a"}\n{oops',
    "unknown keys": '{"a": 1}\n{"text": "b"}',
    "known inside": '{"x": {"text": "b"}}',
    "sse": ':\n: note\nevent: x\nid: 3\n\ndata: {"text": "a"}\ndata:[DONE]\n{"content": "b"}',
    "choices": '{"choices": [{"delta": {"content": "a"}}, 7, {"message": {"content": "b", "reasoning": "r"}}]}',
    "inner": '{"data": {"text": "a"}, "usage": 1}\n{"event": {"output": "b"}}\n{"response": {"token": "c"}}',
    "first key": '{"text": 7, "token": "t", "content": "c"}\n{"thinking": "th"}',
    "times": '{"text": "a", "t": 1}\n{"text": "b", "time": 1.5}\n{"text": "", "t": 9}\n{"text": "c", "t": 3.5}',
    "no time": '{"text": "a", "t": true}\n{"text": "b", "t": "x"}',
    "same time": '{"text": "a", "t": 1}\n{"text": "b", "t": 1}',
    "count": '{"text": "a", "t": 0, "n_tokens": 8}\n{"text": "b", "t": 2, "finish_reason": "x"}\n{"text": "c", "t": 4}',
    "rate": '{"tps": 3, "output_tokens": 5}\n{"tok_s": 4.5, "output_tokens": null}\n{"text": ""}',
    "rate with text": '{"tps": 3, "text": "a"}',
    "rate with thought": '{"tps": 3, "thinking": "a"}',
    "statistics": '{"tps": 3, "content_tokens": 0}',
    "statistics of content": '{"tps": 3, "content_tokens_est": 9}',
    "statistics, then text": '{"tps": 3, "content_tokens": 0}\n{"text": "a"}',
    "no content": '{"text": "", "content_tokens": 0}',
    "nested": '{"text": "a", "usage": {"completion_tokens": 4, "deep": [{"tps": 2}, {"tps": 9}]}, "tps": 5}',
    "outer first": '{"usage": {"t": 9}, "t": 1, "text": "a", "other": {"t": 7}}',
    "strings": '"a"\n"b"\n""',
    "thought": '{"reasoning": "r"}',
    "thought and text": '{"reasoning": "r"}\n{"content": "c"}',
    "chunks": "\n".join(['{"content": "!"}', '{"content": "?"}'] * 3 + ['{"content": "ab"}'] * 40),
    "loop in a thought": json.dumps({"thinking": "Wait, no. " * 90}) + '\n{"text": "7"}',
}


def test_each_recording_is_read_and_judged_as_stored() -> None:
    found = {}
    for name, text in LINES.items():
        recording = parse_recording(text)
        kept = {key: value for key, value in asdict(recording).items() if value != asdict(Recording())[key]}
        shown = {key: value if len(str(value)) < 90 else len(value) for key, value in kept.items()}
        found[name] = [
            f"{shown} {recording.tokens_per_second}",
            *(g.detail[:70].partition(" compress")[0] for g in judge_recording(recording)),
        ]
    compare("load_recordings", found)


def recorded(text: str = "", rate: float | None = 2.0, tokens: int | None = 9, finish: str = "length") -> Recording:
    return Recording(content=text, rate=rate, tokens=tokens, finish_reason=finish, structured=True)


LONG = "This is a text of exactly forty letters!"


@pytest.mark.parametrize(
    ("cell", "kinds"),
    [
        ([recorded(LONG)], []),
        ([recorded(LONG), recorded(LONG)], ["identical_output", "all_length"]),
        ([recorded(LONG), recorded(LONG, finish="stop")], ["identical_output"]),
        ([recorded(LONG[1:]), recorded(LONG[1:])], []),
        ([recorded(LONG), recorded("b")], []),
        ([recorded("a"), recorded("a"), recorded("a")], ["identical_statistics", "all_length"]),
        ([recorded("a"), recorded("a")], []),
        ([recorded("a"), recorded("b"), recorded("c")], []),
        ([recorded("a"), recorded("b"), recorded("")], ["identical_statistics", "all_length"]),
        ([recorded("a"), recorded("b"), recorded("c", finish="stop")], ["identical_statistics"]),
        ([recorded("a"), recorded("a"), recorded("a", rate=None)], []),
        ([recorded("a"), recorded("a"), recorded("a", rate=2.004)], ["identical_statistics", "all_length"]),
        ([recorded("a"), recorded("a"), recorded("a", rate=2.01)], []),
        ([recorded("a"), recorded("a"), recorded("a", tokens=8)], []),
    ],
)
def test_requests_of_a_cell_are_compared(cell: list[Recording], kinds: list[str]) -> None:
    assert [found.kind for found in judge_cell(cell)] == kinds


def answered(index: int, content: str = "", **more: Any) -> RequestRecord:
    times = [1.0 + index / 7, 2.0 + index / 5, 3.0 + index]
    fields = {"chunk_times": times, "output_tokens": 5, "finish_reason": "stop"} | more
    return RequestRecord(index=index, sent=0.5 * index, content=content, **fields)


GRAPHS: list[dict[str, Any]] = [
    {"eager_passes": 2},
    {"eager_passes": 0},
    {"eager_passes": 0, "graphs_expected": True, "is_cuda_graph": 0},
    {"eager_passes": 2, "graphs_expected": False},
    {"graphs_expected": True, "is_cuda_graph": 0},
    {"graphs_expected": True, "is_cuda_graph": 1},
    {"graphs_expected": True},
    {"is_cuda_graph": 0},
    {"graphs_expected": False, "is_cuda_graph": 0},
]
PINNED = {"accept_length": 3.98, "longest_step": 4, "tokens": 2000, "requests": 5, "accept_length_source": "counters"}


def test_the_signs_of_requests_and_server_are_stored() -> None:
    found = {str(server): [str(asdict(g)) for g in signs_of_garbage([], server)] for server in GRAPHS}
    requests = {
        "garbage": [answered(1, "fine", garbage=asdict(Garbage("loop", 3, "x"))), answered(2, prose(3))],
        "errors": [answered(1, "", error_class="server"), answered(2, prose(3, 2))],
        "nothing": [answered(1), answered(2, prose(3, 2))],
        "blank": [
            answered(1, "  ", reasoning="hm", finish_reason="stop"),
            answered(2, " ", reasoning=prose(3), finish_reason="length"),
        ],
        "blank thought": [answered(1, "", reasoning=" ", finish_reason="budget")],
        "two loops": [answered(1, "!" * 90 + " retire" * 90), answered(2, "We need to see. " * 60)],
        "same text": [answered(n, prose(5)) for n in (1, 2, 3)],
    }
    found |= {name: [str(asdict(g)) for g in signs_of_garbage(each, {})] for name, each in requests.items()}
    for more in (
        {},
        {"tokens": 1990},
        {"tokens": 1989},
        {"accept_length_source": "gauge"},
        {"accept_length": 3.97},
        {"longest_step": 2},
        {"longest_step": 1},
        {"requests": None, "tokens": 398},
        {"tokens": None},
        {"accept_length": 0},
    ):
        server: dict[str, Any] = PINNED | more
        found[f"share {more}"] = [str(accepted_share(server)), *(g.detail for g in signs_of_garbage([], server))]
    compare("load_signs", {name: rounded(lines) for name, lines in found.items()})


@pytest.mark.parametrize(
    ("records", "kinds", "status"),
    [
        ([answered(1)], [], "ok"),
        ([answered(1)], ["eager_regime"], "eager"),
        ([answered(1)], ["eager_regime", "loop"], "garbage"),
        ([answered(1), answered(2, error_class="infrastructure")], ["eager_regime"], "infrastructure"),
        ([answered(1), answered(2, error_class="infrastructure")], ["loop"], "garbage"),
        ([answered(1), answered(2, error_class="server")], ["eager_regime"], "failed"),
        (
            [answered(1), answered(2, error_class="server"), answered(3, error_class="infrastructure")],
            [],
            "infrastructure",
        ),
        ([answered(1, output_tokens=0)], [], "failed"),
        ([], [], "failed"),
        ([], ["eager_regime"], "failed"),
    ],
)
def test_the_worst_sign_is_the_status(records: list[RequestRecord], kinds: list[str], status: str) -> None:
    assert status_of(records, [Garbage(kind, 0, "x") for kind in kinds]) == status


def test_the_figures_of_requests_are_stored() -> None:
    records = [
        answered(1, "abc", prompt_tokens=100),
        answered(2, "a", prompt_tokens=300, output_tokens=9, finish_reason=None, counted_by="chunks"),
        answered(3, "b", error_class="server", error="x"),
        answered(4, "b", chunk_times=[4.0], output_tokens=1),
        answered(5, "b", chunk_times=[4.0], output_tokens=3),
        answered(6, "b", chunk_times=[4.0, 4.0], output_tokens=2, finish_reason="length"),
        answered(7, "b", chunk_times=[], output_tokens=2),
        answered(8, "b", garbage={"kind": "loop"}, output_tokens=2),
    ]
    found = {f"request {r.index}": [f"{r.ok} {r.prefill_tok_s}", *flat(r.as_dict(), "x")] for r in records}
    found["all"] = flat(summarise(records), "x")
    found |= {f"only {number}": flat(summarise(records[number : number + 1]), "x") for number in (2, 3, 6)}
    found["spread"] = [
        str(spread(values)) for values in ([], [3.0], [1.0, 2.0, 4.0], [float(n * n) for n in range(12)])
    ]
    paths = ({"a": {"b": 0}}, {"a": None}, {"a": {}}, {}, {"a": {"b": 2}})
    found["at"] = [str(figure_at(each, "a", "b")) for each in paths]
    pairs = (
        ([1, 2, 3], [1, 2]),
        ([1, 2], [7, 8, 9]),
        ([1, 2, 3], [1, 2, 3]),
        ([0, 1, 2], [4, 3, 5]),
        ([0, 1, 2], [2, 3, 4]),
        ([1, 1, 1], [1, 1, 1]),
    )
    found["apart"] = [str(distinguishable(*pair)) for pair in pairs]
    compare("load_figures", {name: rounded(lines) for name, lines in found.items()})


@pytest.mark.parametrize(
    ("info", "expected", "longest"),
    [
        ({}, True, None),
        ({"disable_cuda_graph": True}, False, None),
        ({"disable_decode_cuda_graph": True}, False, None),
        ({"cuda_graph_backend_decode": "disabled"}, False, None),
        ({"cuda_graph_backend_decode": "full", "device": "cuda"}, True, None),
        ({"device": "cpu"}, False, None),
        ({"speculative_num_draft_tokens": 5}, True, 5),
        ({"speculative_num_draft_tokens": 5, "speculative_eagle_topk": 2}, True, 5),
        ({"speculative_num_draft_tokens": 5, "speculative_num_steps": 2, "speculative_eagle_topk": 2}, True, 3),
        ({"speculative_num_draft_tokens": 5, "speculative_num_steps": 2}, True, 5),
        ({"speculative_num_draft_tokens": 2, "speculative_num_steps": 3, "speculative_eagle_topk": 2}, True, 2),
        ({"speculative_num_steps": 3, "speculative_eagle_topk": 2}, True, None),
    ],
)
def test_what_a_server_says_of_graphs_and_drafts(info: dict[str, Any], expected: bool, longest: int | None) -> None:
    assert (graphs_expected(info), longest_step(info)) == (expected, longest)


def test_secrets_and_unset_values_are_left_out_at_every_place() -> None:
    info = {"a": [{"token": "x", "n": 1}, {"n": 2, "SECRET_x": "y"}], "keys": 3, "key": 1.5, "internal_states": [1]}
    info |= {
        "c": "--x-secret=1 --my-token 2 --token-count 3",
        "off": False,
        "zero": 0,
        "password": ["x"],
        "key_none": None,
    }
    shown = {"a": [{"n": 1}, {"n": 2}], "keys": 3, "key": 1.5, "off": False, "zero": 0}
    assert cleaned(info) == shown | {"c": "--x-secret=… --my-token … --token-count 3"}


def test_a_server_is_asked_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, str] = {}

    async def fetched(_target: Target, path: str) -> str:
        if path not in answers:
            raise OSError(path)
        return answers[path]

    monkeypatch.setattr(client, "fetch", fetched)
    target = Target("http://x", "m")
    assert asyncio.run(server_info(target)) == {}
    answers["/get_server_info"] = '{"a": 1, "b": null}'
    assert asyncio.run(server_info(target)) == {"a": 1}
    for odd in ("[1]", "no JSON"):
        answers["/server_info"] = odd
        assert asyncio.run(server_info(target)) == {"a": 1}
    answers["/server_info"] = '{"c": 2}'
    assert asyncio.run(server_info(target)) == {"c": 2}
    for none in ('{"data": []}', "{}"):
        answers["/v1/models"] = none
        with pytest.raises(ValueError, match="http://x/v1/models lists no model"):
            asyncio.run(served_model(target))
    answers["/v1/models"] = '{"data": [{"id": 7}, {"id": "second"}]}'
    assert asyncio.run(served_model(target)) == "7"
