# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test alerts with promtool, and every query with a real Prometheus.

The metrics of hosts are those of a real node-exporter, those of ranks come from the sidecar's own code and from
a page of a real SGLang, and the others from samples/page.prom.
"""

import contextlib
import json
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import Limits
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import MAIN, Choice, Settings, Status, metrics
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Condition, Rail, Seen, render
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import Answers, Health, Load, NodeMemory

COVERS = ("roles/monitoring/files", "roles/monitoring/templates", "scripts/dashboards.py")

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FILES = ROOT / "roles/monitoring/files"
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
VARIABLES = yaml.safe_load((ROOT / "roles/monitoring/vars/main.yml").read_text())
PANELS = [
    (path.stem, panel["title"], target["expr"])
    for path in sorted((FILES / "dashboards").glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
    for target in panel["targets"]
]


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed; on Debian: apt-get install --no-install-recommends {package}"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pages() -> dict[str, str]:
    """Return what is scraped: the sidecar of a rank, the switch of a fallback, and the samples."""
    rail = Rail(**dict.fromkeys(Rail.__dataclass_fields__, "") | {"device": "rocep1s0f0v0", "interface": "net1"})
    counted = {
        "net": {"net1": {"tx_bytes": 1, "rx_bytes": 2}},
        "rdma": {"rocep1s0f0v0": {"xmit_bytes": 3, "rcv_bytes": 4, "out_of_sequence": 0}},
    }
    links = {"net1": {"carrier_changes": 2, "speed": 200000}}
    judged = {"transport_class": "rdma", "evidence": "channels"}
    seen = Seen("", judged, gids=frozenset([rail.address]), mtus={"net1": 9000})
    condition = Condition(**dict.fromkeys(Condition.__dataclass_fields__, "") | {"proven": True, "reason": "Proven"})
    kept: Any = SimpleNamespace(set_condition=lambda *_: None, add_event=lambda *_: None)
    memory = NodeMemory(Limits(warn=5, stop=4, full=20, hold=10), kept, {"instance": "g", "rank": "0"})
    memory.step(time.monotonic())
    answers = Answers(HERE, free_port(), kept, {"instance": "g", "rank": "0"}, enforce=False)
    answers.step(time.monotonic())
    with tempfile.TemporaryDirectory() as kept_in:
        health = Health((rail,), str(HERE), kept, {"instance": "g", "rank": "0"}, HERE / "samples", Path(kept_in))
        health.step(time.monotonic())
    load = Load(HERE / "samples", kept, {"instance": "g", "rank": "0"})
    load.step(time.monotonic())
    return {
        "/transport": render({"instance": "g", "rank": "0"}, condition, seen, 5.0, [rail], counted, links)
        + memory.text
        + answers.text
        + health.text
        + load.text,
        "/fallback": metrics(Settings("g", "s", (Choice(MAIN, "p", (), ()),), 1, 1), Status()),
        "/sglang": (HERE / "samples/sglang-0.5.16.prom").read_text(),
        "/samples": (HERE / "samples/page.prom").read_text(),
    }


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a function that asks a running Prometheus for the result of a query."""
    served = pages()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = served[self.path].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: Any) -> None:
            """Say nothing."""

    site = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    here, node, port = f"127.0.0.1:{site.server_port}", free_port(), free_port()
    names = {"namespace": "s", "pod": "g-0-0", "group": "g", "rank": "0", "node": "spark1", "revision": "a", "uid": "1"}
    rank = {"targets": [here], "labels": names}
    jobs = [
        {
            "job_name": path[1:],
            "metrics_path": path,
            "honor_labels": path in ("/transport", "/fallback"),
            "metric_relabel_configs": VARIABLES["__monitoring_without_pod"],
            "static_configs": [rank],
        }
        for path in served
    ]
    jobs.append({"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{node}"]}]})
    state = tmp_path_factory.mktemp("prometheus")
    config = {"global": {"scrape_interval": "1s"}, "rule_files": [str(FILES / "alerts.yml")], "scrape_configs": jobs}
    (state / "prometheus.yml").write_text(yaml.safe_dump(config))
    exporter = program("prometheus-node-exporter", "prometheus-node-exporter")
    server = [
        program("prometheus", "prometheus"),
        f"--config.file={state}/prometheus.yml",
        f"--storage.tsdb.path={state}/data",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    node_command = [exporter, f"--web.listen-address=127.0.0.1:{node}"]
    running = [
        subprocess.Popen(node_command, **quiet),
        subprocess.Popen([*server, f"--web.listen-address=127.0.0.1:{port}"], **quiet),
    ]

    def query(expression: str) -> list[Any]:
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{asked}", timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])

    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if len(query("count_over_time(up[1m]) > 4")) == len(jobs):
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline, "Prometheus did not scrape all targets within 60 s"
            time.sleep(1)
        yield query
    finally:
        for process in running:
            process.terminate()
            process.wait(timeout=30)
        site.shutdown()


@pytest.mark.parametrize(("dashboard", "title", "expression"), PANELS, ids=lambda value: str(value)[:40])
def test_every_panel_answers_with_data(ask: Any, dashboard: str, title: str, expression: str) -> None:
    for name, value in {"$__rate_interval": "30s", "$group": ".*", "$host": ".*"}.items():
        expression = expression.replace(name, value)
    assert ask(expression), f"{dashboard}: {title}: {expression}"


def test_only_up_names_the_pod_so_that_the_series_of_a_rank_go_on_in_the_next_one(ask: Any) -> None:
    assert {one["metric"]["uid"] for one in ask('up{rank="0"}')} == {"1"}
    kept = {one["metric"]["__name__"] for one in ask('{uid!="", __name__=~"(gb10|sglang).+"}')}
    assert kept == set()


def test_no_alert_fires_here_and_every_metric_of_an_alert_exists(ask: Any) -> None:
    for rule in RULES:
        for name in metrics_of(rule["expr"]):
            assert ask(f'{{__name__="{name}"}}'), f"{rule['alert']}: {name}"
    faults = {r["metric"]["alertname"] for r in ask('ALERTS{alertstate="firing"}')}
    assert faults <= {"Gb10MemoryPressure", "Gb10DiskFull"}, "only this machine itself may be short of memory or space"


def metrics_of(expression: str) -> set[str]:
    """Return the names of the metrics in a query."""
    parts = expression.replace("(", " ").replace("{", " ").replace("[", " ").split()
    return {
        part for part in parts if part.startswith(("gb10_", "kube_", "node_", "DCGM_", "apiserver_", "serviceaccount_"))
    }


def test_every_alert_fires_for_its_fault_and_only_then() -> None:
    subprocess.run([program("promtool", "prometheus"), "test", "rules", HERE / "alerts.yml"], check=True)
    tested = yaml.safe_load((HERE / "alerts.yml").read_text())["tests"]
    for test in tested:
        names = {case["alertname"] for case in test["alert_rule_test"]}
        assert names == {rule["alert"] for rule in RULES}, test["name"]


# Of two ranks: proven, and the class of NCCL's files. What the tile says, and each rank.
STATES = {
    "both on RoCE": (((1, "rdma"), (1, "rdma")), "yes", ["RoCE", "RoCE"]),
    "one has lost its link": (((0, "rdma"), (0, "rdma")), "not proven", ["not proven", "not proven"]),
    "one starts": (((0, "rdma"), (0, "unknown")), "not proven", ["not proven", "not proven"]),
    "one on TCP": (((0, "rdma"), (0, "tcp")), "NO: TCP", ["not proven", "TCP"]),
    "one on both": (((0, "rdma"), (0, "mixed")), "NO: TCP", ["not proven", "TCP"]),
    "a group whose plan is TCP": (((1, "tcp"), (1, "tcp")), "NO: TCP", ["TCP", "TCP"]),
    "one is replaced": (((1, "rdma"), None), "not proven", ["RoCE", "not proven"]),
}


@pytest.mark.parametrize("case", STATES)
def test_the_tile_says_whether_everything_is_roce_now(case: str, tmp_path: Path) -> None:
    ranks, answer, each = STATES[case]
    series = []
    for rank, seen in enumerate(ranks):
        labels = f'namespace="s", group="g", rank="{rank}"'
        # A pod that is replaced: its series ended, with Prometheus' mark, two minutes ago.
        proven, kind = seen or (1, "rdma")
        end = "x1 stale _x2" if seen is None else "x5"
        series += [
            {"series": f"gb10_transport_proven{{{labels}}}", "values": f"{proven}{end}"},
            {"series": f'gb10_transport_info{{{labels}, class="{kind}"}}', "values": f"1{end}"},
        ]
    tile, timeline = json.loads((FILES / "dashboards/transport.json").read_text())["panels"][:2]
    texts = {one["text"]: int(n) for n, one in tile["fieldConfig"]["defaults"]["mappings"][0]["options"].items()}
    names = {one["text"]: int(n) for n, one in timeline["fieldConfig"]["defaults"]["mappings"][0]["options"].items()}
    expected = {tile["targets"][0]["expr"]: [{"labels": "{}", "value": texts[answer]}]}
    expected[timeline["targets"][0]["expr"]] = [
        {"labels": f'{{namespace="s", group="g", rank="{rank}"}}', "value": names[name]}
        for rank, name in enumerate(each)
    ]
    asked = [
        {"expr": query.replace("$group", ".*"), "eval_time": "4m", "exp_samples": samples}
        for query, samples in expected.items()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    file = tmp_path / "states.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    subprocess.run([program("promtool", "prometheus"), "test", "rules", file], check=True)


class Sink(BaseHTTPRequestHandler):
    """Takes what is posted: ntfy's and Slack's side of a receiver."""

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.got.append((self.path, text))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_words: Any) -> None:
        """Say nothing."""


class Mail(socketserver.StreamRequestHandler):
    """Takes a mail, with a login, as a server without TLS does."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            said = {"EHLO": "250-here\r\n250 AUTH PLAIN", "AUTH": "235 in", "DATA": "354 go on"}.get(
                line[:4], "250 yes"
            )
            if line == "DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = []
                while (part := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    mail.append(part)
                self.server.got.append(("mail", "\n".join(mail)))  # type: ignore[attr-defined]
                said = "250 taken"
            self.wfile.write(f"{said}\r\n".encode())
            if line == "QUIT":
                return


def receivers(readme: str) -> dict[str, Any]:
    """Return the receiver of the page's first example with the mail and Slack of its second one."""
    blocks = [block.partition("\n")[2].partition("```")[0] for block in readme.split("```yaml")[1:]]
    parsed = [yaml.load(block.replace("!unsafe ", ""), yaml.SafeLoader) for block in blocks]
    (first,) = [block["monitoring_alertmanager"] for block in parsed if "monitoring_alertmanager" in block]
    (more,) = [block for block in parsed if "slack_configs" in block]
    return {**first, "receivers": [first["receivers"][0] | more]}


def test_the_examples_of_receivers_reach_ntfy_a_mailbox_and_slack(tmp_path: Path) -> None:
    """Everything but the addresses is as on the page; a receiver may not know the certificate of a server here."""
    got: list[tuple[str, str]] = []
    web = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    post = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)
    web.got = post.got = got  # type: ignore[attr-defined]
    for server in (web, post):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{web.server_port}"
    config = receivers((ROOT / "roles/monitoring/README.md").read_text(encoding="utf-8"))
    (receiver,) = config["receivers"]
    ntfy = receiver["webhook_configs"][0]
    ntfy["url"] = ntfy["url"].replace("https://ntfy.sh", f"{here}/ntfy")
    receiver["slack_configs"][0]["api_url"] = f"{here}/slack"
    receiver["email_configs"][0] |= {"smarthost": f"127.0.0.1:{post.server_address[1]}", "require_tls": False}
    config["route"] |= {"group_wait": "1s"}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program("prometheus-alertmanager", "prometheus-alertmanager"),
        f"--config.file={tmp_path}/alertmanager.yml",
        f"--storage.path={tmp_path}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    (rule,) = [rule for rule in RULES if rule["alert"] == "Gb10RailDegrades"]
    summary = "Rail 1 of rank 2 of group g had faults again and again (link_lost)."
    alert = {"labels": {"alertname": rule["alert"], **rule["labels"]}, "annotations": {"summary": summary}}
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as running:
        try:
            posted = Request(f"http://127.0.0.1:{port}/api/v2/alerts", json.dumps([alert]).encode())
            posted.add_header("Content-Type", "application/json")
            until = time.monotonic() + 60
            while {path.partition("?")[0] for path, _text in got} < {
                "/ntfy/a-topic-that-nobody-guesses",
                "/slack",
                "mail",
            }:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(posted, timeout=5).close()
                assert time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
                time.sleep(1)
        finally:
            running.terminate()
    told = dict(got)
    assert all("Gb10RailDegrades" in text for text in told.values())
    # ntfy's own template of this name shows the annotations of this form.
    phone = json.loads(told["/ntfy/a-topic-that-nobody-guesses?template=alertmanager"])
    assert phone["alerts"][0]["annotations"]["summary"] == summary
    slack = json.loads(told["/slack"])
    assert (slack["channel"], slack["attachments"][0]["title"]) == ("#gb10", summary)
    assert "To: me@example.org" in told["mail"]
