# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare all objects of a few groups, and of the gateway, with stored ones: an object has no line that nobody saw."""

from dataclasses import replace
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import GUARDED, INSTANCE, MODEL, REVISION
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import Owner
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, expectation
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from ansible_collections.gb10.cluster.plugins.module_utils._pod.sidecar import Gate
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import rights, router
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import Access, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Load, Patch
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_fallback, plan_group
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import (
    PodOptions,
    cache_env,
    cache_key,
    launch_key,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import describe
from ring_samples import cabled_plan
from serving_samples import fabric, plan, profile, settings

# Labels and annotations of the collection are not the owner's.
OWNER = Owner(["pull"], {"queue": "llm", INSTANCE: "other"}, {"cost": "a", REVISION: "other"}, "low", "kai")
PEERS = ({"podSelector": {"matchLabels": {"app": "chat"}}}, {"namespaceSelector": {}})
INGRESS = {"host": "llm.example", "class": "traefik", "tls": "llm-tls", "annotations": {"a/b": "c"}}
TOLERATED = ({"key": "gpu", "operator": "Exists"},)
ALL_OPTIONS: dict[str, Any] = {
    "startup_timeout": 1800,
    "grace_period": 90,
    "shm_size": "8Gi",
    "pull_policy": "Always",
    "runtime_class": "nvidia",
    "cache_dir": "/var/cache/kernels",
    "log_dir": "/var/log/gb10",
    "secrets": {"HF_TOKEN": ("g-secrets", "hf-token"), "API_KEY": ("g-secrets", "key")},
    "answers": "enforce",
    "sysfs_root": "/run/sys",
    "stuck_after": 400,
    "first_step_timeout": 900,
    "memory_timeout": 200,
    "memory_guard_percent": (6, 4),
    "memory_guard_pressure": 30,
    "resources": {"requests": {"memory": "9Gi"}, "limits": {"example.com/x": 2}, "claims": [{"name": "c"}]},
    "tolerations": TOLERATED,
    "owner": OWNER,
}
NETWORKS = tuple({"name": f"rail{n}", "namespace": "rdma", "resource": "nvidia.com/vf"} for n in (0, 1))
MODELS = {"models": ("org/a", "org/b"), "revisions": {"org/a": "main", "org/b": "v1"}, "model_path": "org/a"}


def group(
    options: dict[str, Any] | None = None,
    of_profile: dict[str, Any] | None = None,
    nodes: int = 2,
    of_fabric: dict[str, Any] | None = None,
    fewer: int = 0,
    access: Access | None = None,
    **of_settings: Any,
) -> list[dict[str, Any]]:
    """Return the objects of a group, with a fallback on ``fewer`` nodes if asked."""
    names = tuple(f"spark{number}" for number in range(1, nodes + 1))
    given = {"nodes": nodes, "tp": nodes, "nccl": "2.30.7", **(of_profile or {})}
    own = settings(**{"instance": "g", "nodes": names, "models_dir": ""} | of_settings)
    planned, findings = plan_group(of_fabric or fabric(), profile(**given), own)
    assert planned.ranks, findings
    of_fallback = profile(**given | {"preset": "fewer", "nodes": fewer, "tp": fewer})
    fallback = plan_fallback(of_fabric or fabric(), of_fallback, profile(**given), own, 600, 300)[0] if fewer else None
    files, programs = {"b.py": "b\n", "a.py": "a\n"}, {"gb10/_pod/b.py": "b\n", "gb10/a.py": "a\n"}
    patches = {f"{patch.name}.py": "p\n" for patch in planned.patches if patch.needed}
    return render(planned, PodOptions(**(options or {})), files, patches, access, programs, fallback, programs)


SHARED = {"load": Load(weights=14.6, fraction=0.8, least=103.0, most=109.0), "swap_gib": 48, "stuck_after": 300}
PATCHES = {"patches": tuple(Patch(name, "x", needed=name != "old") for name in ("one", "old", "two"))}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all options": {
        "options": ALL_OPTIONS,
        "of_profile": {**SHARED, **PATCHES, **MODELS, "env": {"A": "1"}},
        "access": Access("NodePort", INGRESS, PEERS),
        "port": 31000,
        "models_dir": "/srv/models",
        "vf_index": 1,
    },
    "restricted": {
        "options": {"cache_dir": "/var/cache/kernels", "log_dir": "/var/log/gb10", "runtime_class": ""},
        "of_profile": {**MODELS, "sglang_version": "0.5.23", "pp": 2, "tp": 1},
        "rdma_mode": "restricted",
        "rdma_resources": ("rdma/a", "rdma/b"),
        "models_dir": "/srv/models",
    },
    "restricted, downloads": {
        "options": {"supervisor": False},
        "of_profile": MODELS,
        "rdma_mode": "restricted",
        "rdma_resources": ("rdma/a",),
        "strict_transport": True,
    },
    "little": {
        "options": {
            "transport_gate": "off",
            "memory_guard": False,
            "disruption_budget": False,
            "requests": False,
            "open_routes": True,
            "readiness": "ready",
            "supervisor": False,
        },
        "access": Access(ingress={"host": "llm.example"}),
        "rdma_mode": "ipc_lock",
        "sriov_prefix": "gb10.cluster",
        "transport": "socket",
    },
    "no RDMA": {
        "options": {"cache_dir": "/var/cache/kernels", "transport_gate": "off", "answers": "enforce"},
        "of_profile": SHARED,
        "rdma_mode": "none",
        "models_dir": "/srv/models",
    },
    "warn": {"options": {"transport_gate": "warn", "readiness": "generate", "memory_timeout": 0}, "of_profile": SHARED},
    "networks of others": {"nodes": 3, "fewer": 2, "networks": NETWORKS, "access": Access(allow_from=PEERS[:1])},
    "ring of four": {"nodes": 4, "of_fabric": cabled_plan(4)},
    "fallback of one node": {"options": {"tolerations": TOLERATED, "owner": OWNER}, "fewer": 1},
    "one node": {"nodes": 1, "options": {"supervisor": False, "memory_guard": False}, "platform": "other"},
}
MEMBERS = [router.Member(name, f"http://{name}.models.svc:30000", "m", guarded=name == "a") for name in ("a", "b")]
GATEWAYS: dict[str, tuple[router.Router, list[router.Member]]] = {
    "gateway": (router.Router(image="i"), MEMBERS),
    "gateway, all options": (
        router.Router(
            namespace="models",
            image="i",
            port=31000,
            service_type="NodePort",
            key=True,
            tls_secret="tls",
            ingress=INGRESS,
            allow_from=PEERS,
            tolerations=TOLERATED,
            drain_timeout=30,
            versions=("7",),
            closed=False,
            owner=OWNER,
        ),
        MEMBERS[:1],
    ),
    "gateway without groups": (router.Router(image="i"), []),
}


def gates(made: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return what the sidecar of each rank is told."""
    sets = [one["spec"]["template"]["spec"] for case in made.values() for one in case if one["kind"] == "StatefulSet"]
    commands = [container["command"] for spec in sets for container in spec["containers"] if "command" in container]
    return [command[command.index("--gate") + 1] for command in commands if "--gate" in command]


def test_all_objects_are_those_that_were_approved() -> None:
    made = {case: group(**given) for case, given in CASES.items()}
    for gate in gates(made):
        Gate.parse(gate)  # The sidecar reads what the planner writes.
    own = Gate.parse(gates({"default": made["defaults"]})[1])
    assert (own.rank, own.pod, own.pods, own.rdma) == (1, "g-1-0", ("g-0-0", "g-1-0"), True)
    assert own.rails[1] == Rail("roceP2p1s0f0v0", "net2", "10.101.0.2", 9000)
    assert expectation(own.expect) == Expectation(("IB", "IBext*"), ranks=1, nodes=2, min_devices=2, complete=True)
    made |= {case: router.objects(one, chosen, "start\n") for case, (one, chosen) in GATEWAYS.items()}
    stored.compare("serving_objects", stored.objects(made))


def test_a_group_is_described_with_everything_that_its_ranks_are_told() -> None:
    own = plan(SHARED)
    pinned = replace(own, image="i@sha256:0", rdma_mode="restricted")
    sized = replace(own.ranks[0], argv=("a", "--mem-fraction-static", "1", "--b", "--max-total-tokens", "2", "c"))
    keys = [cache_key(one, arch, "id:1") for one in (own, pinned) for arch in ("arm64", "")]
    keys += [launch_key(replace(own, ranks=(rank, *own.ranks[1:]))) for rank in (own.ranks[0], sized)]
    described = describe(group(**CASES["all options"])).splitlines()
    stored.compare("serving_described", {"all options": described, "keys": keys, "variables": cache_env().items()})


def test_the_rights_are_those_that_were_approved() -> None:
    subjects = [{"kind": "User", "name": "a"}, {"kind": "Group", "name": "b"}]
    found = {
        case: rights.manifest(rights.needed(group(**CASES[case]), "ns", "g", secret), "ns", "g", of).splitlines()
        for case, secret, of in (("fallback of one node", True, []), ("restricted", False, subjects))
    }
    stored.compare("serving_rights", found)


def offered(name: str, model: str = "m", **spec: Any) -> dict[str, Any]:
    labels = {"labels": {INSTANCE: name, GUARDED: "true" if name < "c" else "false"}} if name else {}
    meta = {"name": name, "namespace": "ns", **labels, **({"annotations": {MODEL: model}} if model else {})}
    return {"metadata": meta, "spec": {"ports": [{"port": 30000}, {"port": 1}], **spec}}


SERVICES = [
    offered("d", ""),
    offered("c", "n"),
    offered("a"),
    offered("b"),
    offered(""),
    offered("e", clusterIP="None"),
]


def test_a_gateway_takes_the_groups_and_refuses_the_keys_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored.say_words(monkeypatch)
    found = {}
    for groups in ([], ["a", "b"], ["b", "x", "y"], ["x"], ["c", "a"]):
        chosen = router.members(SERVICES, groups)
        given = [line for key in (True, False) for line in stored.said(router.findings(chosen, groups, key))]
        found[f"groups {groups}"] = [
            *map(str, chosen),
            *given,
            *router.worker_args(chosen),
            router.revision("r", chosen),
        ]
    known = router.members(SERVICES, [])
    for name, (own, members) in {**GATEWAYS, "with all": (router.Router(key=True), known)}.items():
        live = router.objects(own, members, "start")[-1]
        found[f"staying in {name}"] = [
            *(member.name for member in router.staying(live, [*MEMBERS, *known], "a")),
            router.has_key(live),
            *stored.flat(router.moved(live, known[:2])),
            *stored.flat(router.moved(live, [])),
        ]
    stored.compare("serving_gateways", found)
