# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook monitoring beside a group and a gateway: first with an owner's Prometheus operator, then its own stack.

One lab, in the order of this file. Prometheus, Alertmanager and node-exporter are Debian's. kube-state-metrics and the
operator are built from their modules, and the operator is installed by its own manifests. The lab has no GPU, so DCGM's
exporter is simulated; Grafana is no Debian package.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from gatewayimage import NAME, gateway_image
from gb10lab.lab import Lab
from labcommand import LabCommand, changed
from monitoringimages import IMAGES, built, monitoring_images
from sitecommand import incarnations
from watchedsite import FILES, RULES, WatchedSite

COVERS = ("playbooks/monitoring.yml", "roles/monitoring", "lab/dcgm")

OBJECTS = "podmonitors,prometheusrules,configmaps"
OURS = ("-n", "monitoring", "-l", "app.kubernetes.io/managed-by=gb10.cluster")
# The labels are those of the chart kube-prometheus-stack.
SELECTED = {"matchLabels": {"release": "kube-prometheus-stack"}}
PROMETHEUS: dict[str, Any] = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "owner", "namespace": "monitoring"},
    "spec": {
        "image": IMAGES["prometheus"],
        "version": "v2.53.3",
        "serviceAccountName": "owner",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "fsGroup": 65534},
        "podMonitorSelector": SELECTED,
        "ruleSelector": SELECTED,
        "scrapeInterval": "15s",
        "evaluationInterval": "15s",
    },
}
# Asks a model through the gateway.
CHAT = """import json, urllib.request as u
body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
headers = {"Content-Type": "application/json"}
asked = u.Request("http://127.0.0.1:30000/v1/chat/completions", json.dumps(body).encode(), headers)
print(u.urlopen(asked, timeout=20).status)"""


STACK: dict[str, Any] = {
    "monitoring_stack": True,
    "monitoring_images": {**IMAGES, "grafana": ""},
}
# This group has no fallback. No panel shows these metrics.
ABSENT = re.compile(r"gb10_fallback_\w+")
METRIC = re.compile(r"(?:gb10|kube|node|DCGM|apiserver|serviceaccount|sglang)[_:]\w+")
# Alerts that wait for longer than these tests may take, or for what no fault of the lab is, and limits that all meet.
RELAXED = {
    "Gb10TransportNotProven": (" == 0", " >= 0"),
    "Gb10MemoryPressure": (" < 0.03", " < 2"),
    "Gb10DiskFull": (" < 0.08 and node_filesystem_avail_bytes < 50e9", " < 2"),
    "Gb10CertificateExpires": (" < 2592000", " < 1e12"),
    "Gb10TokenStale": (" > 0", " >= 0"),
}
# The links of the lab have no speed that matters; a rate needs some samples.
CHOSEN = {"$__rate_interval": "2m", "$group": ".*", "$host": ".*"}


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand], tmp_path_factory: pytest.TempPathFactory) -> WatchedSite:
    values = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}, "gateway_image": NAME}
    made = WatchedSite.deployed(make_lab(), nodes=2, **values)
    nodes = [node["metadata"]["name"] for node in made.get("nodes")["items"]]
    for name, archive in (("monitoring", monitoring_images), ("gateway", gateway_image)):
        made.import_image(archive(tmp_path_factory.mktemp(name)), nodes)
    made.play("serve")
    made.play("gateway")
    return made


def test_a_cluster_without_the_operator_or_the_namespace_is_refused(site: WatchedSite) -> None:
    said = " ".join(site.play("monitoring", check=False).split())
    assert "The cluster lacks podmonitors.monitoring.coreos.com and prometheusrules.monitoring.coreos.com" in said
    manifests = (built() / "operator.yaml").read_text()
    site.kubectl("--namespace=default", "apply", "--server-side", "-f", "-", stdin=manifests)
    for kind in ("podmonitors", "prometheusrules", "prometheuses"):
        site.kubectl("wait", "--for=condition=Established", f"crd/{kind}.monitoring.coreos.com")
    assert "Namespace monitoring does not exist" in " ".join(site.play("monitoring", check=False).split())


def test_the_objects_say_what_is_scraped_and_who_may(site: WatchedSite) -> None:
    site.kubectl("create", "namespace", "monitoring")
    assert changed(site.play("monitoring")) == 2
    found = {(item["kind"], item["metadata"]["name"]): item for item in site.get(OBJECTS, *OURS)["items"]}
    assert "{{ $labels.group }}" in json.dumps(found["PrometheusRule", "gb10-cluster"]["spec"])
    assert "{{group}} rank {{rank}}" in found["ConfigMap", "gb10-dashboards"]["data"]["gb10-transport.json"]
    policy = site.get("networkpolicy", "gb10-monitoring")["spec"]
    assert {port["port"] for port in policy["ingress"][0]["ports"]} == {"transport", "http"}
    # A closed namespace has rank pods of all roles; the policy that closes them exists here.
    assert ["head", "worker"] in [one.get("values") for one in policy["podSelector"]["matchExpressions"]]


def test_the_owners_prometheus_scrapes_the_ranks_and_the_gateway_and_has_all_alerts(site: WatchedSite) -> None:
    space = "--namespace=monitoring"
    site.kubectl(space, "create", "serviceaccount", "owner")
    may = ("--verb=get,list,watch", "--resource=pods,services,endpoints")
    site.kubectl("create", "clusterrole", "owner", *may)
    site.kubectl("create", "clusterrolebinding", "owner", "--clusterrole=owner", "--serviceaccount=monitoring:owner")
    site.kubectl("--namespace=default", "rollout", "status", "deployment/prometheus-operator", "--timeout=120s")
    site.kubectl(space, "apply", "-f", "-", stdin=json.dumps(PROMETHEUS))
    site.kubectl(space, "wait", "--for=condition=Available", "prometheus/owner", "--timeout=240s")
    site.prometheus = "statefulset/prometheus-owner"
    site.until("count(up == 1) == 4", 90)
    found = [one["metric"] for one in site.query("up")]
    # As by the stack of the role: the series of a rank have the same labels, whoever scrapes it.
    assert {(one["job"], one["container"], one.get("rank")) for one in found} == {
        ("monitoring/gb10-serving", "transport", "0"),
        ("monitoring/gb10-serving", "transport", "1"),
        ("monitoring/gb10-serving", "sglang", "0"),
        ("monitoring/gb10-gateway", "gateway", None),
    }
    assert all({"group", "node", "revision", "uid"} <= one.keys() for one in found if "rank" in one)
    proven = {one["metric"]["rank"]: one["metric"] for one in site.query("gb10_transport_proven == 1")}
    assert {rank: one["group"] for rank, one in proven.items()} == {"0": site.group, "1": site.group}
    assert [one["metric"]["group"] for one in site.query("sglang:num_running_reqs")] == [site.group]
    rules = site.read(site.prometheus, "http://127.0.0.1:9090/api/v1/rules?type=alert")["data"]["groups"]
    loaded = {rule["name"]: rule["health"] for group in rules for rule in group["rules"]}
    assert loaded == {rule["alert"]: "ok" for rule in RULES}
    assert site.kubectl("exec", "deployment/gb10-gateway", "--", "python3", "-c", CHAT).strip() == "200"
    # The operator gives every target a label "endpoint", which must not replace the gateway's own.
    site.until('{job="monitoring/gb10-gateway", endpoint="chat"}', 60)


def test_the_stack_does_not_take_over_the_namespace_of_an_owner(site: WatchedSite) -> None:
    said = " ".join(site.play("monitoring", check=False, **STACK).split())
    assert "Namespace monitoring exists and is not of this role" in said
    site.kubectl("delete", "namespace", "monitoring", "--timeout=120s")
    site.prometheus = "deployment/prometheus"


def test_the_stack_runs_and_finds_all_that_it_reads(site: WatchedSite) -> None:
    site.play("monitoring", **STACK)
    site.until("count(up == 1) == 11", 90)
    assert site.query("up == 0") == []
    found = {(one["metric"]["job"], one["metric"].get("rank", "")) for one in site.query("up")}
    ranks = {("transport", "0"), ("transport", "1"), ("sglang", "0")}
    others = ("gateway", "node-exporter", "dcgm-exporter", "kube-state-metrics", "apiserver")
    assert found == ranks | {(name, "") for name in others}
    assert changed(site.play("monitoring", **STACK)) == 0


def panels() -> list[tuple[str, str]]:
    """Return the title and the query of every query of the dashboards."""
    return [
        (f"{path.stem}: {panel['title']}", target["expr"])
        for path in sorted(FILES.glob("dashboards/*.json"))
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    ]


def test_every_panel_has_data_and_every_alert_its_metrics(site: WatchedSite) -> None:
    site.in_head("python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--measure", "64")
    asked = {name for rule in RULES for name in METRIC.findall(rule["expr"])}
    asked |= {name for _title, query in panels() for name in METRIC.findall(query)}
    here = {one["metric"]["__name__"] for one in site.query('count by (__name__) ({__name__!=""})')}
    assert {name for name in asked - here if not ABSENT.fullmatch(name)} == set()
    for title in ("Time to the first token", "Time between tokens"):
        (median,) = [query for name, query in panels() if name == f"group: {title}" and "0.50" in query]
        (value,) = site.until(chosen(median), 60)
        assert 0 < float(value["value"][1]) < 10
    assert [name for name, query in panels() if not site.query(chosen(query))] == []


@pytest.mark.parametrize("alert", RELAXED)
def test_an_alert_without_its_fault_reads_the_series_of_the_lab(site: WatchedSite, alert: str) -> None:
    """Labels that do not fit would be no error of a query, but an alert that never fires."""
    (rule,) = [rule for rule in RULES if rule["alert"] == alert]
    limit, met = RELAXED[alert]
    assert rule["expr"].count(limit) == 1
    site.until(rule["expr"].replace(limit, met), 60)


def chosen(query: str) -> str:
    """Return a query of a panel with the values that Grafana fills in."""
    for name, value in CHOSEN.items():
        query = query.replace(name, value)
    return query


def test_a_slow_gpu_is_seen_with_its_reason(site: WatchedSite) -> None:
    """Its alert fires after ten minutes, which is longer than this test may take: it is pending here."""
    pods = site.get("pods", "--namespace=monitoring", "-l", "app.kubernetes.io/name=dcgm-exporter")["items"]
    (pod,) = [one["metadata"]["name"] for one in pods if one["spec"]["nodeName"] == "spark2"]
    slow = json.dumps({"DCGM_FI_DEV_SM_CLOCK": 721, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4})
    site.kubectl("--namespace=monitoring", "exec", "-i", pod, "--", "tee", "/tmp/gpu.json", stdin=slow)
    (alert,) = site.until('ALERTS{alertname="Gb10GpuThrottled", alertstate="pending"}', 60)
    assert (alert["metric"]["instance"], alert["metric"]["gpu"]) == ("spark2", "0")
    (limit,) = [query for name, query in panels() if name.startswith("node: Reasons") and "/ 4)" in query]
    assert [one["metric"]["instance"] for one in site.query(f"{chosen(limit)} == 1")] == ["spark2"]


def test_a_stopped_rank_that_the_supervisor_replaces_counts_as_a_restart_of_its_pod(site: WatchedSite) -> None:
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


def set_link(site: WatchedSite, port: str, state: str) -> None:
    """Set the switch's end of a cable or of a VF up or down, from outside the hosts."""
    lab = Lab(site.lab.state, site.lab.state).name
    subprocess.run(["ip", "-n", lab, "link", "set", port, state], check=True, timeout=30)


def test_a_link_that_goes_down_twice_fires_its_alert(site: WatchedSite) -> None:
    for _time in range(2):
        set_link(site, "spark1-r0", "down")
        time.sleep(2)
        set_link(site, "spark1-r0", "up")
        time.sleep(2)
    (alert,) = site.fired("Gb10LinkFlapping", 90)
    assert (alert["instance"], alert["device"]) == ("spark1", "enp1s0f0np0")


def test_a_pulled_cable_fires_its_alert(site: WatchedSite) -> None:
    """The supervisor replaces the group a minute after the cable was pulled, so that the series end for a while."""
    set_link(site, "spark2-r1v0", "down")
    try:
        (alert,) = site.fired("Gb10TransportLost", 210)
    finally:
        set_link(site, "spark2-r1v0", "up")
    assert (alert["group"], alert["rank"], alert["node"], alert["reason"]) == (site.group, "1", "spark2", "LinkDown")


def test_a_group_over_tcp_on_nodes_with_little_memory_fires_both_alerts(site: WatchedSite) -> None:
    """The ranks get a setting that turns RDMA off, and their sidecars a limit that every node is below."""
    for rank in (0, 1):
        found = json.dumps(site.get("statefulset", f"{site.group}-{rank}"))
        low = re.sub(r'(\\"memory\\": {\\"warn\\": )[\d.]+', r"\g<1>100", found)
        assert low != found
        site.kubectl("replace", "-f", "-", stdin=low)
        site.kubectl("set", "env", f"statefulset/{site.group}-{rank}", "-c", "sglang", "NCCL_IB_DISABLE=1")
    site.kubectl("delete", "pod", "-l", f"gb10.cluster/instance={site.group},gb10.cluster/rank")
    assert {one["rank"] for one in site.fired("Gb10GroupMemory", 180)} <= {"0", "1"}
    alerts = site.fired("Gb10TransportNotRdma", 240)
    assert {(one["group"], one["severity"]) for one in alerts} == {(site.group, "critical")}
    # The cable of the test before this one is back.
    site.until('ALERTS{alertname="Gb10TransportLost"}', 60, there=False)


def test_one_variable_removes_the_stack(site: WatchedSite) -> None:
    site.play("monitoring", monitoring_state="absent", **STACK)
    left = site.kubectl("get", "namespaces,clusterroles,clusterrolebindings", "-o", "name")
    assert "namespace/monitoring" not in left.split()
    assert "gb10-prometheus" not in left
    ours = ("-A", "-l", "app.kubernetes.io/part-of=gb10-monitoring", "-o", "name")
    assert site.kubectl("get", "roles,rolebindings", *ours) == ""
