# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a group loses the node of its head, serves its fallback on the other nodes, proves it, and returns.

One lab, in the order of this file. The seconds from the limit to the fallback, and from the node's return to the
planned preset, are printed (``pytest -s`` or the report of a failure).
"""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site, is_ready, revisions

COVERS = (
    "plugins/module_utils/_pod",
    "plugins/filter/serving_fallback.yml",
    "playbooks/serve.yml",
    "playbooks/serve_status.yml",
)

GROUP = "gemma-4-31b-it"
AFTER, RETURN_AFTER = 20, 20
# The limit for the lab, where a model loads in seconds.
LIMIT = 60
LOST = "spark1"
NODES = 4
WANTED = {
    "preset": "current",
    "serving_plan_fallback_preset": "two-nodes",
    "serving_plan_fallback_after": AFTER,
    "serving_plan_fallback_return_after": RETURN_AFTER,
}


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    yield Site.deployed(make_lab(), NODES)


def fallback_pods(site: Site) -> list[dict[str, Any]]:
    """Return the pods of the fallback."""
    selector = f"--selector=gb10.cluster/instance={GROUP},gb10.cluster/rank,gb10.cluster/fallback"
    found = site.get("pods", selector)["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def planned_pods(site: Site) -> list[dict[str, Any]]:
    """Return the pods of the planned preset."""
    return [pod for pod in site.pods() if "gb10.cluster/fallback" not in pod["metadata"]["labels"]]


def stamp(pod_or_node: dict[str, Any], kind: str) -> datetime:
    """Return when a condition changed last."""
    conditions = {one["type"]: one for one in pod_or_node["status"]["conditions"]}
    return datetime.fromisoformat(conditions[kind]["lastTransitionTime"])


def proven(pod: dict[str, Any]) -> bool:
    """Return whether a rank has proven its transport since its start."""
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
    return conditions.get("gb10.cluster/transport") == "True"


def timeline(site: Site) -> str:
    """Return when the pods of the fallback took each step of their start, and what the switch said."""
    lines = []
    for pod in fallback_pods(site):
        started = [one["state"].get("running", {}).get("startedAt") for one in pod["status"]["containerStatuses"]]
        steps = {one["type"]: one["lastTransitionTime"] for one in pod["status"]["conditions"]}
        lines.append(f"{pod['metadata']['name']}: created {pod['metadata']['creationTimestamp']}, {started}, {steps}")
    for what, container in ((f"deploy/{GROUP}-fallback", "switch"), (f"{GROUP}-f2-1-0-0", "sglang")):
        lines.append(site.ask("logs", what, "-c", container, "--timestamps", "--tail=40").stdout)
    return "\n".join(lines)


def served_ranks(site: Site) -> int:
    """Return the number of ranks of the server that answers behind the group's Service."""
    path = f"/api/v1/namespaces/{site.namespace}/services/{GROUP}:http/proxy/server_info"
    return int(json.loads(site.kubectl("get", "--raw", path))["tp_size"])


def wait(what: Callable[[], bool], patience: float, site: Site) -> None:
    """Wait until something is true."""
    end = time.monotonic() + patience
    while not what():
        logs = ("logs", f"deploy/{GROUP}-fallback", "-c", "switch", "--tail=20")
        assert time.monotonic() < end, site.kubectl("get", "pods,nodes", "-o", "wide") + site.ask(*logs).stdout
        time.sleep(2)


def kept(site: Site) -> dict[str, Any]:
    """Return the status that the switch keeps."""
    return dict(json.loads(site.get("configmap", f"{GROUP}-fallback")["data"]["status"]))


def test_the_planned_preset_serves_and_the_fallback_waits(cluster: Site) -> None:
    cluster.play("serve", **WANTED)
    assert len(cluster.pods()) == NODES
    assert all(map(is_ready, cluster.pods()))
    assert all(map(proven, cluster.pods()))
    assert fallback_pods(cluster) == []
    assert served_ranks(cluster) == NODES


def lose(site: Site) -> None:
    """Restart a host without its agent, so that nothing of Kubernetes runs there, and wait for the fallback."""
    site.lab.shell(LOST, "systemctl disable k3s-agent")
    site.lab("reboot", LOST)
    wait(lambda: kept(site)["serving"] != "main", 240, site)
    wait(lambda: len(fallback_pods(site)) == 2 and all(map(is_ready, fallback_pods(site))), 180, site)


def test_the_fallback_serves_soon_after_the_limit(cluster: Site) -> None:
    # The switch itself runs on the node that is lost.
    others = [f"spark{number}" for number in range(2, NODES + 1)]
    cluster.kubectl("cordon", *others)
    cluster.kubectl("delete", "pod", "-l", f"gb10.cluster/instance={GROUP},gb10.cluster/fallback=switch")
    cluster.kubectl("rollout", "status", f"deploy/{GROUP}-fallback", "--timeout=60s")
    cluster.kubectl("uncordon", *others)
    lose(cluster)
    pods = fallback_pods(cluster)
    assert all(map(proven, pods))
    assert {pod["spec"]["nodeName"] for pod in pods} == {"spark2", "spark3"}
    assert served_ranks(cluster) == 2
    limit = stamp(cluster.get("node", LOST), "Ready").timestamp() + AFTER
    seconds = max(stamp(pod, "Ready").timestamp() for pod in pods) - limit
    print(f"the fallback serves {seconds:.0f} s after the limit")
    assert seconds <= LIMIT, timeline(cluster)
    assert "FallbackNodeLost" in cluster.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")


def test_the_fallback_has_a_verdict_and_a_status(cluster: Site) -> None:
    # With the plan of the planned preset it would fail, because none of that plan's pods runs.
    cluster.play("verify", "--limit", f"all:!{LOST}", "--tags", "always,verify", **WANTED)
    status = " ".join(cluster.play("serve_status", "--limit", f"all:!{LOST}", instance=GROUP).split())
    assert "Fallback: in use since" in status
    assert "preset two-nodes serves on spark2, spark3" in status
    assert "is ready" in status


def test_a_run_of_serve_leaves_the_fallback_alone_and_says_so(cluster: Site) -> None:
    before = {pod["metadata"]["uid"] for pod in fallback_pods(cluster)}
    said = " ".join(cluster.play("serve", "--limit", f"all:!{LOST}", check=False, **WANTED).split())
    assert "runs its fallback; no group was changed" in said
    assert {pod["metadata"]["uid"] for pod in fallback_pods(cluster)} == before


def test_the_planned_preset_returns_with_the_node(cluster: Site) -> None:
    cluster.lab.shell(LOST, "systemctl enable --now k3s-agent")
    began = time.monotonic()
    wait(lambda: kept(cluster)["serving"] == "main", 180, cluster)
    wait(lambda: len(planned_pods(cluster)) == NODES and all(map(is_ready, planned_pods(cluster))), 240, cluster)
    print(f"the planned preset serves {time.monotonic() - began:.0f} s after the return of the node")
    assert fallback_pods(cluster) == []
    assert all(map(proven, planned_pods(cluster)))
    assert len(revisions(planned_pods(cluster))) == 1
    assert served_ranks(cluster) == NODES


def test_the_planned_preset_is_proven_again_and_a_second_run_changes_nothing(cluster: Site) -> None:
    cluster.play("verify", **WANTED)
    assert changed(cluster.play("serve", **WANTED)) == 0


def test_stopping_deletes_everything_also_while_the_node_is_gone(cluster: Site) -> None:
    lose(cluster)
    # Pods of a lost node are forgotten a minute after they should have ended.
    time.sleep(75)
    cluster.play("serve_stop", "--limit", f"all:!{LOST}", instance=GROUP)
    assert cluster.pods() == []
    kinds = "sts,deploy,svc,cm,sa,pdb,role,rolebinding,clusterrole,clusterrolebinding"
    assert cluster.kubectl("get", kinds, "-l", f"gb10.cluster/instance={GROUP}", "-o", "name") == ""


def test_all_mistakes_of_a_fallback_are_named_before_anything_changes(cluster: Site) -> None:
    wrong = {"serving_plan_fallback_preset": "baseline", "serving_plan_fallback_after": 1}
    said = " ".join(cluster.play("serve", check=False, **WANTED | wrong).split())
    for rule in ("nodes", "image", "seconds"):
        assert f"[serving.fallback.{rule}]" in said
    assert cluster.pods() == []
