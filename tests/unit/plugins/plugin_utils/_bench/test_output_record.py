# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.judge import (
    judge_cell,
    judge_recording,
    parse_recording,
)
from output_corpus import HEALTHY, prose

SCRIPT = Path(__file__).resolve().parents[5] / "scripts" / "output_guard.py"


def openai(
    chunks: list[str], key: str = "content", finish: str = "stop", start: float = 0.0, step: float = 0.02
) -> str:
    lines = [
        json.dumps({"t": start + step * i, "choices": [{"index": 0, "delta": {key: c}, "finish_reason": None}]})
        for i, c in enumerate(chunks)
    ]
    lines.append(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    return "\n".join(lines) + "\n"


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


DIALECTS: dict[str, Any] = {
    "openai": openai,
    "sse": lambda c: (
        ":\n: alive\n\n"
        + "".join(f"event: message\nid: 7\ndata: {line}\n\n" for line in openai(c).splitlines())
        + "data: [DONE]\n\n"
    ),
    "flat": lambda c: "\n".join(json.dumps({"t": i / 50, "text": t}) for i, t in enumerate(c)),
    "strings": lambda c: "\n".join(json.dumps(t) for t in c),
    "delta": lambda c: "\n".join(json.dumps({"delta": t, "elapsed": i / 50}) for i, t in enumerate(c)),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_text_back(dialect: str) -> None:
    text = prose(20)
    recording = parse_recording(DIALECTS[dialect](pieces(text)))
    assert recording.structured
    assert recording.content == text
    assert judge_recording(recording) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_shows_a_collapse(dialect: str) -> None:
    assert judge_recording(parse_recording(DIALECTS[dialect](["!"] * 64)))


def test_plain_text_and_a_json_answer_are_plain_outputs() -> None:
    assert parse_recording("It is so.\nReally.").content == "It is so.\nReally."
    assert judge_recording(parse_recording(HEALTHY["json"])) == []
    assert judge_recording(parse_recording('{"city": "Paris", "country": "France"}')) == []
    assert judge_recording(parse_recording("42")) == []


def test_reasoning_without_an_answer_is_no_content() -> None:
    kinds = [f.kind for f in judge_recording(parse_recording(openai(pieces(prose(20)), "reasoning_content", "length")))]
    assert kinds == ["no_content"]


def test_a_loop_within_the_reasoning_is_seen() -> None:
    text = openai(["Wait, no. "] * 90, "reasoning_content") + openai(pieces("The answer is 7."))
    assert "suffix_loop" in [f.kind for f in judge_recording(parse_recording(text))]


def test_identical_statistics_reveal_a_collapsed_cell() -> None:
    record = {"tokens_per_sec": 18.21, "output_tokens": 3072, "content_tokens_est": None, "finish_reason": "length"}
    cell = [parse_recording(json.dumps(record)) for _unused in range(8)]
    assert [f.kind for f in judge_cell(cell)] == ["identical_statistics", "all_length"]
    assert [f.kind for f in judge_recording(cell[0])] == ["no_content"]


def test_a_healthy_cell_passes_even_when_every_request_is_cut() -> None:
    cell = [parse_recording(openai(pieces(prose(20 + i, i)), finish="length", step=0.02 + i / 1000)) for i in range(8)]
    assert judge_cell(cell) == []


def test_one_text_for_all_prompts_is_garbage() -> None:
    cell = [parse_recording(openai(pieces(prose(9)), step=0.02 + i / 1000)) for i in range(4)]
    assert [f.kind for f in judge_cell(cell)] == ["identical_output"]


def test_most_requests_with_one_text_are_garbage() -> None:
    cell = [parse_recording(openai(pieces(prose(9, i)), step=0.02 + i / 1000)) for i in (1, 1, 1, 1, 1, 6, 7, 8)]
    assert [(f.kind, f.detail) for f in judge_cell(cell)] == [
        ("identical_output", "5 of 8 requests gave the same text")
    ]
    assert judge_cell(cell[1:]) != []
    assert judge_cell(cell[2:]) == []


@pytest.mark.parametrize(
    ("finish", "texts", "kinds"),
    [
        ("length", (1, 2, 3, 4), []),
        ("stop", (1, 2, 3, 4), ["identical_statistics"]),
        ("length", (1, 1, 1, 1), ["identical_statistics", "identical_output", "all_length"]),
        ("length", (1, 1, 1, 2), ["identical_output", "all_length"]),
    ],
)
def test_streams_that_their_limit_cuts_in_step_are_judged_by_their_texts(
    finish: str, texts: tuple[int, ...], kinds: list[str]
) -> None:
    cell = [
        parse_recording(openai(pieces(prose(20, seed)[:400]), finish=finish, start=i / 10))
        for i, seed in enumerate(texts)
    ]
    assert [f.kind for f in judge_cell(cell)] == kinds


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_command_line_reports_every_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.jsonl"
    good.write_text(prose(5))
    bad.write_text(openai(["!"] * 80))
    done = run("--json", str(good), str(bad))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(e["file"], e["ok"]) for e in report] == [(str(good), True), (str(bad), False)]
    assert set(report[1]["findings"][0]) == {"kind", "at", "detail"}
    assert run(str(good)).returncode == 0
    assert run(str(good), str(bad)).stdout.splitlines()[-1] == "1 of 2 outputs are garbage"


def test_a_missing_file_is_named() -> None:
    done = run("/nowhere/at/all")
    assert done.returncode == 2
    assert "/nowhere/at/all" in done.stderr
