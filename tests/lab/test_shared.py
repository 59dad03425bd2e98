# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve on a cluster with rules: a registry with a password, a quota, a policy that demands labels, a low priority.

One lab of two nodes, in the order of this file. The registry is simulated. Quota, policy, priority and Pod Security
are those of a real API server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import private_registry
import pytest
from labcommand import LabCommand, changed
from sitecommand import Site, is_ready

COVERS = ("docs/existing.md", "plugins/plugin_utils/_serving", "plugins/modules/image_pull.py", "roles/sglang")

NODES = ("spark1", "spark2")
NAMESPACE, PORT, USER, PASSWORD = "gb10-serving", 5000, "owner", "correct horse"
ACCOUNT = f"{USER}:{PASSWORD}"
REGISTRY = f"127.0.0.1:{PORT}"
TWO = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}}
WISHES: dict[str, Any] = {
    "gb10_sglang_images_from": f"{REGISTRY}/gb10/sglang-standin:{{version}}",
    "gb10_image_pull_secrets": ["theirs"],
    "sglang_pod_labels": {"team": "models"},
    "sglang_priority_class": "preemptible",
    # What the plan computes for a Spark is more than the lab's machine has.
    "sglang_requests": True,
    "sglang_resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
}
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "preemptible"},
    "value": -10,
    "preemptionPolicy": "Never",
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "theirs", "namespace": NAMESPACE},
    "spec": {"hard": {"requests.cpu": "8", "requests.memory": "8Gi", "pods": "20"}},
}
RULES = [
    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
    {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["*"]},
]
POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "theirs"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": RULES},
        # The controllers copy a workload's labels to none of the objects that they make for themselves.
        "matchConditions": [
            {"name": "kinds", "expression": "request.kind.kind in ['Pod', 'StatefulSet', 'Deployment']"}
        ],
        "validations": [
            {"expression": "'team' in object.metadata.?labels.orValue({})", "message": "the label team is missing"}
        ],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "theirs"},
    "spec": {
        "policyName": "theirs",
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}},
    },
}
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "type": "kubernetes.io/dockerconfigjson",
    "metadata": {"name": "theirs", "namespace": NAMESPACE},
    "stringData": {
        ".dockerconfigjson": json.dumps({"auths": {REGISTRY: {"username": USER, "password": PASSWORD}}}),
    },
}
SERVE = f"""
k3s ctr images export /run/registry.tar $(k3s ctr images ls -q | grep ^localhost/gb10/sglang-standin:)
systemd-run --quiet --unit=lab-registry python3 /run/private_registry.py \\
  /run/registry.tar /run/registry {PORT} '{ACCOUNT}'
"""
# The registry first unpacks its images.
ASK = f"""
import time, urllib.error, urllib.request
for _second in range(60):
    try:
        urllib.request.urlopen("http://{REGISTRY}/v2/")
    except urllib.error.HTTPError as error:
        print(error.code)
        break
    except OSError:
        time.sleep(1)
"""


def plain(**spec: Any) -> str:
    container = {"name": "a", "image": "a", **spec.pop("container", {})}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", **spec}, "spec": {"containers": [container]}}
    )


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site.deployed(make_lab(), nodes=2, **TWO)
    program = Path(private_registry.__file__).read_text(encoding="utf-8")
    for node in NODES:
        made.lab.shell(node, f"cat > /run/private_registry.py <<'EOF'\n{program}\nEOF\n{SERVE}")
    for item in (PRIORITY, QUOTA, POLICY, BINDING):
        made.kubectl("apply", "-f", "-", stdin=json.dumps(item))
    return made


def test_the_rules_refuse_pods_that_do_not_follow_them(site: Site) -> None:
    dry = ("create", "--dry-run=server", "-f", "-")
    until = time.monotonic() + 60
    # The API server reads a new policy some seconds later.
    while "the label team is missing" not in (said := site.ask(*dry, stdin=plain()).stderr):
        assert time.monotonic() < until, said
        time.sleep(2)
    assert "must specify requests.cpu" in site.ask(*dry, stdin=plain(labels={"team": "models"})).stderr
    for node in NODES:
        assert site.lab("exec", node, "--", "python3", "-c", ASK).strip() == "401"


def test_a_missing_pull_secret_is_named_before_anything_starts(site: Site) -> None:
    said = " ".join(site.play("serve", check=False, **WISHES).split())
    assert f"Namespace {NAMESPACE} has no Secret theirs, which gb10_image_pull_secrets names" in said
    assert site.pods() == []


def test_a_group_is_served_and_verified_within_all_rules(site: Site) -> None:
    site.kubectl("apply", "-f", "-", stdin=json.dumps(SECRET))
    site.play("serve", **WISHES)
    ranks = site.pods()
    assert len(ranks) == 2
    assert all(map(is_ready, ranks))
    pods = site.get("pods", f"--selector=gb10.cluster/instance={site.group}")["items"]
    assert len(pods) == 3, "two ranks and the supervisor"
    for pod in pods:
        spec, name = pod["spec"], pod["metadata"]["name"]
        assert pod["metadata"]["labels"]["team"] == "models", name
        assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("preemptible", -10, "Never")
        assert spec["imagePullSecrets"] == [{"name": "theirs"}], name
        assert {container["image"].partition("/")[0] for container in spec["containers"]} == {REGISTRY}, name
    used = site.get("resourcequota", "theirs")["status"]["used"]
    assert int(used["pods"]) >= 3
    site.play("verify", **WISHES)
    assert changed(site.play("serve", **WISHES)) == 0
    site.play("serve_stop", instance=site.group, **WISHES)


@pytest.mark.parametrize(("mode", "refused"), [("restricted", False), ("privileged", True)])
def test_pod_security_admits_every_rendered_object_of_mode_restricted(site: Site, mode: str, refused: bool) -> None:
    level = {f"pod-security.kubernetes.io/{kind}": "restricted" for kind in ("enforce", "warn")}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": level}}
    site.kubectl("apply", "-f", "-", stdin=json.dumps(space))
    site.play("render", gb10_rdma_mode=mode, gb10_namespace="strict", gb10_models_dir="/srv/models")
    said = ""
    for part in ("group", "gateway"):
        file = site.lab.results / f"objects-{site.group}" / f"{part}.yml"
        words = ("apply", "--namespace=strict", "--server-side", "--validate=strict", "--dry-run=server", "-f")
        done = site.ask(*words, str(file))
        assert done.returncode == 0, done.stderr
        said += done.stderr
    assert ('would violate PodSecurity "restricted' in said) is refused, said
