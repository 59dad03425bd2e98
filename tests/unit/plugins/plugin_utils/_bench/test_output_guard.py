# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that broken output is found early, and that healthy output passes, also output that looks unusual."""

import base64
import random
import string

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.guard import StreamGuard, judge_text, periodic_runs
from output_corpus import GARBAGE, HEALTHY, INTRO, prose


def test_the_corpus_is_as_large_as_it_claims() -> None:
    assert (len(GARBAGE), len(HEALTHY)) == (136, 227)


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_caught(name: str) -> None:
    findings = judge_text(GARBAGE[name])
    assert findings
    assert all(0 <= f.at <= len(GARBAGE[name]) and f.detail for f in findings)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_output_passes_as_text_and_as_a_stream(name: str) -> None:
    assert judge_text(HEALTHY[name]) == []
    assert [stream(HEALTHY[name], size).finding for size in (1, 4)] == [None, None]


def test_the_offset_tells_where_the_loop_begins() -> None:
    found = judge_text(INTRO + "We need to consider the network. " * 30)[0]
    assert found.kind == "suffix_loop"
    assert abs(found.at - len(INTRO)) <= 2


@pytest.mark.parametrize(("times", "kinds"), [(9, []), (10, ["loop"])])
def test_a_response_of_a_litany_may_come_nine_times(times: int, kinds: list[str]) -> None:
    text = f"{prose(20)} {'Pray for us, o holy mother. ' * times}{prose(20, 2)}"
    assert [found.kind for found in judge_text(text)] == kinds


def test_a_run_is_reported_with_its_smallest_period() -> None:
    runs = list(periodic_runs("xyz" + "abcd" * 10 + "!?"))
    assert [(r.period, r.start, r.length) for r in runs] == [(4, 3, 40)]


def stream(text: str, size: int = 4) -> StreamGuard:
    guard = StreamGuard()
    for i in range(0, len(text), size):
        guard.feed(text[i : i + size])
    return guard


@pytest.mark.parametrize("name", ["bang", "bang-after-warm-up", "one-word", "sentence", "unk-tokens", "chinese-loop"])
def test_a_live_stream_is_stopped_early(name: str) -> None:
    assert stream(GARBAGE[name]).finding is not None


def test_exclamation_marks_are_caught_within_the_first_chunks() -> None:
    guard = StreamGuard()
    seen = next(i for i in range(100) if guard.feed("!"))
    assert seen < 32


def test_a_live_guard_remembers_its_finding() -> None:
    guard = stream("!" * 200)
    found = guard.feed(prose(2))
    assert found is guard.finding is not None
    assert found and found.at == 0


@pytest.mark.parametrize("length", [12, 20, 32])
def test_passwords_and_encoded_bytes_are_healthy(length: int) -> None:
    source = random.Random(length)
    data = source.randbytes(3000)
    passwords = "\n".join("".join(source.choices(string.ascii_lowercase + string.digits, k=length)) for _n in range(80))
    protein = "\n".join("".join(source.choices("ACDEFGHIKLMNPQRSTVWY", k=60)) for _n in range(40))
    encoded = [base64.encodebytes(data), base64.b32encode(data), data.hex().encode(), data.hex().upper().encode()]
    for text in (passwords, protein, *(entry.decode() for entry in encoded)):
        assert judge_text(text) == []
