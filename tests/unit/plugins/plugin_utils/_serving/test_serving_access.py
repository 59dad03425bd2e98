# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test access to a group's head: Service, Ingress, NetworkPolicy."""

from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import PUBLISHED, Access, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from documented import fences
from serving_samples import group_revision, plan

PEERS = ({"ipBlock": {"cidr": "192.0.2.0/24"}}, {"podSelector": {"matchLabels": {"app": "x"}}})
GUARDED = Access(allow_from=PEERS)


def objects(access: Access | None = None) -> list[dict[str, Any]]:
    return render(plan(), PodOptions(), {}, {}, access)


def one(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    (chosen,) = [o for o in found if (o["kind"], o["metadata"]["name"]) == (kind, "gemma-4-31b-it")]
    return chosen


def test_without_options_nothing_is_added() -> None:
    found = objects()
    assert not {"Ingress", "NetworkPolicy"} & {o["kind"] for o in found}
    service = one("Service", found)
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert service["metadata"]["annotations"] == {"gb10.cluster/model": "google/gemma-4-31B-it"}
    assert "gb10.cluster/guarded" not in service["metadata"]["labels"]


def test_named_peers_and_the_groups_own_are_the_only_ones_let_in() -> None:
    policy = one("NetworkPolicy", objects(GUARDED))["spec"]
    assert policy["podSelector"]["matchLabels"]["gb10.cluster/role"] == "head"
    own, door = policy["ingress"]
    assert len(own["from"]) == 2
    assert "ports" not in own
    assert door == {"ports": [{"protocol": "TCP", "port": "http"}], "from": [*PEERS]}


def test_a_group_with_its_own_policy_is_not_covered_by_the_namespace_s_open_policy() -> None:
    def templates(found: list[dict[str, Any]]) -> list[dict[str, str]]:
        return [o["spec"]["template"]["metadata"]["labels"] for o in found if o["kind"] == "StatefulSet"]

    assert {labels.get("gb10.cluster/guarded") for labels in templates(objects(GUARDED))} == {"true"}
    assert {labels.get("gb10.cluster/guarded") for labels in templates(objects())} == {None}
    assert one("Service", objects(GUARDED))["metadata"]["labels"]["gb10.cluster/guarded"] == "true"
    # A pod gets a new label only when it is created again.
    assert group_revision(objects()) != group_revision(objects(GUARDED))


def test_an_ingress_leads_to_the_service() -> None:
    wanted = {"host": "llm.example", "class": "traefik", "tls": "llm-tls", "annotations": {"a/b": "c"}}
    found = one("Ingress", objects(Access(ingress=wanted)))
    assert found["metadata"]["annotations"] == {"a/b": "c"}
    assert found["spec"]["ingressClassName"] == "traefik"
    assert found["spec"]["tls"] == [{"hosts": ["llm.example"], "secretName": "llm-tls"}]
    backend = found["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "gemma-4-31b-it", "port": {"number": 30000}}


def test_an_ingress_publishes_what_clients_need_and_no_route_that_administers_the_server() -> None:
    found = one("Ingress", objects(Access(ingress={"host": "llm.example"})))
    assert "annotations" not in found["metadata"]
    paths = found["spec"]["rules"][0]["http"]["paths"]
    assert [path["path"] for path in paths] == ["/v1", "/generate", "/health", "/health_generate"]
    assert {path["pathType"] for path in paths} == {"Prefix"}


def test_the_documented_route_and_pool_lead_to_the_head_that_the_gate_keeps() -> None:
    (text,) = [text for page, _language, text in fences() if page == "docs/existing.md" and "InferencePool" in text]
    route, pool = yaml.safe_load_all(text)
    found = objects()
    service = one("Service", found)
    rule = route["spec"]["rules"][0]
    port = service["spec"]["ports"][0]["port"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": port}]
    assert tuple(match["path"]["value"] for match in rule["matches"]) == PUBLISHED
    selected = pool["spec"]["selector"]["matchLabels"].items()
    templates = [o["spec"]["template"] for o in found if o["kind"] == "StatefulSet"]
    (head,) = [template for template in templates if selected <= template["metadata"]["labels"].items()]
    assert head["spec"]["readinessGates"] == [{"conditionType": "gb10.cluster/transport"}]
    assert pool["spec"]["targetPorts"] == [{"number": head["spec"]["containers"][0]["ports"][0]["containerPort"]}]
