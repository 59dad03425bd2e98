# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test with the real API server which pods of each RDMA mode each Pod Security level admits, and that every
manifest of the roles passes strict validation.

GB10_TEST_LAB names the state directory of a lab whose cluster already runs; without it the test starts its own lab.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import attachments
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import manifests, pods
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group
from labcommand import CHECKOUT, LabCommand
from serving_samples import fabric, profile, settings
from sitecommand import Site

COVERS = ("plugins/plugin_utils/_serving", "roles/device_plugins", "roles/multus")

LEVELS = ("privileged", "baseline", "restricted")
# Expected answers of Pod Security admission in Kubernetes 1.36: mode -> the levels that admit its pods.
ADMITTED = {
    "privileged": {"privileged"},
    "ipc_lock": {"privileged"},
    "restricted": {"privileged", "baseline", "restricted"},
}
NETWORKS = [{"nad": vf["nad"], "rail": vf["rail"], "device": vf["netdev"]} for vf in fabric()["hosts"]["spark1"]["vfs"]]
ROLES = {"device_plugins": ("namespace", "nodes", "gpu", "rdma", "sriov"), "multus": ("multus",)}


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    """Return a cluster of a control host and one node, deployed by the collection's playbooks."""
    given = os.environ.get("GB10_TEST_LAB")
    made = Site(LabCommand(Path(given))) if given else Site.deployed(make_lab(), nodes=1)
    made.namespace = ""
    names = [f"gb10-level-{level}" for level in LEVELS]
    spaces = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": f"gb10-level-{level}", "labels": {"pod-security.kubernetes.io/enforce": level}},
        }
        for level in LEVELS
    ]
    for space in spaces:
        made.kubectl("apply", "-f", "-", stdin=json.dumps(space))
    yield made
    made.kubectl("delete", "namespace", *names, "--wait=false")


def pod(mode: str) -> dict[str, Any]:
    """Return a rank's pod of this mode, with its sidecar, as the collection renders it."""
    plan, _findings = plan_group(
        fabric(), profile(), settings(rdma_mode=mode, rdma_resources=("rdma/gb10",), models_dir="")
    )
    sets = [each for each in manifests.render(plan, pods.PodOptions(), {}, {}) if each["kind"] == "StatefulSet"]
    spec = dict(sets[0]["spec"]["template"]["spec"])
    # the service account does not exist, because the group is not started
    spec.pop("serviceAccountName")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"gb10-{mode.replace('_', '-')}"}, "spec": spec}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ADMITTED)
def test_pod_security_admits_a_mode_where_it_should(cluster: Site, mode: str, level: str) -> None:
    answer = cluster.ask(
        "create", "--dry-run=server", "--namespace", f"gb10-level-{level}", "-f", "-", stdin=json.dumps(pod(mode))
    )
    if level in ADMITTED[mode]:
        assert answer.returncode == 0, answer.stderr
    else:
        assert answer.returncode != 0
        assert f'violates PodSecurity "{level}:' in answer.stderr


def render(cluster: Site, directory: Path, role: str, name: str) -> str:
    """Render a template of a role with the variables that the lab's inventory gives it."""
    play = {
        "name": "Render",
        "hosts": "spark1",
        "roles": ["gb10.cluster.fabric_plan"],
        "vars_files": [str(CHECKOUT / "roles" / role / part / "main.yml") for part in ("defaults", "vars")],
        "tasks": [
            {
                "name": "Render",
                "ansible.builtin.template": {
                    "src": str(CHECKOUT / "roles" / role / "templates" / f"{name}.yml.j2"),
                    "dest": str(directory / f"{name}.yml"),
                    "mode": "0600",
                },
                "delegate_to": "localhost",
            }
        ],
    }
    (directory / "render.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    # Switch on the optional parts, so that more objects are rendered than in a default installation.
    wanted = {"gb10_sriov_resource_prefix": "gb10.cluster", "device_plugins_gpu_shares": 4}
    cluster.play(str(directory / "render.yml"), **wanted)
    return (directory / f"{name}.yml").read_text(encoding="utf-8")


def applied(cluster: Site, text: str) -> None:
    """Apply objects with strict validation; a second apply must change nothing."""
    words = ("--server-side", "--force-conflicts", "-f", "-")
    cluster.kubectl("apply", "--validate=strict", *words, stdin=text)
    difference = cluster.ask("diff", *words, stdin=text)
    assert difference.returncode == 0, difference.stdout + difference.stderr


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in ROLES.items() for name in names])
def test_manifests_pass_strict_validation_and_a_second_apply_changes_nothing(
    cluster: Site, tmp_path: Path, role: str, name: str
) -> None:
    text = render(cluster, tmp_path, role, name)
    assert list(yaml.safe_load_all(text))
    applied(cluster, text)


@pytest.mark.parametrize("prefix", ["", "gb10.cluster"])
@pytest.mark.parametrize("mode", ADMITTED)
def test_the_objects_of_a_serving_plan_pass_strict_validation(cluster: Site, mode: str, prefix: str) -> None:
    namespace = "gb10-level-restricted" if mode == "restricted" else "gb10-level-privileged"
    chosen = {"namespace": namespace, "rdma_mode": mode, "rdma_resources": ("rdma/gb10",), "sriov_prefix": prefix}
    plan, findings = plan_group(fabric(), profile(), settings(**chosen))
    assert findings == []
    options = pods.PodOptions(cache_dir="/srv/cache", secrets={"HF_TOKEN": ("s", "k")})
    objects = [
        *attachments.nads({"networks": NETWORKS}, namespace, prefix),
        attachments.probe_pod(fabric(), "spark1", namespace, "spark1", "localhost/gb10/none:none", prefix),
        *manifests.render(plan, options, {"a.py": "1"}, {"b.py": "2"}),
    ]
    kinds = {item["kind"] for item in objects}
    assert kinds >= {"NetworkAttachmentDefinition", "Pod", "StatefulSet", "Service", "Deployment", "Role", "ConfigMap"}
    assert ("PersistentVolumeClaim" in kinds) is (mode == "restricted")
    try:
        applied(cluster, yaml.safe_dump_all(objects))
    finally:
        cluster.kubectl("delete", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(objects))


def test_strict_validation_refuses_an_unknown_field(cluster: Site) -> None:
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wrong"}, "dta": {}}
    answer = cluster.ask(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(wrong)
    )
    assert answer.returncode != 0
    assert "dta" in answer.stderr
