# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the objects of role monitoring's own stack: pinned images, few rights, no part that was left out."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible
from kube_schema import validate

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles" / "monitoring"
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}
IMAGES = {"grafana": "", "dcgm-exporter": "", "prometheus": "registry.lan/prometheus:v3.5.0"}
# Variables of the stacks that these tests look at
STACKS: dict[str, dict[str, Any]] = {
    "default": {},
    "partial": {"monitoring_images": IMAGES, "monitoring_storage": "20Gi"},
    "changed": {"monitoring_secret": {"versions": ["7"]}},
    "wanted": {"sglang_tolerations": [TAINT], "gb10_image_pull_secrets": ["registry"]},
}
Stack = list[dict[str, Any]]
PODS = ("Deployment", "DaemonSet")


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    """Return the objects of each stack that the role applies. One play makes all, a host for each."""
    scratch = tmp_path_factory.mktemp("stacks")
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    known = {"role_path": str(ROLE), "monitoring_spaces": {"results": [{"resources": []}]}, "monitoring_secret": {}}
    files = [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml"), "{{ inventory_hostname }}.yml"]
    made = {"src": str(ROLE / "templates/stack.yml.j2"), "dest": f"{scratch}/{{{{ inventory_hostname }}}}.made"}
    tasks = [{"ansible.builtin.template": {**made, "mode": "0600"}}]
    play = {"hosts": "all", "gather_facts": False, "vars": known, "vars_files": files, "tasks": tasks}
    (scratch / "play.yml").write_text(json.dumps([play]))
    (scratch / "hosts.yml").write_text(json.dumps({"all": {"hosts": dict.fromkeys(STACKS), "vars": local}}))
    for name, values in STACKS.items():
        (scratch / f"{name}.yml").write_text(json.dumps(values))
    done = ansible("ansible-playbook", "-i", scratch / "hosts.yml", scratch / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: [o for o in yaml.safe_load_all((scratch / f"{name}.made").read_text()) if o] for name in STACKS}


@pytest.fixture(scope="module")
def stack(stacks: dict[str, Stack]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")): o for o in stacks["default"]}


def pods(objects: Any) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o["spec"]["template"] for o in objects if o["kind"] in PODS}


def test_every_object_has_the_schema_of_kubernetes(stacks: dict[str, Stack]) -> None:
    for made in stacks.values():
        assert validate(made) == [one["kind"] for one in made]


def test_every_image_is_pinned_by_digest(stack: dict[Any, Any]) -> None:
    images = [pod["spec"]["containers"][0]["image"] for pod in pods(stack.values()).values()]
    assert len(images) == 6
    assert all(re.fullmatch(r"[a-z0-9./-]+:v?[0-9.-]+@sha256:[0-9a-f]{64}", image) for image in images), images


def test_no_part_but_the_one_of_the_gpu_runs_as_root_or_writes_to_its_image(stack: dict[Any, Any]) -> None:
    for name, pod in pods(stack.values()).items():
        (container,) = pod["spec"]["containers"]
        allowed = container["securityContext"]
        assert container["resources"]["limits"]["memory"]
        if name != "dcgm-exporter":
            assert allowed["allowPrivilegeEscalation"] is False and allowed["capabilities"] == {"drop": ["ALL"]}
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True and allowed["readOnlyRootFilesystem"] is True
        # Only what asks the API has a token of it.
        assert pod["spec"]["automountServiceAccountToken"] is (name in ("prometheus", "kube-state-metrics"))


def test_the_accounts_may_only_read(stack: dict[Any, Any]) -> None:
    rules = [
        rule for (kind, _name, _space), o in stack.items() if kind in ("Role", "ClusterRole") for rule in o["rules"]
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {part for rule in rules for part in rule.get("resources", [])} == {"pods", "services", "endpoints"}


def test_all_that_the_role_puts_outside_its_namespace_is_removed(stack: dict[Any, Any]) -> None:
    # The names are plain text but for the namespace of the groups.
    listed = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__monitoring_outside"]
    removed = {(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")) for o in listed}
    made = {(kind, name, space) for kind, name, space in stack if space != "monitoring"}
    groups = {"gb10-serving": "{{ monitoring_serving_namespace }}"}
    assert {(kind, name, groups.get(space, space)) for kind, name, space in made} == removed


def test_a_part_without_an_image_is_left_out_and_another_registry_is_used(stacks: dict[str, Stack]) -> None:
    found = pods(stacks["partial"])
    assert sorted(found) == ["alertmanager", "kube-state-metrics", "node-exporter", "prometheus"]
    assert found["prometheus"]["spec"]["containers"][0]["image"] == "registry.lan/prometheus:v3.5.0"
    assert found["prometheus"]["spec"]["volumes"][0] == {
        "name": "data",
        "persistentVolumeClaim": {"claimName": "prometheus"},
    }


def test_the_revision_of_a_pod_follows_what_it_reads_when_it_starts(stacks: dict[str, Stack]) -> None:
    def revisions(objects: Stack) -> dict[str, str]:
        return {name: pod["metadata"]["labels"].get("gb10.cluster/revision", "") for name, pod in pods(objects).items()}

    before, after = revisions(stacks["default"]), revisions(stacks["changed"])
    assert {name for name in before if before[name] != after[name]} == {"alertmanager", "grafana"}


def test_the_pods_are_as_the_owner_of_the_cluster_wants_them(stacks: dict[str, Stack]) -> None:
    servers = [one for one in stacks["wanted"] if one["kind"] == "Deployment"]
    assert servers
    assert [one["spec"]["template"]["spec"]["tolerations"] for one in servers] == [[TAINT]] * len(servers)
    # Kubernetes gives the Secrets of a service account to its pods.
    accounts = {one["metadata"]["name"]: one for one in stacks["wanted"] if one["kind"] == "ServiceAccount"}
    used = {pod["spec"].get("serviceAccountName", "default") for pod in pods(stacks["wanted"]).values()}
    assert used == set(accounts)
    assert [one["imagePullSecrets"] for one in accounts.values()] == [[{"name": "registry"}]] * len(accounts)
    assert not [one for one in stacks["default"] if "imagePullSecrets" in one]


def test_no_pod_has_an_empty_list_which_the_api_would_not_keep(stacks: dict[str, Stack]) -> None:
    assert not [name for name, pod in pods(stacks["default"]).items() if "[]" in json.dumps(pod)]


def test_no_pod_of_the_stack_can_fill_the_disk_of_a_node(stacks: dict[str, Stack]) -> None:
    for name, objects in stacks.items():
        found = pods(objects)
        volumes = [volume for pod in found.values() for volume in pod["spec"].get("volumes", [])]
        assert volumes and all(volume["emptyDir"].get("sizeLimit") for volume in volumes if "emptyDir" in volume)
        arguments = found["prometheus"]["spec"]["containers"][0]["args"]
        assert f"--storage.tsdb.retention.size={'0' if name == 'partial' else '8GB'}" in arguments
