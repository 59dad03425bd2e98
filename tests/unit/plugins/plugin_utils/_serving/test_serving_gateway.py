# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test access to a group's head: Service, gateway, Ingress, NetworkPolicy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.gateway import Access
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from serving_samples import group_revision, plan

GUARDED = Access(key_secret="gemma-4-31b-it-secrets", tls_secret="wildcard")


def objects(access: Access | None = None) -> list[dict[str, Any]]:
    return render(plan(), PodOptions(), {}, {}, access)


def one(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    (chosen,) = [o for o in found if o["kind"] == kind]
    return chosen


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [o["spec"]["template"]["spec"] for o in found if o["kind"] == "StatefulSet"]


def test_without_options_nothing_is_added() -> None:
    found = objects()
    assert {len(pod["containers"]) for pod in pods(found)} == {2}
    assert not {"Ingress", "NetworkPolicy"} & {o["kind"] for o in found}
    assert one("Service", found)["spec"]["ports"][0]["targetPort"] == "http"


def test_the_head_alone_gets_a_gateway_and_the_service_leads_to_it() -> None:
    found = objects(GUARDED)
    assert [len(pod["containers"]) for pod in pods(found)] == [3, 2, 2, 2]
    port = one("Service", found)["spec"]["ports"][0]
    assert (port["name"], port["port"], port["targetPort"]) == ("https", 30000, "gateway")
    gateway = pods(found)[0]["containers"][-1]
    assert gateway["ports"][0]["containerPort"] == 30001
    assert gateway["securityContext"]["runAsNonRoot"] is True
    assert pods(found)[0]["securityContext"]["fsGroup"] == gateway["securityContext"]["runAsUser"]


def test_the_key_is_a_file_of_the_gateway_alone() -> None:
    head = pods(objects(GUARDED))[0]
    server, _sidecar, gateway = head["containers"]
    assert "--key-file" in gateway["command"]
    assert "api-key" not in json.dumps(server)
    volumes = {volume["name"]: volume for volume in head["volumes"]}
    assert volumes["api-key"]["secret"]["items"] == [{"key": "api-key", "path": "api-key"}]
    assert {volumes[name]["secret"]["defaultMode"] for name in ("api-key", "tls")} == {0o440}


def test_a_gateway_changes_the_revision_of_the_whole_group() -> None:
    assert group_revision(objects()) != group_revision(objects(GUARDED))


def test_with_a_key_only_the_gateway_and_the_groups_own_are_let_through() -> None:
    policy = one("NetworkPolicy", objects(GUARDED))["spec"]
    assert policy["podSelector"]["matchLabels"]["gb10.cluster/role"] == "head"
    own, door = policy["ingress"]
    assert len(own["from"]) == 2
    assert "ports" not in own
    assert door == {"ports": [{"protocol": "TCP", "port": "gateway"}]}


def test_named_peers_are_the_only_ones_let_in() -> None:
    peer = {"ipBlock": {"cidr": "192.0.2.0/24"}}
    door = one("NetworkPolicy", objects(Access(allow_from=(peer,))))["spec"]["ingress"][1]
    assert door == {"ports": [{"protocol": "TCP", "port": "http"}], "from": [peer]}


@pytest.mark.parametrize("access", [GUARDED, Access(allow_from=({"ipBlock": {"cidr": "192.0.2.0/24"}},))])
def test_a_group_with_its_own_policy_is_not_covered_by_the_namespace_s_open_policy(access: Access) -> None:
    def templates(found: list[dict[str, Any]]) -> list[dict[str, str]]:
        return [o["spec"]["template"]["metadata"]["labels"] for o in found if o["kind"] == "StatefulSet"]

    assert {labels.get("gb10.cluster/guarded") for labels in templates(objects(access))} == {"true"}
    assert {labels.get("gb10.cluster/guarded") for labels in templates(objects())} == {None}
    # A pod gets a new label only when it is created again.
    assert group_revision(objects()) != group_revision(objects(access))


def test_an_ingress_leads_to_the_service() -> None:
    wanted = {"host": "llm.example", "class": "traefik", "tls": "llm-tls", "annotations": {"a/b": "c"}}
    found = one("Ingress", objects(Access(ingress=wanted)))
    assert found["metadata"]["annotations"] == {"a/b": "c"}
    assert found["spec"]["ingressClassName"] == "traefik"
    assert found["spec"]["tls"] == [{"hosts": ["llm.example"], "secretName": "llm-tls"}]
    backend = found["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "gemma-4-31b-it", "port": {"number": 30000}}
