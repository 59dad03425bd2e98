# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import (
    RequestRecord,
    distinguishable,
    spread,
    summarise,
)


def record(index: int, tokens: int = 101, first: float = 0.5, step: float = 0.02, **more: object) -> RequestRecord:
    times = [first + step * i for i in range(tokens)]
    return RequestRecord(index=index, sent=0.0, chunk_times=times, output_tokens=tokens, finish_reason="stop", **more)  # type: ignore[arg-type]


def test_a_request_counts_tokens_not_chunks() -> None:
    two_a_chunk = RequestRecord(index=0, sent=1.0, chunk_times=[1.5, 1.6, 1.7], output_tokens=6)
    assert two_a_chunk.ttft == pytest.approx(0.5)
    assert two_a_chunk.itl == pytest.approx(0.04)
    assert two_a_chunk.tok_s == pytest.approx(25.0)


def test_both_rates_are_kept_under_their_own_names() -> None:
    figures = summarise([record(i) for i in range(4)])
    assert figures["peak_tok_s"] == pytest.approx(200.0)
    assert figures["wall_tok_s"] == pytest.approx(404 / 2.5)
    assert figures["ok"] == 4
    assert figures["finish_reasons"] == {"stop": 4}


def test_the_rate_of_the_prompts_is_that_of_all_requests() -> None:
    figures = summarise([record(0, prompt_tokens=100), record(1, first=1.0, prompt_tokens=300), record(2)])
    assert (figures["prefill_tok_s"]["min"], figures["prefill_tok_s"]["max"]) == (200.0, 300.0)


def test_failures_are_named_and_count_nowhere_else() -> None:
    bad = [
        record(1, error_class="infrastructure", error="refused"),
        record(2, garbage={"kind": "single_token"}),
        RequestRecord(index=3, sent=0.0),
    ]
    figures = summarise([record(0), *bad])
    assert figures["failures"] == {"infrastructure": 1, "garbage": 1, "no_tokens": 1}
    assert figures["output_tokens"] == 101
    assert figures["peak_tok_s"] == pytest.approx(50.0)


def test_a_cell_without_a_success_has_no_rate() -> None:
    figures = summarise([RequestRecord(index=0, sent=0.0, error_class="server")])
    assert figures["peak_tok_s"] is None
    assert figures["wall_tok_s"] is None


def test_percentiles_and_spread() -> None:
    assert spread([])["p50"] is None
    assert spread([7.0])["p99"] == 7.0
    assert spread([1.0, 2.0, 3.0, 4.0])["p50"] == 2.5
    assert spread([float(i) for i in range(11)])["p90"] == 9.0
    assert spread([2.0])["stdev"] is None
    assert spread([1.0, 3.0])["mean"] == 2.0


def test_noise_makes_no_winner() -> None:
    assert distinguishable([152.7, 175.1, 160.2], [158.0, 149.9, 171.0]) is False
    assert distinguishable([54.0, 53.8, 54.2], [31.6, 31.7, 31.8]) is True
    assert distinguishable([1.0, 2.0], [9.0, 9.1, 9.2]) is None
    assert (distinguishable([2.0] * 3, [3.0] * 3), distinguishable([2.0] * 3, [2.0] * 3)) == (True, False)
