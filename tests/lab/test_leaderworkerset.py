# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a group of two ranks with the real LeaderWorkerSet controller on the lab's real Kubernetes.

One lab, in the order of this file. The controller is built from its project's Go module (lab/kubernetes/lws).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from labcommand import CHECKOUT, LabCommand, changed
from sitecommand import CACHE, Site, incarnations, is_ready, revisions

COVERS = ("lab/kubernetes/lws", "plugins/plugin_utils/_serving", "plugins/action/serving_objects.py", "roles/sglang")

GROUP = "gemma-4-31b-it"
NODES = ("spark1", "spark2")
VALUES = {
    "serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}},
    "serving_plan_workload": "leaderworkerset",
}


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    yield Site.deployed(make_lab(), nodes=len(NODES))


def refused(cluster: Site) -> None:
    """Check that the group is refused before anything changes, because the kind of its workload is unknown."""
    output = cluster.play("serve", check=False, **VALUES)
    assert "The cluster has no LeaderWorkerSets, so group" in " ".join(output.split())
    assert changed(output) == 0
    assert cluster.kubectl("get", "all,cm,sa", "-l", f"gb10.cluster/instance={GROUP}", "-o", "name") == ""


def test_without_its_controller_it_is_refused_before_anything_changes(cluster: Site) -> None:
    refused(cluster)


def test_the_controller_is_installed_by_its_own_manifests(cluster: Site) -> None:
    subprocess.run([CHECKOUT / "lab" / "kubernetes" / "prepare", "--lws"], check=True, timeout=900)
    cluster.import_image(CACHE / "lws" / "image.tar", (n["metadata"]["name"] for n in cluster.get("nodes")["items"]))
    manifests = (CACHE / "lws" / "lws.yaml").read_text()
    cluster.kubectl("--namespace=lws-system", "apply", "--server-side", "-f", "-", stdin=manifests)
    waiting = ("rollout", "status", "deployment/lws-controller-manager", "--timeout=240s")
    cluster.kubectl("--namespace=lws-system", *waiting)


def test_a_group_is_served_proved_and_left_alone(cluster: Site) -> None:
    assert changed(cluster.play("serve", **VALUES)) > 0
    pods = cluster.pods()
    assert [pod["spec"]["nodeName"] for pod in pods] == list(NODES)
    assert [pod["metadata"]["name"] for pod in pods] == [f"{GROUP}-0-0", f"{GROUP}-0-0-1"]
    assert all(map(is_ready, pods))
    cluster.play("verify", **VALUES)
    assert changed(cluster.play("serve", **VALUES)) == 0
    assert incarnations(cluster.pods()) == incarnations(pods)


def test_a_preset_replaces_the_group_as_a_whole(cluster: Site) -> None:
    before = cluster.pods()
    cluster.play("serve", preset="mtp-6", **VALUES)
    after = cluster.pods()
    assert {p["metadata"]["uid"] for p in before}.isdisjoint(p["metadata"]["uid"] for p in after)
    assert len(revisions(after)) == 1
    assert revisions(after) != revisions(before)


@pytest.mark.parametrize(
    ("what", "node", "rank", "signal"),
    [("worker", "spark2", 1, "KILL"), ("head", "spark1", 0, "KILL"), ("worker", "spark2", 1, "STOP")],
)
def test_a_disturbed_group_comes_back_as_a_whole(cluster: Site, what: str, node: str, rank: int, signal: str) -> None:
    before = incarnations(cluster.pods())
    cluster.signal(node, rank, signal)
    print(f"{what}, SIG{signal}: ready again after {cluster.wait_ready(before, 2):.0f} s")
    cluster.play("verify", preset="mtp-6", **VALUES)


def test_back_to_stateful_sets_and_away(cluster: Site) -> None:
    cluster.play("serve", preset="mtp-6", serving_plan_overrides=VALUES["serving_plan_overrides"])
    assert cluster.get("leaderworkersets")["items"] == []
    assert [pod["metadata"]["name"] for pod in cluster.pods()] == [f"{GROUP}-0-0", f"{GROUP}-1-0"]
    cluster.play("serve", preset="mtp-6", **VALUES)
    assert cluster.get("statefulsets", f"--selector=gb10.cluster/instance={GROUP},gb10.cluster/rank")["items"] == []
    cluster.play("serve_stop", instance=GROUP)
    left = cluster.kubectl("get", "all,cm,sa,lws", "-l", f"gb10.cluster/instance={GROUP}", "-o", "name")
    assert left == ""


def test_it_is_refused_again_when_the_kind_has_been_removed(cluster: Site) -> None:
    # The client keeps the list of kinds in a file; the runs before have written it.
    cluster.kubectl("delete", "crd", "leaderworkersets.leaderworkerset.x-k8s.io")
    refused(cluster)
