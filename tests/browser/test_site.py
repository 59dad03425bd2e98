# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the documentation site in a real browser: pages fit phones and desks, fetch nothing, and messages are found."""

from __future__ import annotations

import html
import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from test_report import ROOT, chromium

COVERS = ("docs/site",)

SITE = ROOT / ".build" / "site" / "html"
# A window of Chromium is never narrower than 500 pixels; a frame is as narrow as a phone.
PROBE = """<!doctype html><body>
<iframe id=frame style="width:WIDTHpx;height:900px;border:0"></iframe><pre id=seen></pre>
<script>
(async () => {
  const seen = {};
  for (const page of PAGES) {
    await new Promise((loaded) => { frame.onload = loaded; frame.src = page; });
    const inner = frame.contentDocument, root = inner.documentElement;
    const menu = inner.querySelector(".toc-drawer")?.getBoundingClientRect() ?? {left: 0, right: 0};
    const pictures = [...inner.querySelectorAll("article img")].filter((each) => !each.naturalWidth);
    const fetched = frame.contentWindow.performance.getEntriesByType("resource").map((each) => each.name);
    seen[page] = [
      root.scrollWidth > root.clientWidth && "too wide",
      menu.left < root.clientWidth && menu.right > root.clientWidth + 1 && "menu cut off",
      ...pictures.map((each) => each.src),
      ...fetched.filter((each) => !each.startsWith(location.origin) && !each.startsWith("data:")),
    ].filter((each) => each);
  }
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""
# What is pasted, the page that is found first, and its row.
SLOW = (
    "warning: spark2: enp1s0f0np0 = 100: the link is below 200 Gb/s: a degraded NIC. Unplug it. [preflight.link.slow]"
)
MESSAGES = {
    SLOW: "docs/troubleshooting.html#message-preflight-link-slow",
    "gid.absent": "docs/troubleshooting.html#message-gid-absent",
    "no_rdma_device": "docs/troubleshooting.html#message-no-rdma-device",
    "error: attention_backend = 'fa3': no kernels [attn.fa3_sm12x]": "docs/launch-rules.html#message-attn-fa3-sm12x",
    "spark1:77:77 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev "
    "rocep1s0f0v0:1, curr state INIT, next state RTR, local GID index 3": "docs/troubleshooting.html",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    subprocess.run([ROOT / "docs" / "site" / "build"], check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("width", [390, 1400])
def test_every_page_fits_and_fetches_nothing_from_elsewhere(site: str, width: int) -> None:
    pages = [f"/{path.relative_to(SITE)}" for path in sorted(SITE.rglob("*.html")) if path.name != "probe.html"]
    probe = PROBE.replace("WIDTH", str(width)).replace("PAGES", json.dumps(pages))
    (SITE / "probe.html").write_text(probe, encoding="utf-8")
    dumped = chromium("--window-size=1500,1000", "--virtual-time-budget=60000", "--dump-dom", f"{site}/probe.html")
    (seen,) = re.findall('<pre id="seen">(.*?)</pre>', dumped, re.DOTALL)
    found = json.loads(html.unescape(seen))
    assert list(found) == pages
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(("message", "found"), MESSAGES.items(), ids=list(MESSAGES.values()))
def test_a_pasted_message_leads_to_its_row(site: str, message: str, found: str) -> None:
    page = f"{site}/search.html?{urllib.parse.urlencode({'q': message})}"
    dumped = chromium("--virtual-time-budget=10000", "--dump-dom", page)
    links = re.findall(r'<li class="kind-\w+"><a href="([^"]+)"', dumped)
    assert links[:1] == [found]
