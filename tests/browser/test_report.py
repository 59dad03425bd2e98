# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the report in a real browser: its answers fit the first screen, it fetches nothing, and it can be printed."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import journal as sweep_journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import single_cell

COVERS = ("plugins/plugin_utils/_bench", "scripts/bench_report.py")

ROOT = Path(__file__).resolve().parents[2]
PROBE = """<script>
const seen = top.document.documentElement.dataset, root = document.documentElement;
seen.wide = root.clientWidth;
seen.over = root.scrollWidth - root.clientWidth;
seen.fetched = performance.getEntriesByType("resource").length;
const boxes = [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect()).filter(b => b.width);
seen.drawn = boxes.filter(b => b.width > 0.9 * root.clientWidth - 40).length;
seen.answered = Math.round(document.querySelector(".answers").getBoundingClientRect().bottom);
seen.first = Math.round(boxes[0].top);
</script></body>"""
# A window of Chromium is never narrower than 500 pixels; a frame is as narrow as a phone.
FRAME = """<!doctype html><html><head></head><body style="margin:0">
<iframe style="width:{width}px;height:2000px;border:0" srcdoc="{page}"></iframe></body></html>"""


def measurement(name: str, *rates: float) -> dict[str, Any]:
    runs = []
    for rate in rates:
        figures = {"peak_tok_s": rate, "wall_tok_s": 0.8 * rate, "ttft_s": {"p50": 0.512}, "itl_s": {"p50": 0.0251}}
        figures |= {"ok": 8, "failed": 0, "finish_reasons": {"stop": 7, "length": 1}}
        requests = [{"index": i, "tok_s": rate / 8 + i / 100} for i in range(8)]
        server = {"accept_length": 2.7, "accept_rate": 0.57, "running": 8.0, "token_usage": 0.31}
        runs.append({"status": "ok", "garbage": [], "figures": figures, "server": server, "requests": requests})
    return {"workload": {"name": name, "concurrency": 8, "max_tokens": 3072, "seed": 1}, "status": "ok", "runs": runs}


def environment(network: str, steps: int) -> dict[str, Any]:
    channels = {network: {str(device): 8 for device in range(4)}}
    ranks = [{"rank": i, "host": f"spark{i}", "verdict": network, "evidence": "channels"} for i in range(4)]
    proof = {"satisfied": True, "msg": f"4 of 4 ranks on NET/{network}, 8 channels a device, GDR off"}
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"]
    return {
        "image": f"docker.io/example/sglang:0.5.12@sha256:{'0123456789abcdef' * 4}",
        "nodes": [f"spark{i}" for i in range(4)],
        "networks": [f"gb10-rail{i}-vf0" for i in range(2)],
        "kernel_and_driver": ["6.17.0-1021-nvidia, NVRM version: NVIDIA UNIX Open Kernel Module for aarch64 580.142"],
        "inventory": ["inventories/production/hosts.yml"],
        "commit": "0123456789abcdef" * 2 + "01234567",
        "arguments": [*argv, "--speculative-num-steps", str(steps), "--json-model-override-args", "{" + "x" * 90 + "}"],
        "server": {"speculative_num_steps": steps, "cuda_graph_bs": list(range(1, 5 * steps))},
        "transport": proof | {"ranks": [rank | {"channels": channels} for rank in ranks]},
    }


def journal(path: Path) -> Path:
    labels = [{"depth": "3/4", "transport": "roce"}, {"depth": "5/6", "transport": "socket"}]
    cells = [{"id": str(i), "labels": one, "status": "run", "key": str(i)} for i, one in enumerate(labels)]
    sweep_journal.append(path, {"kind": "plan", "sweep": "nemotron", "profile": "nemotron", "cells": cells})
    for cell, network, steps, factor in ((0, "IB", 3, 1.0), (1, "Socket", 5, 0.7)):
        measured = [measurement(f"c{c}-n8", *(factor * r for r in (199.0, 200.0, 201.0))) for c in (0, 8192, 32768)]
        result = {"kind": "result", "cell": str(cell), "status": "ok", "measurements": measured}
        sweep_journal.append(path, result | {"environment": environment(network, steps)})
    return path


def single(path: Path) -> Path:
    plan = single_cell("nemotron", "throughput")
    sweep_journal.append(path, {"kind": "plan", "profile": "nemotron", **plan})
    measured = [measurement(f"c0-n{n}", *(n * r for r in (31.0, 32.0, 30.5))) for n in (1, 4, 8)]
    result = {"kind": "result", "cell": plan["cells"][0]["id"], "status": "ok", "measurements": measured}
    sweep_journal.append(path, result | {"environment": environment("IB", 3)})
    return path


@pytest.fixture(scope="module", params=["published", "journal", "single"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / f"{request.param}.html"
    sources = sorted((ROOT / "plugins/sweeps/published").glob("*.yml"))
    if request.param != "published":
        sources = [{"journal": journal, "single": single}[request.param](out.with_suffix(".jsonl"))]
    subprocess.run([sys.executable, ROOT / "scripts/bench_report.py", *sources, "--html", out], check=True)
    return out


def chromium(*arguments: str | Path) -> str:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "Chromium is not installed; on Debian: apt-get install --no-install-recommends chromium"
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize(("width", "height"), [(375, 812), (500, 812), (1200, 720)])
def test_the_answers_fit_the_first_screen_and_the_pictures_fill_the_page(page: Path, width: int, height: int) -> None:
    probed = page.with_name(f"probed-{width}.html")
    framed = html.escape(page.read_text().replace("</body>", PROBE))
    probed.write_text(FRAME.format(width=width, page=framed))
    seen = chromium("--window-size=1300,2000", "--dump-dom", probed.as_uri())
    found = dict(re.findall(r'data-(wide|over|fetched|drawn|answered|first)="(-?\d+)"', seen[: seen.index("<head")]))
    assert width - 20 <= int(found["wide"]) <= width
    assert int(found["over"]) <= 0
    assert int(found["fetched"]) == 0
    assert int(found["drawn"]) == page.read_text().count("<svg") / 2 > 0
    assert int(found["answered"]) < height
    assert 0 < int(found["first"]) - int(found["answered"]) < 50


def test_it_prints(page: Path) -> None:
    out = page.with_suffix(".pdf")
    chromium(f"--print-to-pdf={out}", page.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
    assert 3 <= pages <= 30
