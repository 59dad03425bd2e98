# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the report in a real browser: its answers fit the first screen, it fetches nothing, and it can be printed."""

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
# The contrast of a text with what is behind it (WCAG 2.1: 4.5, or 3 for large text).
CONTRAST = """
const channels = (colour) => {
  const parts = colour.match(/[\\d.]+/g).map(Number);
  return {rgb: parts.slice(0, 3), alpha: parts[3] ?? 1};
};
const over = (top, below) => top.rgb.map((value, at) => value * top.alpha + below[at] * (1 - top.alpha));
const lightness = (rgb) => {
  const [r, g, b] = rgb.map((value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element, view) => {
  if (!element) return [255, 255, 255];
  const own = channels(view.getComputedStyle(element).backgroundColor);
  return own.alpha === 1 ? own.rgb : over(own, behind(element.parentElement, view));
};
const faint = (inner) => {
  const found = {}, view = inner.defaultView;
  const walker = inner.createTreeWalker(inner.querySelector("article") ?? inner.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = view.getComputedStyle(element);
    if (!walker.currentNode.data.trim() || !element.getBoundingClientRect().width) continue;
    if (style.visibility === "hidden" || element.closest("title, desc, metadata, script, style")) continue;
    const ground = behind(element, view);
    const letters = element.closest("svg") ? style.fill : style.color;
    const ink = over(channels(letters), ground);
    const [light, dark] = [lightness(ink), lightness(ground)].sort((one, other) => other - one);
    const ratio = (light + 0.05) / (dark + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found[`contrast ${ratio.toFixed(1)}: ${element.tagName}.${element.className}`] = 1;
  }
  return Object.keys(found);
};
"""
PROBE = """<script>
CONTRAST
const seen = top.document.documentElement.dataset, root = document.documentElement;
seen.wide = root.clientWidth;
seen.over = root.scrollWidth - root.clientWidth;
seen.fetched = performance.getEntriesByType("resource").length;
const boxes = [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect()).filter(b => b.width);
seen.drawn = boxes.filter(b => b.width > 0.9 * root.clientWidth - 40).length;
seen.answered = Math.round(document.querySelector(".answers").getBoundingClientRect().bottom);
seen.first = Math.round(boxes[0].top);
seen.faint = faint(document).join("; ");
seen.ground = getComputedStyle(document.body).backgroundColor;
seen.untold = [...document.querySelectorAll("svg")].filter(s =>
  s.getAttribute("role") !== "img" || !s.querySelector(":scope > title")?.textContent.trim() ||
  !s.querySelector(":scope > desc")?.textContent.trim()).length;
</script></body>"""
# A window of Chromium is never narrower than 500 pixels; a frame is as narrow as a phone.
FRAME = """<!doctype html><html><head></head><body style="margin:0">
<iframe style="width:{width}px;height:2000px;border:0" srcdoc="{page}"></iframe></body></html>"""

TTFT = {"p50": 0.512, "p95": 0.741, "p99": 0.802}
ITL = {"p50": 0.0251, "p95": 0.0302, "p99": 0.0344}


def measurement(name: str, *rates: float) -> dict[str, Any]:
    runs = []
    for rate in rates:
        figures = {"peak_tok_s": rate, "wall_tok_s": 0.8 * rate, "ttft_s": TTFT, "itl_s": ITL}
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
    measured = [measurement(f"c0-n{n}", *(n**0.8 * r for r in (31.0, 32.0, 30.5))) for n in (1, 4, 8)]
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


def probed(page: Path, width: int, scheme: str) -> dict[str, str]:
    """Return what a script sees in the page at this width, for a reader who prefers this scheme."""
    framing = page.with_name(f"probed-{width}.html")
    framed = html.escape(page.read_text().replace("</body>", PROBE.replace("CONTRAST", CONTRAST)))
    framing.write_text(FRAME.format(width=width, page=framed))
    preferred = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    seen = chromium("--window-size=1300,2000", preferred, "--dump-dom", framing.as_uri())
    return dict(re.findall(r'data-(\w+)="([^"]*)"', seen[: seen.index("<head")]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_every_text_can_be_read_and_every_picture_has_a_text_in_both_schemes(
    page: Path, width: int, scheme: str
) -> None:
    found = probed(page, width, scheme)
    assert found["ground"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    assert (found["faint"], found["untold"]) == ("", "0")


@pytest.mark.parametrize(("width", "height"), [(375, 812), (500, 812), (1200, 720)])
def test_the_answers_fit_the_first_screen_and_the_pictures_fill_the_page(page: Path, width: int, height: int) -> None:
    found = probed(page, width, "light")
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
