# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the objects of role monitoring's own stack: pinned images, few rights, no part that was left out."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles" / "monitoring"
PLAY = [
    {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            "role_path": str(ROLE),
            "monitoring_spaces": {"results": [{"resources": []}]},
            "monitoring_secret": {},
        },
        "vars_files": [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")],
        "tasks": [
            {
                "ansible.builtin.template": {
                    "src": str(ROLE / "templates/stack.yml.j2"),
                    "dest": "{{ out }}",
                    "mode": "0600",
                }
            },
        ],
    }
]
PODS = ("Deployment", "DaemonSet")


def rendered(scratch: Path, **values: Any) -> list[dict[str, Any]]:
    """Return the objects that the role applies with these variables."""
    (scratch / "play.yml").write_text(json.dumps(PLAY))
    values |= {
        "out": str(scratch / "stack.yml"),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    words = ["-i", "localhost,", scratch / "play.yml", "-e", json.dumps(values)]
    done = ansible("ansible-playbook", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return [one for one in yaml.safe_load_all((scratch / "stack.yml").read_text()) if one]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = rendered(tmp_path_factory.mktemp("stack"))
    return {(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")): o for o in found}


def pods(objects: Any) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o["spec"]["template"] for o in objects if o["kind"] in PODS}


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


def test_a_part_without_an_image_is_left_out_and_another_registry_is_used(tmp_path: Path) -> None:
    images = {"grafana": "", "dcgm-exporter": "", "prometheus": "registry.lan/prometheus:v3.5.0"}
    found = pods(rendered(tmp_path, monitoring_images=images, monitoring_storage="20Gi"))
    assert sorted(found) == ["alertmanager", "kube-state-metrics", "node-exporter", "prometheus"]
    assert found["prometheus"]["spec"]["containers"][0]["image"] == "registry.lan/prometheus:v3.5.0"
    assert found["prometheus"]["spec"]["volumes"][0] == {
        "name": "data",
        "persistentVolumeClaim": {"claimName": "prometheus"},
    }


def test_the_revision_of_a_pod_follows_what_it_reads_when_it_starts(tmp_path: Path, stack: dict[Any, Any]) -> None:
    def revisions(objects: Any) -> dict[str, str]:
        return {name: pod["metadata"]["labels"].get("gb10.cluster/revision", "") for name, pod in pods(objects).items()}

    before, after = revisions(stack.values()), revisions(rendered(tmp_path, monitoring_secret={"versions": ["7"]}))
    assert {name for name in before if before[name] != after[name]} == {"alertmanager", "grafana"}


def test_the_servers_tolerate_what_the_groups_tolerate(tmp_path: Path) -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    made = rendered(tmp_path, sglang_tolerations=[taint])
    servers = [one for one in made if one["kind"] == "Deployment"]
    assert servers
    assert [one["spec"]["template"]["spec"]["tolerations"] for one in servers] == [[taint]] * len(servers)
