# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve on a cluster with rules: a registry with a password, a quota, a policy that demands labels, a low priority.

One lab of two nodes, in the order of this file. The registry is simulated. Quota, policy, priority and Pod Security
are those of a real API server.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import private_registry
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules
from labcommand import LabCommand, changed
from sitecommand import Site, is_ready

COVERS = ("docs/existing.md", "plugins/plugin_utils/_serving", "plugins/modules/image_pull.py", "roles/sglang")

NODES = ("spark1", "spark2")
PRIVILEGED = "Privileged mode is disallowed"
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


# What each control of fixtures/pod_security.yml refuses, in a pod that follows all others
FOLLOWS = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
REFUSED: dict[str, dict[str, Any]] = {
    PRIVILEGED: {"security": {"privileged": True, "allowPrivilegeEscalation": True}},
    "Namespaces of the host are disallowed": {"spec": {"hostIPC": True}},
    "Volumes of the host are disallowed": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}},
    "Only volumes of eight kinds are allowed": {
        "spec": {"volumes": [{"name": "v", "nfs": {"server": "a", "path": "/"}}]}
    },
    "Ports of the host are disallowed": {"container": {"ports": [{"containerPort": 80, "hostPort": 80}]}},
    "An unmasked /proc is disallowed": {"security": {"procMount": "Unmasked"}, "spec": {"hostUsers": False}},
    "Only safe sysctls are allowed": {
        "spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}
    },
    "AppArmor must not be unconfined": {"security": {"appArmorProfile": {"type": "Unconfined"}}},
    "Options of SELinux are disallowed": {"security": {"seLinuxOptions": {"type": "spc_t"}}},
    "Privilege escalation must be disallowed": {"security": {"allowPrivilegeEscalation": True}},
    "Containers must run as another user than root": {"security": {"runAsNonRoot": False}},
    "A seccomp profile is required": {"security": {"seccompProfile": {"type": "Unconfined"}}},
    "All capabilities must be dropped, and only NET_BIND_SERVICE may be added": {
        "security": {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    },
}


def deployment(
    security: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    container: Mapping[str, Any] | None = None,
) -> str:
    own = {"name": "a", "image": "a", "securityContext": {**FOLLOWS, **(security or {})}, **(container or {})}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [own], **(spec or {})}}
    whole = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": whole})


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


@pytest.fixture(scope="module")
def strict(site: Site) -> Site:
    """Add a namespace in which the API server judges by Pod Security and by a policy with the same controls."""
    level = {f"pod-security.kubernetes.io/{kind}": "restricted" for kind in ("enforce", "warn")}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": level}}
    site.kubectl("apply", "-f", "-", stdin=json.dumps(space))
    site.kubectl("apply", "-f", str(Path(__file__).with_name("fixtures") / "pod_security.yml"))
    until = time.monotonic() + 60
    while PRIVILEGED not in (said := asked(site, **REFUSED[PRIVILEGED]).stderr):
        assert time.monotonic() < until, said
        time.sleep(2)
    return site


def asked(site: Site, **change: Any) -> subprocess.CompletedProcess[str]:
    """Ask the API server about a Deployment in the strict namespace."""
    return site.ask("create", "--namespace=strict", "--dry-run=server", "-f", "-", stdin=deployment(**change))


def test_each_control_of_the_policy_refuses(strict: Site) -> None:
    assert asked(strict).returncode == 0
    for message, change in REFUSED.items():
        done = asked(strict, **change)
        assert (done.returncode, message in done.stderr) == (1, True), f"{message}: {done.stderr}"
    policy = strict.get("validatingadmissionpolicy", "pod-security")["spec"]
    assert {one["message"] for one in policy["validations"]} == REFUSED.keys()


def apply_rendered(site: Site, mode: str) -> tuple[int, str]:
    """Render the objects of a mode and ask the API server; return how many files it refuses, and what it says."""
    site.play("render", gb10_rdma_mode=mode, gb10_namespace="strict", gb10_models_dir="/srv/models")
    refused, said = 0, ""
    for part in ("group", "gateway"):
        file = site.lab.results / f"objects-{site.group}" / f"{part}.yml"
        words = ("apply", "--namespace=strict", "--server-side", "--validate=strict", "--dry-run=server", "-f")
        done = site.ask(*words, str(file))
        refused, said = refused + (done.returncode != 0), said + done.stderr
    return refused, said


def test_pod_security_admits_every_rendered_object_of_mode_restricted(strict: Site) -> None:
    refused, said = apply_rendered(strict, "restricted")
    assert refused == 0, said
    assert "would violate PodSecurity" not in said


def test_privileged_objects_are_refused_in_the_words_that_playbook_kubernetes_quotes(strict: Site) -> None:
    refused, said = apply_rendered(strict, "privileged")
    assert refused == 1, said
    quoted = re.findall(r'"([^"]+)"', Rules("_serving").all["existing.mode.privileged"].reason)
    assert PRIVILEGED in quoted
    assert all(words in said for words in quoted), said
