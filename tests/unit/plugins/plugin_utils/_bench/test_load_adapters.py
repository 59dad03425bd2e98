# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.cell import (
    RESULT,
    cell_of,
    command,
    missing,
    result_of,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import Target
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import Workload
from output_corpus import prose

TARGET = Target("http://127.0.0.1:30000", "m")
WORKLOAD = Workload(concurrency=4, max_tokens=100, context_tokens=512, forced=True)


def sglang(texts: list[str]) -> str:
    """Return a line as sglang.bench_serving 0.5.10 appends it with --output-details."""
    count = len(texts)
    entry: dict[str, Any] = {
        "duration": 6.0,
        "output_throughput": 66.7,
        "accept_length": 2.5,
        "input_lens": [512] * count,
        "output_lens": [100] * count,
        "ttfts": [0.5 + i / 100 for i in range(count)],
        "itls": [[0.05 + i / 10000] * 99 for i in range(count)],
        "generated_texts": texts,
        "errors": [""] * count,
    }
    return json.dumps(entry) + "\n"


def test_sglangs_requests_become_a_cell_and_are_judged() -> None:
    cell = cell_of("sglang", sglang([prose(9, i) for i in range(4)]), WORKLOAD)
    assert (cell["status"], cell["judged"], cell["client"]) == ("ok", True, "sglang")
    assert cell["peak_tok_s"]["mean"] == pytest.approx(4 / 0.05, rel=0.01)
    assert cell["wall_tok_s"]["mean"] == 66.7
    assert cell["ttft_s"]["mean"] == pytest.approx(0.515)
    collapsed = cell_of("sglang", sglang(["!" * 100] * 4), WORKLOAD)
    assert collapsed["status"] == "garbage"
    assert collapsed["peak_tok_s"]["n"] == 0


def test_benchys_means_become_a_cell_without_judged_output() -> None:
    metric = {"mean": 20.0, "std": 0.1}
    run = {"concurrency": 4, "context_size": 512, "tg_req_throughput": metric, "is_context_prefill_phase": False}
    run |= {"tg_throughput": {"mean": 76.0, "std": 1.0}, "e2e_ttft": {"mean": 480.0, "std": 3.0}}
    cell = cell_of("llama-benchy", json.dumps({"version": "0.4.0", "benchmarks": [run]}), WORKLOAD)
    assert (cell["status"], cell["judged"]) == ("ok", False)
    assert (cell["peak_tok_s"]["mean"], cell["wall_tok_s"]["mean"], cell["ttft_s"]["mean"]) == (80.0, 76.0, 0.48)
    assert cell_of("llama-benchy", json.dumps({"benchmarks": []}), WORKLOAD)["status"] == "failed"


@pytest.mark.parametrize("client", RESULT)
def test_a_command_names_server_load_and_result(client: str, tmp_path: Path) -> None:
    words = command(client, TARGET, WORKLOAD, tmp_path)
    text = " ".join(words)
    assert TARGET.url in text
    assert str(tmp_path) in text
    assert "4" in words
    assert "100" in words
    with pytest.raises(FileNotFoundError, match=client):
        result_of(client, tmp_path)
    (tmp_path / RESULT[client]).write_text("{}")
    assert result_of(client, tmp_path) == "{}"


def test_a_client_that_is_not_installed_is_named() -> None:
    assert "pip install llama-benchy" in missing("llama-benchy")
    assert "there are gb10" in missing("wrk")


def test_sglangs_client_is_there_when_its_module_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sglang").mkdir()
    assert "pip install sglang" in missing("sglang")
    (tmp_path / "sglang/__init__.py").touch()
    assert missing("sglang") == ""
