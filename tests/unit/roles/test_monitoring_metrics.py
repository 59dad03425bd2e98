# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that what dashboards and alerts ask for is what its source reports and what the role lets through.

tests/monitoring asks a real Prometheus for the same metrics, and tests/lab/test_monitoring.py those of a cluster.
"""

import csv
import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles" / "monitoring"
sys.path.insert(0, str(ROOT / "lab" / "sglang"))
engine = importlib.import_module("sglang._engine")
http = importlib.import_module("sglang._http")

VARIABLES = yaml.safe_load((ROLE / "vars/main.yml").read_text())
REAL = (ROOT / "tests/monitoring/samples/sglang-0.5.16.prom").read_text()
RULES = yaml.safe_load((ROLE / "files/alerts.yml").read_text())["groups"][0]["rules"]
QUERIES = [rule["expr"] for rule in RULES] + [
    target["expr"]
    for path in (ROLE / "files/dashboards").glob("*.json")
    for panel in json.loads(path.read_text())["panels"]
    for target in panel["targets"]
]


def asked(prefix: str) -> set[str]:
    """Return the metrics of a source that some query asks for."""
    found = {name for query in QUERIES for name in re.findall(rf"\b{prefix}\w+", query)}
    assert found, prefix
    return found


def names(page: str) -> set[str]:
    """Return the names of the metrics on a page in Prometheus' text format."""
    return {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line and not line.startswith("#")}


def simulated() -> str:
    """Return the page of a head of the lab's SGLang that speculates."""
    head = engine.Engine({"speculative_algorithm": "EAGLE"}, "IB", lambda _batch: None, lambda _line: None)
    return str(http.metrics(SimpleNamespace(engine=head, model="m")))


def test_a_real_sglang_and_the_simulated_one_report_what_is_asked_of_them() -> None:
    assert asked("sglang:") - names(REAL) == set()
    assert asked("sglang:") - names(simulated()) == set()


def test_the_simulated_sglang_reports_no_metric_that_a_real_one_lacks() -> None:
    assert names(simulated()) - names(REAL) == set()


def test_its_histograms_have_the_buckets_of_a_real_one() -> None:
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
        real, made = (re.findall(rf'^sglang:{name}_bucket{{.*le="([^"]+)"', page, re.M) for page in (REAL, simulated()))
        assert real == made


def test_the_exporter_of_the_gpu_is_asked_for_every_counter_and_no_other() -> None:
    counters = VARIABLES["__monitoring_files"]["dcgm-exporter"]["counters.csv"]
    records = list(csv.reader(counters.splitlines()))
    assert asked("DCGM_") == {record[0] for record in records}
    # NVIDIA's exporter ends if a line has not three fields.
    assert {len(record) for record in records} == {3}


def test_the_metrics_of_the_api_server_pass_its_filter_and_no_other_does() -> None:
    (job,) = (one for one in VARIABLES["__monitoring_prometheus"]["scrape_configs"] if one["job_name"] == "apiserver")
    (kept,) = (one["regex"] for one in job["metric_relabel_configs"])
    assert asked("apiserver_") | asked("serviceaccount_") == set(kept.split("|"))


def test_the_state_of_pods_is_what_kube_state_metrics_may_read() -> None:
    arguments = VARIABLES["__monitoring_deployments"]["kube-state-metrics"]["args"]
    assert "--resources=pods" in arguments
    assert all(name.startswith("kube_pod_") for name in asked("kube_"))


def test_whatever_scrapes_ranks_drops_the_labels_of_the_pod_from_their_metrics() -> None:
    (monitor,) = (
        one for one in VARIABLES["__monitoring_operator_objects"] if one["metadata"]["name"] == "gb10-serving"
    )
    dropped = [one.get("metricRelabelings") for one in monitor["spec"]["podMetricsEndpoints"]]
    jobs = VARIABLES["__monitoring_prometheus"]["scrape_configs"]
    dropped += [one.get("metric_relabel_configs") for one in jobs if "__monitoring_ranks" in one["relabel_configs"]]
    assert dropped == ["{{ __monitoring_without_pod }}"] * 4


def test_a_scrape_keeps_labels_that_the_operator_would_replace() -> None:
    """The sidecar reports group and rank, and the gateway (sglang_router 0.3.2) an endpoint."""
    kept = {
        (one["metadata"]["name"], endpoint["port"])
        for one in VARIABLES["__monitoring_operator_objects"]
        if one["kind"] == "PodMonitor"
        for endpoint in one["spec"]["podMetricsEndpoints"]
        if endpoint.get("honorLabels")
    }
    assert kept == {("gb10-serving", "transport"), ("gb10-gateway", "metrics")}
