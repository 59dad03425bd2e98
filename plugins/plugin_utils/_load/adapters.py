# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a cell with another benchmark client, and convert its figures to the collection's format.

This allows comparisons with leaderboards. Options and result files are those of sglang.bench_serving 0.5.10
and llama-benchy 0.4.0. Only sglang.bench_serving records the server's answers, so only its cells are checked for broken
output.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import system

from .cell import summary_of
from .client import Target
from .judge import signs_of_garbage, status_of
from .stats import RequestRecord, Workload, summarise

PROGRAMS = {"sglang": "python3", "llama-benchy": "llama-benchy"}
RESULT = {"sglang": "sglang.jsonl", "llama-benchy": "benchy.json"}


def command(client: str, target: Target, workload: Workload, out: Path) -> list[str]:
    """Return the command line that measures the workload once per repetition and writes its result below ``out``."""
    requests, inputs = workload.requests or workload.concurrency, max(workload.context_tokens, 32)
    if client == "sglang":
        words = ["python3", "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", target.url]
        words += ["--model", target.model, "--dataset-name", "random", "--random-input-len", str(inputs)]
        words += ["--random-output-len", str(workload.max_tokens), "--random-range-ratio", "1.0"]
        words += ["--num-prompts", str(requests), "--max-concurrency", str(workload.concurrency)]
        words += ["--seed", str(workload.seed), "--warmup-requests", str(workload.warmup)]
        words += ["--output-file", str(out / RESULT[client]), "--output-details"]
        return words if workload.forced else [*words, "--disable-ignore-eos"]
    words = ["llama-benchy", "--base-url", f"{target.url}/v1", "--model", target.model, "--pp", "512"]
    words += ["--tg", str(workload.max_tokens), "--depth", str(workload.context_tokens)]
    words += ["--runs", str(workload.repetitions), "--concurrency", str(workload.concurrency)]
    # SGLang 0.5.18 and later refuse this option of llama-benchy together with streaming.
    words += ["--extra-body", "return_token_ids=false", "--format", "json"]
    words += ["--save-result", str(out / RESULT[client])]
    return [*words, "--exact-tg"] if workload.forced else words


def _has_sglang() -> bool:
    """Return whether the Python that runs the client has SGLang; a directory named sglang does not count."""
    look = "import importlib.util as u, sys; s = u.find_spec('sglang'); sys.exit(not (s and s.origin))"
    return system.run([PROGRAMS["sglang"], "-c", look], check=False).returncode == 0


def missing(client: str) -> str:
    """Return what to install if the client is missing, or an empty string."""
    if client not in PROGRAMS:
        return f"client = {client!r}: there are gb10, {', '.join(PROGRAMS)}."
    if shutil.which(PROGRAMS[client]) is None or (client == "sglang" and not _has_sglang()):
        return f"{client} is not installed on the controller. Install it with: pip install {client}"
    return ""


def _from_sglang(text: str, workload: Workload) -> list[dict[str, Any]]:
    """Return one run per line: each line is one repetition, with the times and the text of every request."""
    runs = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = json.loads(line)
        records = []
        for i, tokens in enumerate(entry["output_lens"]):
            record = RequestRecord(i, 0.0, output_tokens=tokens, prompt_tokens=entry["input_lens"][i])
            record.counted_by = "client"
            record.content, record.error = entry["generated_texts"][i], entry["errors"][i]
            record.error_class = "server" if record.error else ""
            record.finish_reason = "length" if tokens >= workload.max_tokens else "stop"
            moment = entry["ttfts"][i]
            record.chunk_times.append(moment)
            for gap in entry["itls"][i]:
                moment += gap
                record.chunk_times.append(moment)
            records.append(record)
        garbage = signs_of_garbage(records, {})
        figures = summarise(records) | {"wall_s": entry["duration"], "wall_tok_s": entry["output_throughput"]}
        runs.append(
            {
                "repetition": number,
                "status": status_of(records, garbage),
                "garbage": [asdict(g) for g in garbage],
                "figures": figures,
                "server": {"accept_length": entry.get("accept_length")},
                "requests": [r.as_dict() for r in records],
            }
        )
    return runs


def _run(peak: float | None, wall: float | None, ttft: float | None, itl: float | None, ok: bool) -> dict[str, Any]:
    figures = {"peak_tok_s": peak, "wall_tok_s": wall, "ttft_s": {"p50": ttft}, "itl_s": {"p50": itl}}
    status = "ok" if ok and peak else "failed"
    return {"repetition": 1, "status": status, "garbage": [], "figures": figures, "server": {}, "requests": []}


def _from_benchy(text: str, workload: Workload) -> list[dict[str, Any]]:
    """Return one run, because llama-benchy reports only mean and deviation over its runs; times are milliseconds."""
    for entry in json.loads(text)["benchmarks"]:
        if entry["concurrency"] == workload.concurrency and not entry.get("is_context_prefill_phase"):
            each, total = (_mean(entry.get(k)) for k in ("tg_req_throughput", "tg_throughput"))
            ttft = _mean(entry.get("e2e_ttft"))
            peak = each * workload.concurrency if each else None
            return [_run(peak, total, ttft / 1000 if ttft else None, 1 / each if each else None, True)]
    return []


def _mean(metric: Mapping[str, Any] | None) -> float | None:
    return None if metric is None else float(metric["mean"])


def cell_of(client: str, text: str, workload: Workload) -> dict[str, Any]:
    """Return the record of the cell from the client's result file. Raises ValueError or KeyError for another format."""
    read = {"sglang": _from_sglang, "llama-benchy": _from_benchy}[client]
    runs = read(text, workload)
    about = {"workload": asdict(workload) | {"name": workload.name}, "client": client, "judged": client == "sglang"}
    return about | summary_of(runs) | {"runs": runs}


def result_of(client: str, out: Path) -> str:
    """Return the text of the client's result file. Raises OSError."""
    file = out / RESULT[client]
    if not file.exists():
        raise FileNotFoundError(f"{client} wrote no {RESULT[client]}")
    return file.read_text(encoding="utf-8")
