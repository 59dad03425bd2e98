# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the objects of a group: pods per mode, probes per version, volumes, one revision for all ranks."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import Limits
from ansible_collections.gb10.cluster.plugins.module_utils._kube import labels
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, expectation
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from ansible_collections.gb10.cluster.plugins.module_utils._pod.sidecar import Gate
from ansible_collections.gb10.cluster.plugins.modules.jit_cache import KEY
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import manifests as sm
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import pods
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Load, Patch, Plan
from serving_samples import group_revision, plan
from serving_samples import plan as sample_plan

FILES = {"generate_probe.py": "print()\n"}
PODS = tuple(f"gemma-4-31b-it-{rank}-0" for rank in range(4))


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


def test_what_a_group_consists_of() -> None:
    objects = rendered()
    assert [(o["kind"], o["metadata"]["name"]) for o in objects] == [
        *(("ServiceAccount", f"gemma-4-31b-it-{rank}") for rank in range(4)),
        *((kind, f"gemma-4-31b-it-{rank}") for rank in range(4) for kind in ("Role", "RoleBinding")),
        ("ConfigMap", "gemma-4-31b-it-files"),
        ("ConfigMap", "gemma-4-31b-it-programs"),
        ("Service", "gemma-4-31b-it"),
        ("Service", "gemma-4-31b-it-pods"),
        ("PodDisruptionBudget", "gemma-4-31b-it"),
        *(("StatefulSet", f"gemma-4-31b-it-{rank}") for rank in range(4)),
        *((kind, "gemma-4-31b-it-supervisor") for kind in ("ServiceAccount", "Role", "RoleBinding", "Deployment")),
    ]
    assert {o["metadata"]["namespace"] for o in objects} == {"gb10-serving"}


def test_only_the_head_is_behind_the_service() -> None:
    objects = rendered()
    selector = next(o for o in objects if o["kind"] == "Service")["spec"]["selector"]
    chosen = [r for r in range(4) if selector.items() <= pod_of(objects, r)["metadata"]["labels"].items()]
    assert chosen == [0]
    # No StatefulSet can change its selector, so it has only the labels by which ranks are told apart.
    sets = [o["spec"]["selector"]["matchLabels"] for o in objects if o["kind"] == "StatefulSet"]
    assert sets == [{labels.INSTANCE: "gemma-4-31b-it", labels.RANK: str(rank)} for rank in range(4)]


def test_a_pod_is_pinned_confined_and_attached() -> None:
    template = pod_of(rendered(), 2)
    spec = template["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "spark3"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert "hostNetwork" not in spec
    assert json.loads(template["metadata"]["annotations"][pods.NETWORKS]) == [
        {"name": "gb10-rail0-vf0", "namespace": "gb10-serving", "interface": "net1", "ips": ["10.100.0.3/24"]},
        {"name": "gb10-rail1-vf0", "namespace": "gb10-serving", "interface": "net2", "ips": ["10.101.0.3/24"]},
    ]
    assert spec["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}


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


def test_no_probe_kills_a_long_load_and_none_gives_up_before_the_server_answers() -> None:
    """The supervisor sees whether a start makes progress; only without it the kubelet ends a start after its limit."""
    for rank, supervised in itertools.product(range(4), (True, False)):
        options = pods.PodOptions(startup_timeout=1800, supervisor=supervised)
        container = container_of(rendered(options), rank)
        assert "livenessProbe" not in container
        startup = container["startupProbe"]
        assert startup["failureThreshold"] * startup["periodSeconds"] == (604800 if supervised else 1800)
        # a stuck head answers 503 after 20 s
        assert startup["timeoutSeconds"] > 20


@pytest.mark.parametrize(("weights", "more"), [(59.4, 3564), (0, 5232)])
def test_a_rank_that_loads_more_may_take_longer_to_start(weights: float, more: int) -> None:
    """Weights of an unknown size fill at most 0.8 of 109 GiB."""
    large = replace(sample_plan(), load=Load(weights=weights, fraction=0.8, least=103.0, most=109.0))
    assert pods.start_limit(large, pods.PodOptions(startup_timeout=1800)) == 1800 + more


def test_a_rank_that_downloads_its_model_is_not_ended_meanwhile() -> None:
    plan = replace(sample_plan(), models=("org/model",), models_dir="")
    options = pods.PodOptions(startup_timeout=1800)
    assert pods.start_limit(plan, options) == 1800 + 86400
    assert pods.start_limit(replace(plan, models_dir="/srv/models"), options) == 1800


DIRECTORIES = pods.PodOptions(cache_dir="/srv/cache")


@pytest.mark.parametrize("mode", ["privileged", "ipc_lock"])
def test_a_node_s_directories_are_mounted_where_the_level_allows_it(mode: str) -> None:
    objects = rendered(DIRECTORIES, rdma_mode=mode, rdma_resources=("rdma/gb10",), models_dir="/srv/models")
    assert "PersistentVolume" not in {o["kind"] for o in objects}
    paths = [v["hostPath"]["path"] for v in pod_of(objects, 0)["spec"]["volumes"] if "hostPath" in v]
    assert paths == ["/srv/models", "/srv/cache"]
    assert {"name": "cache", "mountPath": "/opt/gb10-cache"} in container_of(objects, 0)["volumeMounts"]


@pytest.mark.parametrize(("mode", "home"), [("restricted", "/home/sglang"), ("none", "/root")])
def test_a_node_s_directories_are_claimed_where_the_level_forbids_host_path(mode: str, home: str) -> None:
    objects = rendered(DIRECTORIES, rdma_mode=mode, rdma_resources=("rdma/gb10",), models_dir="/srv/models")
    for rank in range(4):
        volumes = {v["name"]: v for v in pod_of(objects, rank)["spec"]["volumes"]}
        assert not any("hostPath" in v for v in volumes.values())
        assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "gemma-4-31b-it-models", "readOnly": True}
        # The API keeps no false value, so another manager's one would be a conflict at every run.
        assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "gemma-4-31b-it-cache"}
        assert {"name": "cache", "mountPath": "/opt/gb10-cache"} in container_of(objects, rank)["volumeMounts"]
    found = {o["metadata"]["name"]: o for o in objects if o["kind"].startswith("PersistentVolume")}
    assert list(found) == [
        "gb10-serving-gemma-4-31b-it-models",
        "gemma-4-31b-it-models",
        "gb10-serving-gemma-4-31b-it-cache",
        "gemma-4-31b-it-cache",
    ]
    volume, claim = found["gb10-serving-gemma-4-31b-it-models"]["spec"], found["gemma-4-31b-it-models"]["spec"]
    assert volume["local"] == {"path": "/srv/models"}
    (term,) = volume["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["spark1", "spark2", "spark3", "spark4"]
    assert claim["volumeName"] == "gb10-serving-gemma-4-31b-it-models"
    for key in ("accessModes", "storageClassName", "volumeMode"):
        assert volume[key] == claim[key]


def test_a_server_that_is_not_root_has_a_home_that_it_can_write() -> None:
    container = container_of(rendered(rdma_mode="restricted", rdma_resources=("rdma/gb10",)), 1)
    assert {"name": "HOME", "value": "/home/sglang"} in container["env"]
    assert {"name": "home", "mountPath": "/home/sglang"} in container["volumeMounts"]
    assert "HOME" not in {e["name"] for e in container_of(rendered(), 1)["env"]}


@pytest.mark.parametrize("mode", ["privileged", "ipc_lock", "restricted", "none"])
def test_nccl_writes_to_a_directory_of_its_own_that_an_unprivileged_sidecar_reads(mode: str) -> None:
    spec = pod_of(rendered(rdma_mode=mode, rdma_resources=("rdma/gb10",)), 1)["spec"]
    server, sidecar = spec["containers"]
    assert {"name": "nccl", "emptyDir": {"sizeLimit": "1Gi"}} in spec["volumes"]
    assert {"name": "nccl", "mountPath": "/var/log/nccl"} in server["volumeMounts"]
    assert {"name": "nccl", "mountPath": "/var/log/nccl", "readOnly": True} in sidecar["volumeMounts"]
    assert server["command"][:5] == ["python3", "/opt/gb10/start_rank.py", "--nccl-logs", "/var/log/nccl", "--witness"]
    assert sidecar["securityContext"] == pods.SECURITY["restricted"] | {"readOnlyRootFilesystem": True}
    assert "transport-account" not in json.dumps(server)
    assert spec["readinessGates"] == [{"conditionType": "gb10.cluster/transport"}]
    assert "limits" in sidecar["resources"]
    assert "nvidia.com/gpu" not in sidecar["resources"]["limits"]


def sidecar_settings(objects: list[dict[str, Any]], rank: int) -> Any:
    command = pod_of(objects, rank)["spec"]["containers"][-1]["command"]
    return Gate.parse(command[command.index("--gate") + 1])


@pytest.mark.parametrize(
    ("gate", "probes"), [("enforce", {"/live", "/ready"}), ("warn", {"/live"}), ("off", {"/live"})]
)
def test_the_kubelet_finds_a_sidecar_that_hangs(gate: Any, probes: set[str]) -> None:
    sidecar = pod_of(rendered(pods.PodOptions(transport_gate=gate)), 1)["spec"]["containers"][1]
    found = [sidecar[kind] for kind in ("livenessProbe", "readinessProbe") if kind in sidecar]
    assert {probe["httpGet"]["path"] for probe in found} == probes
    # The pod of the head leaves the Service within 30 seconds, and the container starts again.
    limits = [probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"]) for probe in found]
    assert limits == [90, 30][: len(probes)]


@pytest.mark.parametrize(
    ("mode", "rank", "closes"), [("report", 0, False), ("enforce", 0, True), ("enforce", 1, False)]
)
def test_only_the_head_is_asked_and_only_enforce_may_close_it(mode: Any, rank: int, closes: bool) -> None:
    objects = rendered(pods.PodOptions(answers=mode, transport_gate="warn"))
    assert sidecar_settings(objects, rank).answers == ("off" if rank else mode)
    assert ("readinessProbe" in pod_of(objects, rank)["spec"]["containers"][1]) is closes


def test_the_sidecar_knows_what_its_rank_has_to_prove() -> None:
    gate = sidecar_settings(rendered(pods.PodOptions(sysfs_root="/run/sys")), 2)
    assert (gate.rank, gate.pod, gate.rdma, gate.port, gate.metrics_port) == (2, PODS[2], True, 30000, 30002)
    assert gate.pods == PODS
    assert gate.rails[1] == Rail("roceP2p1s0f0v0", "net2", "10.101.0.3", 9000)
    assert expectation(gate.expect) == Expectation(
        networks=("IB", "IBext*"), ranks=1, nodes=4, min_devices=2, complete=True
    )
    assert not sidecar_settings(rendered(transport="socket"), 0).rdma


def test_the_memory_is_watched_only_if_somebody_can_stop_the_group() -> None:
    assert sidecar_settings(rendered(), 1).memory == Limits(warn=5, stop=3.5, full=20)
    for options in (pods.PodOptions(memory_guard=False), pods.PodOptions(supervisor=False)):
        assert sidecar_settings(rendered(options), 1).memory is None


@pytest.mark.parametrize(
    ("profile", "inventory", "given"), [(0, 0, None), (300, 0, "300"), (0, 90, "90"), (300, 90, "90")]
)
def test_the_inventory_then_the_profile_then_the_supervisor_gives_the_time_of_a_hang(
    profile: int, inventory: int, given: str | None
) -> None:
    plan = sample_plan({"stuck_after": profile})
    command = sm.supervising(plan, pods.PodOptions(stuck_after=inventory), [plan])["command"]
    assert (command[command.index("--stuck-after") + 1] if "--stuck-after" in command else None) == given


def test_both_guards_know_the_swap_that_a_load_needs() -> None:
    objects = rendered(of_profile={"load": Load(weights=14.6, fraction=0.8, least=103.0, most=109.0), "swap_gib": 48})
    (watch,) = [word for word in container_of(objects, 1)["command"] if word.startswith("--watch-load")]
    assert " --swap 48" in watch
    limits = sidecar_settings(objects, 1).memory
    assert limits is not None and limits.swap == 48


def test_a_sidecar_may_write_the_status_of_its_own_pod_and_events_and_nothing_else() -> None:
    objects = rendered()
    for rank, pod in enumerate(PODS):
        user = pod_of(objects, rank)["spec"]["serviceAccountName"]
        assert [o["automountServiceAccountToken"] for o in named(objects, "ServiceAccount", user)] == [False]
        (bound,) = [o["roleRef"] for o in objects if o["kind"] == "RoleBinding" and o["subjects"][0]["name"] == user]
        (role,) = named(objects, "Role", bound["name"])
        assert role["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": list(PODS), "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/status"], "resourceNames": [pod], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    return [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]


def test_a_gate_that_is_off_leaves_the_memory_watched() -> None:
    gate = sidecar_settings(rendered(pods.PodOptions(transport_gate="off")), 1)
    assert gate.expect is None and gate.memory == Limits(warn=5, stop=3.5, full=20)


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


def test_the_supervisor_may_touch_its_group_s_pods_and_nothing_else() -> None:
    objects = rendered()
    (role,) = [o for o in objects if o["kind"] == "Role" and o["metadata"]["name"].endswith("-supervisor")]
    pods_of_group = [f"gemma-4-31b-it-{rank}-0" for rank in range(4)]
    *own, events = role["rules"]
    assert [rule["resourceNames"] for rule in own] == [pods_of_group, pods_of_group]
    assert {verb for rule in own for verb in rule["verbs"]} == {"get", "delete"}
    assert events == {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert ",".join(pods_of_group) in container["command"]
    port = container["command"][container["command"].index("--evidence-port") + 1]
    assert port == str(sidecar_settings(objects, 3).metrics_port)
    assert labels.RANK not in deployment["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("mode", "logs", "kept"),
    [
        ("privileged", "/var/log/gb10", {"path": "/var/log/gb10/gb10-serving/gemma-4-31b-it", "type": "Directory"}),
        ("ipc_lock", "/var/log/gb10", {"path": "/var/log/gb10/gb10-serving/gemma-4-31b-it", "type": "Directory"}),
        ("restricted", "/var/log/gb10", None),
        ("none", "/var/log/gb10", None),
        ("privileged", "", None),
    ],
)
def test_last_logs_outlive_the_supervisor_where_a_node_s_directory_is_allowed(
    mode: str, logs: str, kept: dict[str, str] | None
) -> None:
    objects = rendered(pods.PodOptions(log_dir=logs), rdma_mode=mode, rdma_resources=("rdma/gb10",))
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    volumes = {v["name"]: v for v in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["logs"].get("hostPath") == kept
    assert ("emptyDir" in volumes["logs"]) is (kept is None)
    assert all(volume["name"] != "logs" for rank in range(4) for volume in pod_of(objects, rank)["spec"]["volumes"])


def test_a_group_of_one_node_is_watched_and_supervised_but_has_no_transport_to_prove() -> None:
    plan = sample_plan({"nodes": 1, "tp": 1}, nodes=("b300",))
    objects = sm.render(plan, pods.PodOptions(), FILES, {})
    gate = sidecar_settings(objects, 0)
    assert gate.expect is None and gate.memory == Limits(warn=5, stop=3.5, full=20)
    spec = pod_of(objects, 0)["spec"]
    sidecar = spec["containers"][-1]
    assert "readinessGates" not in spec and "readinessProbe" not in sidecar
    assert sidecar["livenessProbe"]["httpGet"]["path"] == "/live"
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    (supervisor,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "gemma-4-31b-it-0-0" in supervisor["command"]
    assert {o["metadata"]["name"] for o in objects if o["kind"] == "Role"} == {
        "gemma-4-31b-it-0",
        "gemma-4-31b-it-supervisor",
    }


def test_without_guard_and_supervisor_nothing_watches_a_group_of_one_node() -> None:
    plan = sample_plan({"nodes": 1, "tp": 1}, nodes=("b300",))
    objects = sm.render(plan, pods.PodOptions(supervisor=False), FILES, {})
    assert not {"Deployment", "Role"} & {o["kind"] for o in objects}
    # It attaches no VF, so no annotation asks Multus for one.
    assert list(pod_of(objects, 0)["metadata"]["annotations"]) == ["gb10.cluster/revision"]
    assert "--gate" not in pod_of(objects, 0)["spec"]["containers"][-1]["command"]


@pytest.mark.parametrize(
    "change",
    [
        {"of_profile": {"argv": ("--attention-backend", "flashinfer")}},
        {"of_profile": {"image": "other:1"}},
        {"of_profile": {"env": {"A": "1"}}},
        {"vf_index": 1},
        {"options": pods.PodOptions(shm_size="1Gi")},
    ],
)
def test_any_change_gives_all_ranks_a_new_revision(change: dict[str, Any]) -> None:
    before, after = rendered(), rendered(**change)
    assert group_revision(before) != group_revision(after) != ""
    revisions = {o["metadata"]["annotations"][labels.REVISION] for o in after if o["kind"] == "StatefulSet"}
    assert len(revisions) == 1


def test_the_same_plan_gives_the_same_objects() -> None:
    assert rendered() == rendered()


def test_needed_patches_run_before_the_server_and_others_do_not() -> None:
    plan = sample_plan({"patches": (Patch("sm121", "x", needed=True), Patch("old", "y", needed=False))})
    command = pods.command(plan.ranks[0], plan, pods.PodOptions())
    assert command[2:8] == ["--nccl-logs", "/var/log/nccl", "--witness", "--patch", "/opt/gb10-patches/sm121.py", "--"]
    assert command[8:11] == ["python3", "/opt/gb10/front_door.py", "sglang.launch_server"]
    assert tuple(command[10:]) == plan.ranks[0].argv[2:]
    assert tuple(pods.command(plan.ranks[0], plan, pods.PodOptions(open_routes=True))[8:]) == plan.ranks[0].argv
    objects = sm.render(plan, pods.PodOptions(), FILES, {"sm121.py": "print()\n"})
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "ConfigMap"] == [
        "gemma-4-31b-it-files",
        "gemma-4-31b-it-programs",
        "gemma-4-31b-it-patches",
    ]
    mounts = {m["name"] for m in container_of(objects, 0)["volumeMounts"]}
    assert (
        mounts == {"shm", "files", "nccl", "patches"} <= {one["name"] for one in pod_of(objects, 0)["spec"]["volumes"]}
    )


def test_a_rank_compares_its_weights_with_the_memory_that_gpu_and_cpu_share() -> None:
    plan = sample_plan({"load": Load(weights=14.6, fraction=0.8, least=103.0, most=109.0)})
    assert Plan.from_dict(plan.as_dict()) == plan
    assert pods.command(plan.ranks[0], plan, pods.PodOptions())[5:12] == [
        "--memory",
        "14.6",
        "0.8",
        "103.0",
        "109.0",
        "300",
        "--shares",
    ]
    assert "--memory" not in pods.command(plan.ranks[0], plan, pods.PodOptions(memory_timeout=0))
    staged = replace(plan, models=("org/a",), models_dir="/srv/models", paths=("/srv/models/own",))
    words = pods.command(staged.ranks[0], staged, pods.PodOptions())
    assert words[11:13] == ["--shares", "4"]
    assert words[14:19] == ["--model", "/srv/models/own", "--model", "/srv/models/org--a", "--"]
    downloads = replace(plan, models=("org/a",), models_dir="")
    assert "--model" not in pods.command(downloads.ranks[0], downloads, pods.PodOptions())[:14]
    assert "--memory" not in pods.command(plan.ranks[0], sample_plan(), pods.PodOptions())


@pytest.mark.parametrize(
    ("options", "stop", "kept"),
    [
        ({}, "3.5", ""),
        ({"memory_guard": False, "memory_timeout": 0}, "0", ""),
        ({"cache_dir": "/var/c/k"}, "3.5", " --kept /opt/gb10-cache/load-gb10-serving-gemma-4-31b-it.json"),
    ],
)
def test_a_load_is_watched_where_gpu_and_cpu_share_one_memory(options: dict[str, Any], stop: str, kept: str) -> None:
    plan = sample_plan({"load": Load(weights=14.6, fraction=0.8, least=103.0, most=109.0)})
    other = replace(plan, image="other")
    keys = pods.launch_key(plan), pods.launch_key(other)
    assert not set(keys[0].split(".")) & set(keys[1].split(".")) and len(keys[0]) == 25
    wanted = f"--watch-load=--port {plan.service.port} --stop {stop} --key {keys[0]}{kept}"
    for entry in plan.ranks:
        assert wanted in pods.command(entry, plan, pods.PodOptions(**options))
    assert not [word for word in pods.command(plan.ranks[0], sample_plan(), pods.PodOptions()) if "watch" in word]


def test_secrets_are_referred_to_never_written() -> None:
    options = pods.PodOptions(secrets={"HF_TOKEN": ("gemma-secrets", "hf-token")})
    env = container_of(rendered(options), 0)["env"]
    assert env[-1] == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "gemma-secrets", "key": "hf-token"}},
    }


def test_options_reach_the_pod() -> None:
    options = pods.PodOptions(
        runtime_class="nvidia",
        cache_dir="/srv/cache",
        resources={"requests": {"cpu": 1}, "claims": [{"name": "gpu"}]},
    )
    template = pod_of(rendered(options, models_dir="/srv/models"), 1)["spec"]
    assert template["runtimeClassName"] == "nvidia"
    assert {v["name"]: v["hostPath"]["path"] for v in template["volumes"] if "hostPath" in v} == {
        "models": "/srv/models",
        "cache": "/srv/cache",
    }
    assert container_of(rendered(options), 1)["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
        "claims": [{"name": "gpu"}],
    }


@pytest.mark.parametrize(
    ("options", "load", "rank", "asked"),
    [
        ({}, None, 0, {"cpu": "4"}),
        ({}, Load(80, 0.85, 103, 109.2), 0, {"cpu": "4", "memory": "93Gi"}),
        ({}, Load(0, 0.5, 103, 109), 1, {"cpu": "2", "memory": "55Gi"}),
        ({"requests": False}, Load(80, 0.85, 103, 109), 0, None),
        ({"requests": False, "resources": {"requests": {"cpu": 1}}}, Load(80, 0.85, 103, 109), 0, {"cpu": "1"}),
        (
            {"resources": {"requests": {"memory": "64Gi", "example.com/x": 1}}},
            Load(80, 0.85, 103, 109),
            1,
            {"cpu": "2", "memory": "64Gi", "example.com/x": "1"},
        ),
    ],
)
def test_a_rank_requests_what_the_plan_expects_unless_the_owner_says_otherwise(
    options: dict[str, Any], load: Load | None, rank: int, asked: dict[str, str] | None
) -> None:
    container = container_of(rendered(pods.PodOptions(**options), of_profile={"load": load}), rank)
    assert container["resources"].get("requests") == asked


def test_ranks_that_serve_are_not_evicted_unless_the_owner_permits_it() -> None:
    objects = rendered()
    (budget,) = [o["spec"] for o in objects if o["kind"] == "PodDisruptionBudget"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (0, "AlwaysAllow")
    assert budget["selector"]["matchExpressions"] == [{"key": labels.RANK, "operator": "Exists"}]
    chosen = budget["selector"]["matchLabels"].items()
    assert all(chosen <= pod_of(objects, rank)["metadata"]["labels"].items() for rank in range(4))
    kinds = {o["kind"] for o in rendered(pods.PodOptions(disruption_budget=False))}
    assert "PodDisruptionBudget" not in kinds


def test_a_home_has_a_limit_unless_the_rank_downloads_its_model_there() -> None:
    def home(**changes: Any) -> dict[str, Any]:
        of = {"models": ("google/gemma",), "revisions": {"google/gemma": "main"}}
        objects = rendered(of_profile=of, rdma_mode="restricted", rdma_resources=("rdma/gb10",), **changes)
        (volume,) = [one for one in pod_of(objects, 1)["spec"]["volumes"] if one["name"] == "home"]
        return dict(volume["emptyDir"])

    assert (home(models_dir="/srv/models"), home()) == ({"sizeLimit": "16Gi"}, {})


def test_every_object_has_the_recommended_labels_and_every_rank_a_name_in_the_headless_service() -> None:
    objects = rendered()
    names = ("name", "instance", "part-of", "version", "managed-by")
    for one in objects:
        assert {f"app.kubernetes.io/{name}" for name in names} <= set(one["metadata"]["labels"]), one["kind"]
    ranks = [pod_of(objects, rank)["metadata"]["labels"] for rank in range(4)]
    supervisor = objects[-1]["spec"]["template"]["metadata"]["labels"]
    assert [one[labels.COMPONENT] for one in (*ranks, supervisor)] == [*["rank"] * 4, "supervisor"]
    (headless,) = [o for o in objects if o["kind"] == "Service" and o["spec"].get("clusterIP") == "None"]
    assert headless["spec"]["publishNotReadyAddresses"] is True
    used = {o["spec"]["serviceName"] for o in objects if o["kind"] == "StatefulSet"}
    assert used == {headless["metadata"]["name"]}
    selected = headless["spec"]["selector"].items()
    assert [selected <= one.items() for one in (*ranks, supervisor)] == [*[True] * 4, False]


OWN = pods.cache_key(plan(), "arm64", "id:1")


def test_a_key_names_release_and_architecture() -> None:
    assert OWN.startswith("0.5.12.post1-arm64-")
    assert KEY.fullmatch(OWN)
    assert pods.cache_key(replace(plan(), instance="other", preset="other"), "arm64", "id:1") == OWN


@pytest.mark.parametrize(
    "change",
    [
        {"image": "localhost/gb10/sglang-standin:dev@sha256:0"},
        {"sglang_version": "0.5.13"},
        {"rdma_mode": "restricted"},
    ],
)
def test_another_image_never_reads_these_kernels(change: dict[str, Any]) -> None:
    assert pods.cache_key(replace(plan(), **change), "arm64", "id:1") != OWN


def test_an_image_that_was_imported_under_the_same_name_never_reads_these_kernels() -> None:
    assert pods.cache_key(plan(), "arm64", "id:2") != OWN
    named = replace(plan(), image="localhost/gb10/sglang-standin:dev@sha256:0")
    assert pods.cache_key(named, "arm64", "sha256:0") == pods.cache_key(named, "arm64", "")


def test_another_architecture_never_reads_these_kernels() -> None:
    assert pods.cache_key(plan(), "amd64", "id:1") != OWN


def test_every_compiler_has_a_directory_of_its_own() -> None:
    env = pods.cache_env()
    named = {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TVM_FFI_CACHE_DIR"}
    named |= {"TORCHINDUCTOR_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "TILELANG_CACHE_DIR"}
    assert named < set(env)
    assert len(set(env.values())) == len(env)
    assert all(path.startswith(f"{pods.CACHE}/") for path in env.values())
