# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook monitoring on a real API: it refuses a cluster without the operator, and leaves nothing behind.

The CustomResourceDefinitions accept every field, because those of the Prometheus operator are not part of the lab.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site

KINDS = {"podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"}
OBJECTS = "podmonitors,prometheusrules,configmaps"
OURS = ("-n", "monitoring", "-l", "app.kubernetes.io/managed-by=gb10.cluster")


def definition(plural: str, kind: str) -> dict[str, object]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    return Site.deployed(make_lab(), nodes=1)


def test_a_cluster_without_the_operator_is_refused_and_removing_is_no_error(site: Site) -> None:
    said = " ".join(site.play("monitoring", check=False).split())
    assert "The cluster lacks podmonitors.monitoring.coreos.com and prometheusrules.monitoring.coreos.com" in said
    assert changed(site.play("monitoring", monitoring_state="absent")) == 0


def test_a_missing_namespace_is_refused(site: Site) -> None:
    for plural, kind in KINDS.items():
        site.kubectl("apply", "-f", "-", stdin=json.dumps(definition(plural, kind)))
        site.kubectl("wait", "--for=condition=Established", f"crd/{plural}.monitoring.coreos.com")
    assert "Namespace monitoring does not exist" in " ".join(site.play("monitoring", check=False).split())


def test_the_objects_are_applied_once_and_removed_by_one_variable(site: Site) -> None:
    site.kubectl("create", "namespace", "monitoring")
    assert changed(site.play("monitoring", "--check")) == 2
    assert site.get(OBJECTS, *OURS)["items"] == []
    assert changed(site.play("monitoring")) == 2
    assert changed(site.play("monitoring")) == 0
    found = {
        item["kind"]: item for item in site.get(OBJECTS, *OURS)["items"] if item["metadata"]["name"] != "gb10-gateway"
    }
    assert set(found) == {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert "{{ $labels.group }}" in json.dumps(found["PrometheusRule"]["spec"])
    assert "{{group}} rank {{rank}}" in found["ConfigMap"]["data"]["gb10-transport.json"]
    policy = site.get("networkpolicy", "gb10-monitoring")["spec"]
    assert {port["port"] for port in policy["ingress"][0]["ports"]} == {"transport", "http"}
    # A closed namespace has rank pods of all roles; the policy that closes them exists here.
    assert ["head", "worker"] in [one.get("values") for one in policy["podSelector"]["matchExpressions"]]
    ports = [endpoint["port"] for endpoint in found["PodMonitor"]["spec"]["podMetricsEndpoints"]]
    assert ports == ["transport", "http"]
    assert changed(site.play("monitoring", monitoring_state="absent")) == 2
    assert site.get(OBJECTS, *OURS)["items"] == []
    assert changed(site.play("monitoring", monitoring_state="absent")) == 0
