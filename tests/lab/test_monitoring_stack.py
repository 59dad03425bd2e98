# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the monitoring stack of the role beside a group of two ranks: data in every panel, and alerts for real faults.

One lab, in the order of this file. Prometheus, Alertmanager and node-exporter are Debian's, kube-state-metrics is built
from its module. The lab has no GPU, so it has no exporter of DCGM; Grafana is no Debian package.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from gb10lab.lab import Lab
from labcommand import CHECKOUT, LabCommand, changed
from monitoringimages import IMAGES, monitoring_images
from sitecommand import Site, incarnations

FILES = CHECKOUT / "roles" / "monitoring" / "files"
STACK: dict[str, Any] = {
    "monitoring_stack": True,
    "monitoring_images": {**IMAGES, "grafana": "", "dcgm-exporter": ""},
}
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
# What no part of this lab reports: it has no GPU, and this group has no fallback.
ABSENT = re.compile(r"DCGM_\w+|gb10_fallback_\w+")
METRIC = re.compile(r"(?:gb10|kube|node|DCGM|apiserver|serviceaccount|sglang)[_:]\w+")
# The links of the lab have no speed that matters; a rate needs some samples.
CHOSEN = {"$__rate_interval": "2m", "$group": ".*", "$host": ".*"}


class Watched(Site):
    """A site with the monitoring stack."""

    def read(self, part: str, url: str) -> Any:
        """Return what a part of the stack answers to its own pod; nothing outside may ask it."""
        where = ("--namespace=monitoring", "exec", f"deploy/{part}", "--", "python3", "-c", READ)
        return json.loads(self.kubectl(*where, url))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of a query."""
        asked = urllib.parse.urlencode({"query": expression})
        answer = self.read("prometheus", f"http://127.0.0.1:9090/api/v1/query?{asked}")
        return list(answer["data"]["result"])

    def until(self, expression: str, patience: float, there: bool = True) -> list[dict[str, Any]]:
        """Wait until a query has a result that is a number, or until it has none; return it."""
        started = time.monotonic()
        while time.monotonic() - started < patience:
            found = [one for one in self.query(expression) if not math.isnan(float(one["value"][1]))]
            if bool(found) is there:
                print(f"after {time.monotonic() - started:.0f} s: {expression}: {[one['value'][1] for one in found]}")
                return found
            time.sleep(3)
        firing = [one["metric"] for one in self.query("ALERTS")]
        raise AssertionError(f"{expression} after {patience} s; alerts: {firing}; up: {self.query('up')}")

    def fired(self, alert: str, patience: float) -> list[dict[str, str]]:
        """Wait until an alert fires; return the labels of the alerts that Alertmanager has by then."""
        self.until(f'ALERTS{{alertname="{alert}", alertstate="firing"}}', patience)
        started = time.monotonic()
        while time.monotonic() - started < 60:
            alerts = self.read("alertmanager", "http://127.0.0.1:9093/api/v2/alerts")
            if found := [one["labels"] for one in alerts if one["labels"]["alertname"] == alert]:
                return found
            time.sleep(3)
        raise AssertionError(f"Alertmanager has no {alert}: {alerts}")

    def work(self) -> None:
        """Let the group generate some tokens."""
        self.in_head("python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--measure", "64")


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand], tmp_path_factory: pytest.TempPathFactory) -> Watched:
    archive = monitoring_images(tmp_path_factory.mktemp("images"))
    made = Watched.deployed(make_lab(), nodes=2, serving_plan_overrides={"topology": {"nodes": 2, "tp": 2}})
    made.import_image(archive, (node["metadata"]["name"] for node in made.get("nodes")["items"]))
    made.play("serve")
    return made


def test_the_stack_runs_and_finds_all_that_it_reads(site: Watched) -> None:
    assert changed(site.play("monitoring", **STACK)) > 0
    site.until("count(up == 1) == 8", 90)
    assert site.query("up == 0") == []
    found = {(one["metric"]["job"], one["metric"].get("rank", "")) for one in site.query("up")}
    ranks = {("transport", "0"), ("transport", "1"), ("sglang", "0")}
    assert found == ranks | {("node-exporter", ""), ("kube-state-metrics", ""), ("apiserver", "")}
    assert changed(site.play("monitoring", **STACK)) == 0


def panels() -> list[tuple[str, str]]:
    """Return the title and the query of every query of the dashboards."""
    return [
        (f"{path.stem}: {panel['title']}", target["expr"])
        for path in sorted(FILES.glob("dashboards/*.json"))
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    ]


def test_every_panel_and_alert_has_its_metrics_here_but_those_of_a_gpu(site: Watched) -> None:
    site.work()
    rules = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    asked = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    asked |= {name for _title, query in panels() for name in METRIC.findall(query)}
    here = {one["metric"]["__name__"] for one in site.query('count by (__name__) ({__name__!=""})')}
    assert {name for name in asked - here if not ABSENT.fullmatch(name)} == set()
    for title in ("Time to the first token", "Time between tokens"):
        (median,) = [query for name, query in panels() if name == f"group: {title}" and "0.50" in query]
        (value,) = site.until(chosen(median), 60)
        assert 0 < float(value["value"][1]) < 10
    empty = [name for name, query in panels() if not ABSENT.search(query) and not site.query(chosen(query))]
    assert empty == []


def chosen(query: str) -> str:
    """Return a query of a panel with the values that Grafana fills in."""
    for name, value in CHOSEN.items():
        query = query.replace(name, value)
    return query


def test_a_stopped_rank_that_the_supervisor_replaces_counts_as_a_restart_of_its_pod(site: Watched) -> None:
    before = site.incarnations()
    site.signal("spark2", 1, "STOP")
    print(f"the supervisor replaced the group: ready after {site.wait_ready(before, 2):.0f} s")
    assert "restarting the group: the head has been stuck" in site.kubectl(
        "logs", f"deployment/{site.group}-supervisor"
    )
    pods = 'count by (pod) (group by (pod, uid) (last_over_time(up{revision!="", rank!=""}[30m]))) == 2'
    assert len(site.until(f"count({pods}) == 2", 60)) == 1
    assert site.query('ALERTS{alertname="Gb10RankRestarting"}') == []
    # The second restart is one of the kubelet: the supervisor's next one would have to wait longer than this test can.
    before = incarnations(site.pods())
    site.signal("spark2", 1, "KILL")
    alerts = site.fired("Gb10RankRestarting", 120)
    assert {one["pod"] for one in alerts} <= {f"{site.group}-0-0", f"{site.group}-1-0"}
    assert {(one["namespace"], one["severity"]) for one in alerts} == {(site.namespace, "critical")}
    print(f"ready again after {site.wait_ready(before, 2):.0f} s")


def test_a_pulled_cable_fires_its_alert_until_it_is_back(site: Watched) -> None:
    lab = Lab(site.lab.state, site.lab.state).name
    cable = ["ip", "-n", lab, "link", "set", "spark2-r1v0"]
    subprocess.run([*cable, "down"], check=True, timeout=30)
    try:
        (alert,) = site.fired("Gb10TransportLost", 150)
    finally:
        subprocess.run([*cable, "up"], check=True, timeout=30)
    assert (alert["group"], alert["rank"], alert["reason"]) == (site.group, "1", "LinkDown")
    site.until('ALERTS{alertname="Gb10TransportLost"}', 90, there=False)


def test_one_variable_removes_the_stack(site: Watched) -> None:
    site.play("monitoring", monitoring_state="absent", **STACK)
    left = site.kubectl("get", "namespaces,clusterroles,clusterrolebindings", "-o", "name")
    assert "namespace/monitoring" not in left.split()
    assert "gb10-prometheus" not in left
    ours = ("-A", "-l", "app.kubernetes.io/part-of=gb10-monitoring", "-o", "name")
    assert site.kubectl("get", "roles,rolebindings", *ours) == ""
    assert changed(site.play("monitoring", monitoring_state="absent", **STACK)) == 0
