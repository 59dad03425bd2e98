# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the stored objects of a group do not show: what all modes, releases and changes have in common."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._kube import labels
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import Owner
from ansible_collections.gb10.cluster.plugins.modules.jit_cache import KEY
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import manifests as sm
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import pods
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Load
from documented import fences
from serving_samples import group_revision, plan
from serving_samples import plan as sample_plan

FILES = {"generate_probe.py": "print()\n"}


def rendered(
    options: pods.PodOptions | None = None, of_profile: dict[str, Any] | None = None, **changes: Any
) -> list[dict[str, Any]]:
    return sm.render(sample_plan(of_profile, **changes), options or pods.PodOptions(), FILES, {})


def pod_of(objects: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    sets = [o for o in objects if o["kind"] == "StatefulSet"]
    template: dict[str, Any] = sets[rank]["spec"]["template"]
    return template


def container_of(objects: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    server, _sidecar = pod_of(objects, rank)["spec"]["containers"]
    return dict(server)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("privileged", {"privileged": True}),
        (
            "ipc_lock",
            {
                "runAsUser": 0,
                "allowPrivilegeEscalation": False,
                "capabilities": {"add": ["IPC_LOCK"], "drop": ["NET_RAW"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        ),
        (
            "restricted",
            {
                "runAsUser": 1000,
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        ),
        ("none", {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}),
    ],
)
def test_security_of_each_mode(mode: str, expected: dict[str, Any]) -> None:
    container = container_of(rendered(rdma_mode=mode, rdma_resources=("rdma/gb10",)), 1)
    assert container["securityContext"] == expected
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "rdma/gb10": "1"}


@pytest.mark.parametrize(
    ("version", "kind"), [("0.5.10", "exec"), ("0.5.19", "exec"), ("0.5.20", "httpGet"), ("0.5.23", "httpGet")]
)
def test_readiness_follows_the_version(version: str, kind: str) -> None:
    probe = container_of(rendered(of_profile={"sglang_version": version}), 0)["readinessProbe"]
    assert kind in probe
    assert probe["timeoutSeconds"] > 1


@pytest.mark.parametrize(("weights", "models_dir", "more"), [(59.4, "/srv", 3564), (0, "/srv", 5232), (0, "", 91632)])
def test_a_rank_that_loads_or_downloads_more_may_take_longer_to_start(
    weights: float, models_dir: str, more: int
) -> None:
    """Weights of an unknown size fill at most 0.8 of 109 GiB."""
    load = Load(weights=weights, fraction=0.8, least=103.0, most=109.0)
    large = replace(plan(), load=load, models=("org/model",), models_dir=models_dir)
    assert pods.start_limit(large, pods.PodOptions(startup_timeout=1800)) == 1800 + more


@pytest.mark.parametrize(
    "change",
    [
        {"of_profile": {"argv": ("--attention-backend", "flashinfer")}},
        {"of_profile": {"image": "other:1"}},
        {"of_profile": {"env": {"A": "1"}}},
        {"vf_index": 1},
        {"options": pods.PodOptions(shm_size="1Gi")},
        {"options": pods.PodOptions(owner=Owner(pod_annotations={"example.com/cost": "team a"}))},
    ],
)
def test_any_change_gives_all_ranks_a_new_revision(change: dict[str, Any]) -> None:
    before, after = rendered(), rendered(**change)
    assert group_revision(before) != group_revision(after) != ""
    revisions = {o["metadata"]["annotations"][labels.REVISION] for o in after if o["kind"] == "StatefulSet"}
    assert len(revisions) == 1


def test_kernels_are_read_by_no_other_image_release_mode_and_architecture() -> None:
    own = pods.cache_key(plan(), "arm64", "id:1")
    assert own.startswith("0.5.12.post1-arm64-") and KEY.fullmatch(own)
    assert pods.cache_key(replace(plan(), instance="other", preset="other"), "arm64", "id:1") == own
    named = replace(plan(), image="localhost/gb10/sglang-standin:dev@sha256:0")
    others = [named, replace(plan(), sglang_version="0.5.13"), replace(plan(), rdma_mode="restricted")]
    keys = [pods.cache_key(one, "arm64", "id:1") for one in others]
    # The second one was imported under the same name.
    keys += [pods.cache_key(plan(), "amd64", "id:1"), pods.cache_key(plan(), "arm64", "id:2"), own]
    assert len({*keys}) == 6
    assert pods.cache_key(named, "arm64", "sha256:0") == pods.cache_key(named, "arm64", "")


def test_the_documented_route_and_pool_lead_to_the_head_that_the_gate_keeps() -> None:
    (text,) = [text for page, _language, text in fences() if page == "docs/existing.md" and "InferencePool" in text]
    route, pool = yaml.safe_load_all(text)
    found = rendered()
    (service,) = [o for o in found if (o["kind"], o["metadata"]["name"]) == ("Service", "gemma-4-31b-it")]
    rule = route["spec"]["rules"][0]
    port = service["spec"]["ports"][0]["port"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": port}]
    assert tuple(match["path"]["value"] for match in rule["matches"]) == sm.PUBLISHED
    selected = pool["spec"]["selector"]["matchLabels"].items()
    templates = [o["spec"]["template"] for o in found if o["kind"] == "StatefulSet"]
    (head,) = [template for template in templates if selected <= template["metadata"]["labels"].items()]
    assert head["spec"]["readinessGates"] == [{"conditionType": "gb10.cluster/transport"}]
    assert pool["spec"]["targetPorts"] == [{"number": head["spec"]["containers"][0]["ports"][0]["containerPort"]}]


def test_an_ingress_publishes_what_clients_need_and_no_route_that_administers_the_server() -> None:
    found = sm.render(plan(), pods.PodOptions(), FILES, {}, sm.Access(ingress={"host": "llm.example"}))
    (ingress,) = [one["spec"] for one in found if one["kind"] == "Ingress"]
    paths = ingress["rules"][0]["http"]["paths"]
    assert [path["path"] for path in paths] == ["/v1", "/generate", "/health", "/health_generate"]
    assert {path["pathType"] for path in paths} == {"Prefix"}


def test_no_container_has_a_token_that_kubernetes_mounts_by_itself() -> None:
    spec = pod_of(rendered(), 2)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "transport-account" not in json.dumps(spec["containers"][0])


def test_a_sidecar_may_write_the_status_of_its_own_pod_and_events_and_nothing_else() -> None:
    objects, names = rendered(), [f"gemma-4-31b-it-{rank}-0" for rank in range(4)]
    for rank in range(4):
        user = pod_of(objects, rank)["spec"]["serviceAccountName"]
        assert [o["automountServiceAccountToken"] for o in named(objects, "ServiceAccount", user)] == [False]
        (bound,) = [o["roleRef"] for o in objects if o["kind"] == "RoleBinding" and o["subjects"][0]["name"] == user]
        (role,) = named(objects, "Role", bound["name"])
        assert role["rules"] == [
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "resourceNames": names,
                "verbs": ["get"],
            },
            {
                "apiGroups": [""],
                "resources": ["pods/status"],
                "resourceNames": [names[rank]],
                "verbs": ["patch"],
            },
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    return [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]


@pytest.mark.parametrize(
    ("gate", "answers", "asks"), [("warn", "report", True), ("off", "report", False), ("off", "enforce", True)]
)
def test_the_gate_can_only_warn_or_be_off(gate: Any, answers: Any, asks: bool) -> None:
    objects = rendered(pods.PodOptions(transport_gate=gate, answers=answers, memory_guard=False))
    spec = pod_of(objects, 0)["spec"]
    assert "readinessGates" not in spec
    assert ("readinessProbe" in spec["containers"][-1]) is (answers == "enforce")
    assert ("--gate" in spec["containers"][-1]["command"]) is asks
    assert ("transport-account" in json.dumps(spec)) is asks
    assert bool(named(objects, "Role", "gemma-4-31b-it-0")) is asks
