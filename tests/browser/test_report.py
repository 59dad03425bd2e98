# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a real browser: nothing runs over the edge of a phone or a desktop, nothing is fetched, it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBE = """<script>
const root = document.documentElement;
root.dataset.over = root.scrollWidth - root.clientWidth;
root.dataset.fetched = performance.getEntriesByType("resource").length;
root.dataset.drawn = [...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width > 200).length;
</script></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "published.html"
    tables = sorted(map(str, (ROOT / "sweeps/published").glob("*.yml")))
    subprocess.run([sys.executable, ROOT / "scripts/bench_report.py", *tables, "--html", out], check=True)
    return out


def chromium(*arguments: str | Path) -> str:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "no Chromium here; on Debian: apt-get install --no-install-recommends chromium"
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("width", [500, 1200])
def test_nothing_runs_over_the_edge_and_nothing_is_fetched(page: Path, width: int) -> None:
    probed = page.with_name(f"probed-{width}.html")
    probed.write_text(page.read_text().replace("</body>", PROBE))
    seen = chromium(f"--window-size={width},2000", "--dump-dom", probed.as_uri())
    found = dict(re.findall(r'data-(over|fetched|drawn)="(-?\d+)"', seen[: seen.index("<head")]))
    assert int(found["over"]) <= 0
    assert int(found["fetched"]) == 0
    assert int(found["drawn"]) == page.read_text().count("<svg")


def test_it_prints(page: Path) -> None:
    out = page.with_suffix(".pdf")
    chromium(f"--print-to-pdf={out}", page.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
    assert 3 <= pages <= 30
