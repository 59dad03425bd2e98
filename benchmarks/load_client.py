#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the error of the load client and of SGLang's own benchmark client against a server with a known schedule.

Each client runs in a separate process against the same server, which records when it sent every token. The table shows
the mean errors of the time to the first token and of the time between tokens, and the client's CPU time per 1,000
tokens. SGLang's client is read from its unmodified wheel: run ``pip download --no-deps sglang==0.5.10``, then pass the
file with ``--wheel``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import Request, Target, run_level

CLIENTS = ("gb10", "sglang")


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def ours(port: int, streams: int, tokens: int) -> dict[str, Any]:
    """Run this collection's client with its live guard, as in the measurement of cells."""
    requests = [Request(f"request {i}", tokens) for i in range(streams)]
    before = cpu_s()
    records = await run_level(Target(f"http://127.0.0.1:{port}", "m"), requests, streams)
    used = cpu_s() - before
    assert all(r.ok for r in records), [r for r in records if not r.ok][:1]
    times = {f"request {r.index}": [r.sent, *r.chunk_times] for r in records}
    return {"cpu_s": used, "times": times}


def _stub(name: str, **values: Any) -> None:
    """Replace a package that the client imports but does not need for measuring."""
    module = types.ModuleType(name)
    for key, value in values.items():
        setattr(module, key, value)
    module.__path__ = []
    sys.modules[name] = module


def sglang_client(wheel: Path) -> Any:
    """Return SGLang's bench_serving from its wheel, without the tokenizers and data sets that it loads."""

    def nothing(*_unused: Any, **_unused_too: Any) -> None:
        return None

    def remove_prefix(text: str, prefix: str) -> str:
        return text.removeprefix(prefix)

    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.benchmark"):
        _stub(name)
    _stub("transformers", AutoTokenizer=object, PreTrainedTokenizerBase=object)
    _stub("sglang.benchmark.datasets", DatasetRow=object, get_dataset=nothing)
    _stub("sglang.benchmark.datasets.mooncake", get_mooncake_request_over_time=nothing)
    _stub(
        "sglang.benchmark.utils",
        get_tokenizer=nothing,
        parse_custom_headers=nothing,
        remove_prefix=remove_prefix,
        set_ulimit=nothing,
    )
    _stub("sglang.srt.utils.network", NetworkAddress=object)
    for name in ("numpy", "requests", "tqdm"):
        if importlib.util.find_spec(name) is None:
            _stub(name, tqdm=object, ndarray=object)
            _stub(f"{name}.asyncio", tqdm=object)
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        source = archive.extract("sglang/bench_serving.py", scratch)
        spec = importlib.util.spec_from_file_location("sglang.bench_serving", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


async def theirs(port: int, streams: int, tokens: int, wheel: Path) -> dict[str, Any]:
    """Run SGLang's chat client as its own benchmark() does, one task per request."""
    module = sglang_client(wheel)
    module.args = argparse.Namespace(disable_stream=False, disable_ignore_eos=False, header=None, print_requests=False)
    inputs = [
        module.RequestFuncInput(
            prompt=f"request {i}",
            api_url=f"http://127.0.0.1:{port}/v1/chat/completions",
            prompt_len=5,
            output_len=tokens,
            model="m",
            lora_name="",
            image_data=None,
            extra_request_body={},
        )
        for i in range(streams)
    ]
    before = cpu_s()
    outputs = await asyncio.gather(*(module.async_request_openai_chat_completions(one) for one in inputs))
    used = cpu_s() - before
    assert all(o.success for o in outputs), [o.error for o in outputs if not o.success][:1]
    times = {}
    for i, output in enumerate(outputs):
        moments = [output.start_time, output.start_time + output.ttft]
        for gap in output.itl:
            moments.append(moments[-1] + gap)
        times[f"request {i}"] = moments
    return {"cpu_s": used, "times": times}


def errors(seen: dict[str, list[float]], log: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Return the mean errors of TTFT and ITL in milliseconds, and the 99th percentile of the ITL error."""
    ttft, itl = [], []
    for entry in log:
        sent, *moments = seen[entry["prompt"]]
        ttft.append(abs((moments[0] - sent) - (entry["sent"][0] - entry["arrived"])))
        # A client that read several tokens at once has fewer times; the missing gaps count as zero.
        gaps = [b - a for a, b in pairwise(moments)]
        real = [b - a for a, b in pairwise(entry["sent"])]
        gaps += [0.0] * (len(real) - len(gaps))
        itl += [abs(a - b) for a, b in zip(gaps, real, strict=False)]
    itl.sort()
    return 1000 * statistics.fmean(ttft), 1000 * statistics.fmean(itl), 1000 * itl[int(len(itl) * 0.99)]


def one_run(client: str, port: int, streams: int, tokens: int, wheel: str) -> tuple[float, float, float, float]:
    """Run one client in a separate process; return its errors in ms and its CPU milliseconds per 1,000 tokens."""
    command = [sys.executable, __file__, "--client", client, "--port", str(port), "--streams", str(streams)]
    done = subprocess.run(
        [*command, "--tokens", str(tokens), "--wheel", wheel], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"client {client} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=60) as answer:
        log = json.load(answer)
    return (*errors(result["times"], log), 1e6 * result["cpu_s"] / (streams * tokens))


def main() -> int:
    """Run all levels with all clients and print a table; exit 1 if an error of our client exceeds half of SGLang's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", default="", help="SGLang's wheel; without it only our client runs")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with contextlib.suppress(OSError):
        # Reduces the influence of other load on the machine; server and clients inherit the priority.
        os.nice(-15)
    if options.client:
        work = (
            ours(options.port, options.streams, options.tokens)
            if options.client == "gb10"
            else theirs(options.port, options.streams, options.tokens, Path(options.wheel))
        )
        json.dump(asyncio.run(work), sys.stdout)
        return 0
    clients = CLIENTS if options.wheel else CLIENTS[:1]
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("_schedule_server.py")), "--tokens", str(options.tokens)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        time.sleep(0.2)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.tokens} tokens 50 ms apart per stream,")
        print(f"median of {options.repeat} runs")
        print("streams  client  TTFT error ms  ITL error ms  ITL p99 ms  CPU ms/1,000 tokens")
        good = True
        for streams in options.levels:
            runs: dict[str, list[tuple[float, ...]]] = {c: [] for c in clients}
            for _unused in range(options.repeat):
                for client in clients:
                    runs[client].append(one_run(client, port, streams, options.tokens, options.wheel))
            shown = {c: [statistics.median(column) for column in zip(*runs[c], strict=True)] for c in clients}
            for client in clients:
                a, b, c, d = shown[client]
                print(f"{streams:7}  {client:6}  {a:13.3f}  {b:12.3f}  {c:10.3f}  {d:19.1f}")
            if len(clients) == 2:
                good &= all(shown["gb10"][i] <= 0.5 * shown["sglang"][i] for i in (0, 1))
    finally:
        server.kill()
        server.wait()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
