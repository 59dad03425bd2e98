# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the documentation site in a real browser: pages fit phones and desks, fetch nothing, and messages are found."""

import html
import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from test_report import CONTRAST, ROOT, chromium

COVERS = ("docs/site",)

SITE = ROOT / ".build" / "site" / "html"
# A window of Chromium is never narrower than 500 pixels; a frame is as narrow as a phone.
PROBE = """<!doctype html><body>
<iframe id=frame style="width:WIDTHpx;height:900px;border:0"></iframe><pre id=seen></pre>
<script>
CONTRAST
// What a printer gets: the rules for print apply, those for a screen do not.
const printed = (rules) => {
  for (const rule of rules) {
    const media = rule.media?.mediaText ?? "";
    if (media.includes("print")) rule.media.mediaText = media.replace("print", "all");
    else if (media.includes("screen")) rule.media.mediaText = "not all";
    if (rule.cssRules) printed(rule.cssRules);
  }
};
(async () => {
  const seen = {};
  for (const page of PAGES) {
    await new Promise((loaded) => { frame.onload = loaded; frame.src = page; });
    const inner = frame.contentDocument, root = inner.documentElement;
    if ("SCHEME" === "print") [...inner.styleSheets].forEach((sheet) => {
      sheet.media.mediaText = sheet.media.mediaText.replace("print", "all");
      printed(sheet.cssRules);
    });
    else inner.body.dataset.theme = "SCHEME";
    const column = inner.querySelector("article").getBoundingClientRect().right + 1;
    const lost = [...inner.querySelectorAll("article td, article th")].filter((each) =>
      each.getClientRects().length && each.getBoundingClientRect().right > column);
    const menu = inner.querySelector(".toc-drawer")?.getBoundingClientRect() ?? {left: 0, right: 0};
    const pictures = [...inner.querySelectorAll("article img")].filter((each) => !each.naturalWidth);
    const tables = [...inner.querySelectorAll("article table")].filter((each) => !each.closest("td"));
    const fetched = frame.contentWindow.performance.getEntriesByType("resource").map((each) => each.name);
    seen[page] = [
      root.scrollWidth > root.clientWidth && "too wide",
      menu.left < root.clientWidth && menu.right > root.clientWidth + 1 && "menu cut off",
      inner.querySelector("article .contents, .system-message, .problematic") && "an error of the builder",
      tables.some((each) => each.scrollWidth > each.parentElement.clientWidth + 1) && "a table is too wide",
      lost.length && `${lost.length} cells beyond the column: ${lost[0].textContent.slice(0, 40)}`,
      ...pictures.map((each) => each.src),
      ...faint(inner),
      ...fetched.filter((each) => !each.startsWith(location.origin) && !each.startsWith("data:")),
    ].filter((each) => each);
  }
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""
SEARCHES = """<!doctype html><body><iframe id=frame></iframe><pre id=seen></pre>
<script>
(async () => {
  const seen = {};
  for (const words of QUERIES) {
    const page = `/search.html?q=${encodeURIComponent(words)}`;
    await new Promise((loaded) => { frame.onload = loaded; frame.src = page; });
    let first = null;
    for (let turn = 0; turn < 100 && !first; turn++) {
      await new Promise((done) => setTimeout(done, 50));
      const summary = frame.contentDocument.querySelector("#search-results .search-summary");
      if (summary?.textContent.match(/finished|found|did not match/i))
        first = frame.contentDocument.querySelector("#search-results li a")?.getAttribute("href") ?? "nothing";
    }
    seen[words] = (first ?? "no answer").split(/[?#]/)[0];
  }
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""
# What a reader types, and the page that answers it.
QUERIES = {
    "OOM": "docs/troubleshooting.html",
    "out of memory": "docs/troubleshooting.html",
    "api key": "docs/gateway.html",
    "uninstall": "docs/uninstall.html",
    "remove everything": "docs/uninstall.html",
    "gb10_node_id": "docs/variables.html",
    "serving_plan_preset": "roles/serving_plan/README.html",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "docs/troubleshooting.html",
    "open webui": "docs/clients.html",
    "jumbo frames": "docs/fabric.html",
    "mtu": "docs/fabric.html",
    "aider": "docs/clients.html",
    "power cut": "docs/daily.html",
    "reboot": "docs/daily.html",
    "add a node": "docs/daily.html",
    "switch the model": "docs/daily.html",
    "backup": "docs/daily.html",
    "firmware": "docs/prepare.html",
    "swap": "docs/prepare.html",
    "wi-fi": "docs/prepare.html",
    "sudo password": "docs/prepare.html",
    "hf token": "roles/models/README.html",
    "grafana": "roles/monitoring/README.html",
    "alert": "docs/runbook.html",
    "argo cd": "docs/gitops.html",
    "awx": "docs/console.html",
    "socket fallback": "docs/why-tcp.html",
    "why tcp": "docs/why-tcp.html",
    "sweep": "docs/benchmarks.html",
    "tokens per second": "docs/published.html",
    "which model fits": "docs/models.html",
    "two sparks": "docs/models.html",
    "support bundle": "roles/support_bundle/README.html",
    "openshift": "docs/existing.html",
    "kernel update": "roles/update/README.html",
}
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


def probed(site: str, text: str) -> dict[str, Any]:
    """Open a page that looks at the others; return what it found."""
    (SITE / "probe.html").write_text(text, encoding="utf-8")
    dumped = chromium("--window-size=1500,1000", "--virtual-time-budget=120000", "--dump-dom", f"{site}/probe.html")
    (seen,) = re.findall('<pre id="seen">(.*?)</pre>', dumped, re.DOTALL)
    found: dict[str, Any] = json.loads(html.unescape(seen))
    return found


# The width of A4 without its margins is 717 pixels.
@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (1400, "light"), (1400, "dark"), (717, "print")]
)
def test_every_page_fits_can_be_read_and_fetches_nothing_from_elsewhere(site: str, width: int, scheme: str) -> None:
    pages = [f"/{path.relative_to(SITE)}" for path in sorted(SITE.rglob("*.html")) if path.name != "probe.html"]
    text = PROBE.replace("CONTRAST", CONTRAST).replace("WIDTH", str(width)).replace("SCHEME", scheme)
    found: dict[str, Any] = {}
    # One browser for all of them needs longer than its limit on a busy machine.
    for first in range(0, len(pages), 40):
        found |= probed(site, text.replace("PAGES", json.dumps(pages[first : first + 40])))
    assert list(found) == pages
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def test_what_a_reader_types_leads_to_the_page_that_answers(site: str) -> None:
    assert probed(site, SEARCHES.replace("QUERIES", json.dumps(list(QUERIES)))) == QUERIES


def test_the_start_page_answers_which_model_fits_and_each_role_has_one_page(site: str) -> None:
    start = (SITE / "index.html").read_text(encoding="utf-8")
    for words in ("ssh-copy-id", "2 Sparks", "-e profile=qwen3.8-flash-next -e preset=mtp"):
        assert words in html.unescape(re.sub("<[^>]+>", "", start)), words
    assert "data-flow.svg" in start
    pages = {path.parent.name for path in SITE.glob("roles/*/README.html")}
    assert pages == {path.parent.parent.name for path in ROOT.glob("roles/*/tasks/main.yml")}
    assert not list(SITE.glob("reference/plugins/*_role.html"))


def test_pages_have_a_description_and_an_icon(site: str) -> None:
    for page in ("index.html", "docs/daily.html", "reference/plugins/pf_info_module.html"):
        text = (SITE / page).read_text(encoding="utf-8")
        assert 'name="description"' in text
        assert "favicon.svg" in text


@pytest.mark.parametrize(("message", "found"), MESSAGES.items(), ids=list(MESSAGES.values()))
def test_a_pasted_message_leads_to_its_row(site: str, message: str, found: str) -> None:
    page = f"{site}/search.html?{urllib.parse.urlencode({'q': message})}"
    dumped = chromium("--virtual-time-budget=10000", "--dump-dom", page)
    links = re.findall(r'<li class="kind-\w+"><a href="([^"]+)"', dumped)
    assert links[:1] == [found]
