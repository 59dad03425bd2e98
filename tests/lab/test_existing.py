# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve, prove and stop a group with exactly the printed rights on a cluster that belongs to somebody else.

One lab of two nodes, in the order of this file. Multus and the device plugins are DaemonSets with the names that other
projects give them, the kubeconfig is called admin.conf, and there are a StorageClass and objects of others.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from labcommand import LabCommand, changed
from sitecommand import Site, incarnations, is_ready

COVERS = (
    "roles/existing_cluster",
    "playbooks/rights.yml",
    "playbooks/render.yml",
    "docs/existing.md",
    "docs/gitops.md",
    "plugins/modules/existing_cluster_info.py",
)

NAMESPACE, USER = "gb10-serving", "gb10-deployer"
TWO = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}}
# Everything that the owner of the cluster may have, except what changes by itself.
FOREIGN = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,services,networkpolicies,secrets"
CLUSTER = "clusterroles,clusterrolebindings,storageclasses,customresourcedefinitions,namespaces,runtimeclasses"
THEIRS = {"gb10-multus": "kube-multus-ds", "gb10-gpu-plugin": "nvidia-device-plugin-daemonset"}
EXISTING = {"gb10_kubernetes_provider": "existing"}
STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "theirs", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "theirs.example/disks",
}


def disowned(site: Site, mine: str, name: str) -> None:
    """Replace a DaemonSet of the collection by an equal one of somebody else, which takes over the pods."""
    system = "--namespace=kube-system"
    item = json.loads(site.kubectl(system, "get", "daemonset", mine, "-o", "json"))
    site.kubectl(system, "delete", "daemonset", mine, "--cascade=orphan")
    theirs = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": item["spec"]}
    site.kubectl(system, "create", "-f", "-", stdin=json.dumps(theirs))
    site.kubectl(system, "rollout", "status", f"daemonset/{name}", "--timeout=120s")


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site.deployed(make_lab(), nodes=2, **TWO)
    for mine, name in THEIRS.items():
        disowned(made, mine, name)
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"a": "b"}}
    made.kubectl("apply", "-f", "-", stdin=json.dumps(STORAGE))
    made.kubectl("apply", "-f", "-", stdin=json.dumps(theirs))
    return made


@pytest.fixture(scope="module")
def account(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the variables with which playbooks use the kubeconfig of a service account without any rights."""
    site.kubectl("create", "serviceaccount", USER)
    config = yaml.safe_load((site.lab.state / "kubeconfig").read_text(encoding="utf-8"))
    token = site.kubectl("create", "token", USER, "--duration=4h").strip()
    (cluster,) = (c["cluster"] for c in config["clusters"] if c["name"] == "gb10")
    own = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "theirs", "cluster": cluster}],
        "users": [{"name": USER, "user": {"token": token}}],
        "contexts": [{"name": "theirs", "context": {"cluster": "theirs", "user": USER}}],
    }
    path: Path = tmp_path_factory.mktemp("kubernetes") / "admin.conf"
    path.write_text(yaml.safe_dump(own), encoding="utf-8")
    path.chmod(0o600)
    return {"gb10_kubeconfig": str(path), "gb10_kube_context": "theirs"}


@pytest.fixture(scope="module")
def role(site: Site, account: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what playbook rights prints for the namespace; that it can run without any rights is part of the test."""
    site.play("rights", **account)
    text = (site.lab.results / f"rights-{site.group}.yml").read_text(encoding="utf-8")
    found = [document for document in yaml.safe_load_all(text) if document]
    return [document for document in found if document["kind"] in ("Role", "RoleBinding")]


@pytest.fixture(scope="module")
def user(site: Site, account: dict[str, Any], role: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the variables of the service account, after it got exactly the printed rights of the namespace."""
    for document in role:
        site.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    return account


def foreign(site: Site) -> dict[str, Any]:
    """Return all objects that do not belong to the group, by kind, namespace and name, without status."""
    found = {}
    for words in ((FOREIGN, "--all-namespaces"), (CLUSTER,)):
        for item in site.get(*words)["items"]:
            meta = item["metadata"]
            if (meta.get("labels") or {}).get("gb10.cluster/instance") or meta["name"] == "gb10-images":
                continue
            meta = {key: meta.get(key) for key in ("name", "namespace", "labels", "annotations", "uid")}
            rest = {key: value for key, value in item.items() if key not in ("metadata", "status")}
            found[f"{item['kind']} {meta['namespace']}/{meta['name']}"] = {**rest, "metadata": meta}
    return found


def test_the_user_has_no_rights_outside_the_namespace(site: Site, user: dict[str, Any]) -> None:
    where = ("--kubeconfig", user["gb10_kubeconfig"], "--context", "theirs")
    for words in (("list", "nodes"), ("list", "pods", "-n", "kube-system"), ("list", "secrets"), ("get", "pv")):
        answer = site.ask(*where, "auth", "can-i", *words)
        assert answer.stdout.strip() == "no", words


def test_the_rendered_objects_pass_the_strict_validation_of_an_api_server(site: Site) -> None:
    site.play("render", **TWO)
    directory = site.lab.results / f"objects-{site.group}"
    for file in ("group", "networks"):
        words = ("apply", "--server-side", "--validate=strict", "--dry-run=server", "--field-manager=argocd-controller")
        site.kubectl(*words, "--force-conflicts", "-f", str(directory / f"{file}.yml"))


def test_a_field_of_another_manager_is_named_and_taken_only_if_the_owner_says_so(site: Site) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": site.group, "namespace": NAMESPACE}}
    theirs = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-f", "-")
    ports = [{"port": 30000, "protocol": "TCP"}]
    site.kubectl(*theirs, stdin=json.dumps(service | {"spec": {"type": "NodePort", "ports": ports}}))
    said = " ".join(site.play("serve", check=False, **TWO).split())
    assert f"Service {site.group}: .spec.type of argocd-controller" in said
    assert site.get("service", site.group)["spec"]["type"] == "NodePort"
    site.play("serve", gb10_take_fields=True, **TWO)
    assert site.get("service", site.group)["spec"]["type"] == "ClusterIP"
    site.play("serve_stop", instance=site.group)


def test_all_that_is_missing_is_named_at_once_and_nothing_is_made(site: Site) -> None:
    before = foreign(site)
    nowhere = {
        "gb10_namespace": "nowhere",
        "gb10_kube_context": "gb10",
        "existing_cluster_gpu_resource": "theirs.example/gpu",
    }
    said = " ".join(site.play("kubernetes", check=False, sglang_runtime_class="theirs", **EXISTING, **nowhere).split())
    for words in (
        "used: Multus: DaemonSet kube-system/kube-multus-ds, 3 of 3 pods ready, CNI configuration in /",
        "used: GPUs: DaemonSet kube-system/nvidia-device-plugin-daemonset, 2 of 2 pods ready",
        "used: Default StorageClass: theirs",
        "theirs.example/gpu: the node offers 0 and a rank needs 1",
        "the cluster has no RuntimeClass of this name",
        "the namespace does not exist",
    ):
        assert words in said, f"{words}\n{said[-4000:]}"
    assert foreign(site) == before


def test_the_networks_are_defined_without_touching_anything_else(site: Site) -> None:
    nads = [item["metadata"]["name"] for item in site.get("network-attachment-definitions")["items"]]
    site.kubectl("delete", "network-attachment-definitions", "--all")
    before = foreign(site)
    site.play("kubernetes", gb10_kube_context="gb10", **EXISTING)
    assert [item["metadata"]["name"] for item in site.get("network-attachment-definitions")["items"]] == nads
    assert foreign(site) == before


def test_a_group_is_served_proved_shown_and_stopped_with_exactly_these_rights(site: Site, user: dict[str, Any]) -> None:
    before = foreign(site)
    said = site.play("serve", **user, **EXISTING)
    assert changed(said) > 0
    assert "The kubeconfig may not list nodes. Not checked: whether they are ready" in said
    assert "(SIMULATED) in the image accepts the command lines of all 2 ranks." in said
    assert all(map(is_ready, site.pods()))
    assert changed(site.play("serve", **user, **EXISTING)) == 0
    running = incarnations(site.pods())
    # The image of 0.5.23 refuses flags of 0.5.13, for which the plan refuses the default preset with its drafter.
    wrong = {"serving_plan_preset": "baseline", "serving_plan_sglang_version": "0.5.13"}
    wrong |= {"serving_plan_image": "localhost/gb10/sglang-standin:0.5.23", "gb10_sglang_images_from": ""}
    assert "[serving.verdict.refused]" in " ".join(site.play("serve", check=False, **wrong, **user, **EXISTING).split())
    assert incarnations(site.pods()) == running
    site.play("verify", **user, **EXISTING)
    assert "rank 0" in site.play("serve_status", instance=site.group, **user, **EXISTING)
    said = site.play("reset", check=False, gb10_kube_context="gb10", existing_cluster_reset_confirm="yes", **EXISTING)
    assert "Groups run in namespace gb10-serving and hold the VFs" in " ".join(said.split())
    site.play("serve_stop", instance=site.group, **user, **EXISTING)
    assert site.kubectl("get", "all,cm,sa", "-l", f"gb10.cluster/instance={site.group}", "-o", "name") == ""
    assert foreign(site) == before


@pytest.mark.parametrize(
    ("resource", "verb", "playbook"),
    [("pods", "create", "serve"), ("configmaps", "patch", "serve"), ("statefulsets", "list", "serve_status")],
)
def test_a_missing_right_is_named(
    site: Site, role: list[dict[str, Any]], user: dict[str, Any], resource: str, verb: str, playbook: str
) -> None:
    (whole,) = (document for document in role if document["kind"] == "Role")
    rules = json.loads(json.dumps(whole["rules"]))
    for rule in rules:
        if rule["resources"] == [resource] and "resourceNames" not in rule:
            rule["verbs"].remove(verb)
    site.kubectl("apply", "-f", "-", stdin=json.dumps({**whole, "rules": rules}))
    # Without the recorded image every node pulls it again.
    site.kubectl("delete", "configmap", "gb10-images", "--ignore-not-found")
    given = {"instance": site.group} if playbook == "serve_status" else {}
    if playbook == "serve_status":
        site.kubectl("create", "serviceaccount", site.group)
        site.kubectl("label", "serviceaccount", site.group, f"gb10.cluster/instance={site.group}")
    said = " ".join(site.play(playbook, check=False, **user, **given).split())
    site.kubectl("apply", "-f", "-", stdin=json.dumps(whole))
    assert f"cannot {verb} resource {resource} in API group" in re.sub(r'[\\"]', "", said)


def test_a_reset_leaves_the_cluster_to_its_owner(site: Site) -> None:
    site.kubectl("delete", "serviceaccount", site.group, "--ignore-not-found")
    before = foreign(site)
    refused = site.play("backup", check=False, gb10_kube_context="gb10", **EXISTING)
    assert "changes K3s itself" in " ".join(refused.split())
    site.play("reset", gb10_kube_context="gb10", existing_cluster_reset_confirm="yes", **EXISTING)
    assert site.get("network-attachment-definitions")["items"] == []
    assert site.lab.shell("control", "systemctl is-active k3s") == "active"
    assert foreign(site) == before
