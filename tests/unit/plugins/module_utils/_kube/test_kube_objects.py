# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the form of Kubernetes objects."""

from __future__ import annotations

from typing import Any

import pytest
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
