# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the form of Kubernetes objects."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import objects
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import brief_pod, made, on_hosts, policy

META = {"name": "a", "namespace": "n"}


@pytest.mark.parametrize(
    ("kind", "version"),
    [("Pod", "v1"), ("StatefulSet", "apps/v1"), ("ClusterRoleBinding", "rbac.authorization.k8s.io/v1")],
)
def test_the_version_follows_from_the_kind(kind: str, version: str) -> None:
    assert made(kind, META) == {"apiVersion": version, "kind": kind, "metadata": META}


def test_an_object_has_the_parts_that_are_given() -> None:
    assert made("ConfigMap", META, data={"x": "y"})["data"] == {"x": "y"}
    assert made("Deployment", META, {"replicas": 1})["spec"] == {"replicas": 1}


def test_a_policy_selects_pods_and_lists_who_may_connect() -> None:
    spec = policy(META, {"role": "head"}, [{"from": []}])["spec"]
    assert spec["podSelector"] == {"matchLabels": {"role": "head"}}
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress"], [{"from": []}])


def test_a_brief_pod_has_no_privilege_and_runs_where_it_is_placed() -> None:
    spec: dict[str, Any] = brief_pod(META, {"name": "c", "image": "i"}, {"nodeName": "spark1"})["spec"]
    assert spec["nodeName"] == "spark1" and spec["securityContext"]["runAsNonRoot"]
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_term_names_the_hosts() -> None:
    (expression,) = on_hosts(["spark1", "spark2"])["matchExpressions"]
    assert (expression["key"], expression["values"]) == ("kubernetes.io/hostname", ["spark1", "spark2"])


REPO = "docker.io/lmsysorg/sglang"
TAG = f"{REPO}:v0.5.14"
OLD, NEW = "sha256:0ld", "sha256:4e3"


def node(*names: list[str]) -> dict[str, Any]:
    return {"metadata": {"name": "spark1"}, "status": {"images": [{"names": each} for each in names]}}


@pytest.mark.parametrize(
    ("names", "pinned", "found"),
    [
        ([[f"{REPO}@{OLD}", TAG]], "", OLD),
        ([[f"{REPO}@{OLD}", TAG]], OLD, OLD),
        ([[f"{REPO}@{OLD}"], [f"{REPO}@{NEW}", TAG]], OLD, NEW),
        ([[f"{REPO}@{OLD}"]], OLD, OLD),
        ([[f"{REPO}@{OLD}"]], "", ""),
        ([[TAG]], "", ""),
        ([["docker.io/other/sglang@sha256:0", "docker.io/other/sglang:v0.5.14"]], "", ""),
        ([], "", ""),
    ],
)
def test_a_tag_counts_before_the_pinned_digest(names: list[list[str]], pinned: str, found: str) -> None:
    assert objects.held(node(*names), TAG, pinned) == found


@pytest.mark.parametrize("image", ["sglang", "localhost:5000/sglang"])
def test_the_port_of_a_registry_is_not_a_tag(image: str) -> None:
    assert objects.held(node([f"{image}@{OLD}", image]), image, "") == OLD


def test_an_explicit_digest_ignores_the_tag() -> None:
    names = [[f"{REPO}@{OLD}", TAG], [f"{REPO}@{NEW}"]]
    assert objects.held(node(*names), f"{TAG}@{NEW}", NEW) == NEW
    assert objects.held(node(names[0]), f"{TAG}@{NEW}", NEW) == ""


@pytest.mark.parametrize(
    ("image_id", "digest"),
    [(f"{REPO}@{NEW}", NEW), ("sha256:1d", "id:sha256:1d"), ("", "")],
)
def test_the_digest_that_a_pod_pulled(image_id: str, digest: str) -> None:
    assert objects.pulled({"status": {"containerStatuses": [{"imageID": image_id}]}}) == digest


@pytest.mark.parametrize(
    ("image", "digest", "name"),
    [
        (TAG, NEW, f"{TAG}@{NEW}"),
        (TAG, "", TAG),
        (TAG, "id:sha256:1d", TAG),
        (f"{TAG}@{OLD}", NEW, f"{TAG}@{OLD}"),
    ],
)
def test_pods_get_a_name_with_the_digest(image: str, digest: str, name: str) -> None:
    assert objects.reference(image, digest) == name


def test_the_repository_of_a_registry_with_a_port_is_not_its_tag() -> None:
    names = ["registry.lan:5000/sglang@sha256:0", "registry.lan:5000/sglang"]
    assert objects.held(node(names), "registry.lan:5000/sglang", "") == "sha256:0"


def test_a_record_s_key_is_allowed_in_a_config_map() -> None:
    assert objects.record_key(TAG) == "docker.io_lmsysorg_sglang_v0.5.14"
