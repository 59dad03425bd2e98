# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the serving plan: argv, environment and networks of every rank, and all errors."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import VF_INDEX
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.checks import check, facts_of, holes
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import (
    Expectation,
    NetworkAttachment,
    Plan,
    Rendezvous,
    to_serving,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import _named
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group, summarize
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions, command
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, resolve
from hypothesis import given
from hypothesis import strategies as st
from role_samples import role_values
from serving_samples import fabric, profile, settings
from serving_samples import plan as sample_plan
from shipped_profiles import SHIPPED


def rules(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def flag(argv: tuple[str, ...], name: str) -> str:
    assert argv.count(name) == 1
    return argv[argv.index(name) + 1]


def test_every_rank_runs_on_its_node_with_its_address() -> None:
    plan, findings = plan_group(fabric(), profile(), settings())
    assert findings == []
    assert [entry.node for entry in plan.ranks] == ["spark1", "spark2", "spark3", "spark4"]
    assert [entry.role for entry in plan.ranks] == ["head", "worker", "worker", "worker"]
    third = plan.ranks[2]
    assert third.name == "gemma-4-31b-it-2"
    assert third.networks == (
        NetworkAttachment("gb10-rail0-vf0", "gb10-serving", "net1", ("10.100.0.3/24",), "rocep1s0f0v0"),
        NetworkAttachment("gb10-rail1-vf0", "gb10-serving", "net2", ("10.101.0.3/24",), "roceP2p1s0f0v0"),
    )
    assert third.env == {
        "GLOO_SOCKET_IFNAME": "net1",
        "MAX_JOBS": "2",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_IB_HCA": "=rocep1s0f0v0,roceP2p1s0f0v0",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "=net1",
        "SGLANG_HOST_IP": "10.100.0.3",
        "SGLANG_WARMUP_TIMEOUT": "3600",
    }
    assert third.limits == {"nvidia.com/gpu": 1}


def test_networks_that_others_made_leave_addresses_and_devices_to_the_pod() -> None:
    theirs = tuple({"name": f"rail{n}", "namespace": "rdma", "resource": "nvidia.com/vf"} for n in (0, 1))
    taken = ({"instance": "other", "node": "spark1", "vf_index": 0},)
    plan, findings = plan_group(None, profile(), settings(networks=theirs, taken=taken, rdma_mode="restricted"))
    assert findings == []
    second = plan.ranks[1]
    assert [network.as_annotation() for network in second.networks] == [
        {"name": f"rail{n}", "namespace": "rdma", "interface": f"net{n + 1}"} for n in (0, 1)
    ]
    assert second.limits == {"nvidia.com/gpu": 1, "nvidia.com/vf": 2}
    assert plan.rendezvous == Rendezvous("gemma-4-31b-it-ranks.gb10-serving.svc", 20000, "gemma-4-31b-it-ranks")
    assert not {"NCCL_IB_HCA", "SGLANG_HOST_IP"} & second.env.keys()
    assert plan.expect == Expectation(4, 4, ("IB", "IBext*"), 2)
    assert "rank 1 on spark2: net1 in rdma/rail0 (its IPAM chooses the address), net2" in "\n".join(summarize(plan, {}))
    words = command(second, plan, PodOptions())
    assert words[words.index("--rails") :][:4] == ["--rails", "net1,net2", "--sysfs", "/sys"]
    assert "--rails" not in command(sample_plan().ranks[0], sample_plan(), PodOptions())
    sets = [one for one in render(plan, PodOptions(), {}, {}) if one["kind"] == "StatefulSet"]
    assert not any(VF_INDEX in one["spec"]["template"]["metadata"]["annotations"] for one in sets)
    (wrong,) = plan_group(None, profile(), settings(networks=({"name": "Rail_0", "namespace": "rdma"},)))[1]
    assert wrong.rule == "serving.networks.name"
    (wrong,) = plan_group(None, profile(), settings(networks=(_named({"name": "rail0", "resources": "a"}, "models"),)))[
        1
    ]
    assert wrong.value == "{'name': 'rail0', 'resources': 'a'}"
    assert _named({"name": "rail0", "resource": None}, "models") == {
        "name": "rail0",
        "namespace": "models",
        "resource": "",
        "given": "{'name': 'rail0', 'resource': None}",
    }


def test_the_plan_for_people_has_every_rank_one_command_and_the_memory() -> None:
    plan = plan_group(fabric(), profile(memory=("left for caches: 57.1 GiB",)), settings())[0]
    memory = {"fits": "fits: about 0.67 M tokens in the cache", "download_gb": 62.3}
    lines, short = summarize(plan, memory, full=True), summarize(plan, memory)
    command = lines.index("command of rank 0:")
    assert short == lines[:command]
    assert short[:5] == [
        "model: google/gemma-4-31B-it, profile gemma-4-31b-it/throughput",
        f"image: {plan.image} (SGLang {plan.sglang_version}, size not known)",
        "download: nothing",
        "memory: fits: about 0.67 M tokens in the cache",
        "endpoint: http://gemma-4-31b-it.gb10-serving:30000/v1, in the cluster",
    ]
    assert [line.partition(" on ")[0] for line in lines[5:command]] == [f"rank {r.rank}" for r in plan.ranks]
    assert tuple(shlex.split("\n".join(lines[command + 1 : -1]).replace("\\\n", ""))) == plan.ranks[0].argv
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "left for caches: 57.1 GiB"


@pytest.mark.parametrize(
    ("models_dir", "text"),
    [
        ("/srv/models", "what /srv/models on each of 4 nodes lacks of org/a, org/b (about 62 GB)"),
        ("", "org/a, org/b (about 62 GB) by each pod, at every start"),
    ],
)
def test_the_plan_says_what_is_downloaded_to_which_nodes(models_dir: str, text: str) -> None:
    plan = plan_group(fabric(), profile(models=("org/a", "org/b")), settings(models_dir=models_dir))[0]
    assert f"download: {text}" in summarize(plan, {"download_gb": 62.3})
    staged = replace(plan, model_path="/srv/models/org--a")
    assert summarize(staged, {})[0] == "model: org/a, profile gemma-4-31b-it/throughput"


def test_the_command_line_names_the_head_on_its_first_rail() -> None:
    plan = sample_plan(nodes=("spark3", "spark1", "spark4", "spark2"))
    argv = plan.ranks[1].argv
    assert argv[:5] == ("python3", "-m", "sglang.launch_server", "--model-path", "google/gemma-4-31B-it")
    assert flag(argv, "--dist-init-addr") == "10.100.0.3:20000"
    assert flag(argv, "--node-rank") == "1"
    assert flag(argv, "--nnodes") == "4"
    assert (flag(argv, "--tp-size"), flag(argv, "--pp-size"), flag(argv, "--ep-size")) == ("4", "1", "1")
    assert (flag(argv, "--host"), flag(argv, "--port")) == ("0.0.0.0", "30000")
    assert flag(argv, "--attention-backend") == "triton"
    assert plan.rendezvous == Rendezvous("10.100.0.3", 20000)


def test_a_directory_below_the_mounted_one_is_served_as_it_is() -> None:
    plan, findings = plan_group(fabric(), profile(paths=("/srv/models/tiny",)), settings())
    assert (findings, plan.paths) == ([], ("/srv/models/tiny",))


def test_a_group_without_staged_models_causes_a_warning() -> None:
    (warned,) = plan_group(fabric(), profile(), settings(models_dir=""))[1]
    assert (warned.severity, warned.rule) == ("warning", "serving.model.unstaged")
    assert "gb10_models_dir" in warned.remedy
    one = settings(nodes=("b300",), models_dir="", platform="other")
    assert plan_group({}, profile(nodes=1, tp=1), one)[1] == []


def test_every_rank_is_told_the_revision_that_the_profile_pins() -> None:
    for entry in sample_plan({"revision": "deadbeef"}).ranks:
        assert flag(entry.argv, "--revision") == "deadbeef"
    assert "--revision" not in sample_plan().ranks[0].argv


def test_a_single_node_needs_neither_fabric_nor_rendezvous() -> None:
    one = profile(nodes=1, tp=4)
    plan, findings = plan_group({}, one, settings(nodes=("b300",), gpus_per_node=4, platform="other"))
    assert findings == []
    (only,) = plan.ranks
    assert only.networks == ()
    assert only.limits == {"nvidia.com/gpu": 4}
    assert "--dist-init-addr" not in only.argv
    assert "NCCL_NVLS_ENABLE" not in only.env
    assert plan.expect == Expectation(ranks=4, nodes=1)
    assert plan.gpu == {}


@pytest.mark.parametrize(
    ("platform", "count", "name", "capability"),
    [("gb10", 1, "NVIDIA GB10", [12, 1]), ("b300", 4, "NVIDIA B300", [10, 3]), ("h200", 8, "NVIDIA H200", [9, 0])],
)
def test_the_image_is_asked_as_on_the_platform(platform: str, count: int, name: str, capability: list[int]) -> None:
    one = settings(nodes=("a",), gpus_per_node=count, platform=platform)
    gpu = plan_group({}, profile(nodes=1, tp=count), one)[0].gpu
    assert (gpu["name"], gpu["capability"], gpu["count"]) == (name, capability, count)


@pytest.mark.parametrize(
    ("changes", "env", "networks"),
    [
        ({}, None, ("IB", "IBext*")),
        ({"strict_transport": True}, "IB", ("IB", "IBext*")),
        ({"transport": "socket"}, "Socket", ("Socket",)),
    ],
)
def test_transport(changes: dict[str, Any], env: str | None, networks: tuple[str, ...]) -> None:
    plan = sample_plan(**changes)
    assert plan.ranks[0].env.get("NCCL_NET") == env
    assert ("NCCL_IB_HCA" in plan.ranks[0].env) is (env != "Socket")
    assert plan.expect.networks == networks


def test_a_device_plugin_s_resources_are_asked_for() -> None:
    plan, findings = plan_group(
        fabric(), profile(), settings(rdma_mode="ipc_lock", rdma_resources=("rdma/rail0", "rdma/rail1"))
    )
    assert findings == []
    assert plan.ranks[3].limits == {"nvidia.com/gpu": 1, "rdma/rail0": 1, "rdma/rail1": 1}


def test_with_a_prefix_the_sriov_device_plugin_s_resources_are_asked_for_in_every_mode() -> None:
    for mode in ("privileged", "ipc_lock", "restricted"):
        plan, findings = plan_group(fabric(), profile(), settings(rdma_mode=mode, sriov_prefix="gb10.cluster"))
        assert findings == []
        wanted = {"nvidia.com/gpu": 1, "gb10.cluster/gb10_rail0_vf0": 1, "gb10.cluster/gb10_rail1_vf0": 1}
        assert plan.ranks[3].limits == wanted


def test_the_user_s_environment_wins_over_the_profile_s() -> None:
    env = sample_plan({"env": {"A": "1", "B": "1"}}, env={"B": "2"}).ranks[0].env
    assert (env["A"], env["B"]) == ("1", "2")


WRONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("serving.instance.name", {}, {"instance": "Gemma_4"}),
    ("serving.instance.name", {}, {"instance": "g" * 46}),
    ("serving.nodes.count", {}, {"nodes": ("spark1", "spark2")}),
    ("serving.nodes.duplicate", {}, {"nodes": ("spark1", "spark2", "spark2", "spark3")}),
    ("serving.nodes.unknown", {}, {"nodes": ("spark1", "spark2", "spark3", "spark9")}),
    ("serving.topology.world", {"tp": 2}, {}),
    ("serving.vf.index", {}, {"vf_index": 2}),
    ("serving.rdma.resource", {}, {"rdma_mode": "restricted"}),
    ("serving.port.range", {}, {"port": 80}),
    ("serving.port.clash", {}, {"port": 20000}),
    ("serving.model.path", {"paths": ("/nfs/glm",)}, {}),
    ("serving.model.path", {"paths": ("/srv/models/tiny", "/srv/models-old/draft")}, {}),
    ("serving.model.path", {"paths": ("/srv/models/tiny",)}, {"models_dir": ""}),
    ("serving.args.door", {"argv": ("--enable-http2",)}, {}),
    ("serving.args.door", {"argv": ("--fastapi-root-path=/v1",)}, {}),
    ("serving.env.owned", {"env": {"NCCL_IB_HCA": "mlx5"}}, {}),
    ("serving.env.evidence", {"env": {"NCCL_DEBUG_FILE": "/dev/stdout"}}, {}),
    ("serving.env.silent", {"env": {"NCCL_DEBUG": "WARN"}}, {}),
    ("serving.env.silent", {}, {"env": {"NCCL_DEBUG": ""}}),
    ("serving.env.masked", {"env": {"NCCL_DEBUG_SUBSYS": "^NET"}}, {"env": {"NCCL_DEBUG": "INFO"}}),
    ("serving.env.conf_file", {"env": {"NCCL_CONF_FILE": "/models/nccl.conf"}}, {}),
    ("serving.env.host_id", {}, {"env": {"NCCL_HOSTID": 7}}),
    ("serving.env.gid_index", {}, {"env": {"NCCL_IB_GID_INDEX": "3"}}),
    ("serving.vf.taken", {}, {"taken": ({"instance": "other", "node": "spark2", "vf_index": 0},)}),
]


@pytest.mark.parametrize(("rule", "of_profile", "of_settings"), WRONG)
def test_wrong_input_stops_the_plan(rule: str, of_profile: dict[str, Any], of_settings: dict[str, Any]) -> None:
    plan, findings = plan_group(fabric(), profile(**of_profile), settings(**of_settings))
    assert rule in rules(findings)
    assert plan.ranks == ()


def test_all_findings_come_at_once() -> None:
    wrong = settings(instance="X", nodes=("spark1", "spark8"), port=1, vf_index=7)
    findings = plan_group(fabric(), profile(tp=2), wrong)[1]
    assert rules(findings) >= {
        "serving.instance.name",
        "serving.nodes.count",
        "serving.nodes.unknown",
        "serving.port.range",
        "serving.vf.index",
        "serving.topology.world",
    }


@pytest.mark.parametrize("key", ["nad", "address", "rdma_device"])
def test_a_vf_without_what_a_pod_needs(key: str) -> None:
    broken = fabric()
    broken["hosts"]["spark2"]["vfs"][0][key] = ""
    (finding,) = plan_group(broken, profile(), settings())[1]
    assert (finding.rule, finding.where) == (f"serving.vf.{key}", "spark2")


def test_an_error_of_the_fabric_plan_stops_the_serving_plan() -> None:
    broken = fabric()
    broken["findings"] = [
        {
            "severity": "error",
            "rule": "fabric.node_id.duplicate",
            "key": "gb10_node_id",
            "value": 1,
            "reason": "twice",
            "remedy": "change one",
            "where": "spark2",
            "source": "",
        }
    ]
    assert rules(plan_group(broken, profile(), settings())[1]) == {"fabric.node_id.duplicate"}


@pytest.mark.parametrize(
    ("nccl", "platform", "warned"), [("2.28.9", "gb10", True), ("2.29.3", "gb10", False), ("2.28.9", "b300", False)]
)
def test_an_nccl_that_hangs_on_arm_is_warned_of(nccl: str, platform: str, warned: bool) -> None:
    plan, findings = plan_group(fabric(), profile(nccl=nccl), settings(platform=platform))
    assert plan.ranks
    assert [finding.rule for finding in findings if finding.rule == "serving.nccl.arm"] == ["serving.nccl.arm"] * warned


def test_warnings_do_not_stop_the_plan() -> None:
    plan, findings = plan_group(fabric(), profile(nccl="2.28.9"), settings(rdma_mode="none"))
    assert rules(findings) == {"serving.rdma.none", "serving.nccl.arm"}
    assert len(plan.ranks) == 4


def test_the_environment_that_nccl_gets_decides_whether_it_hides_its_transport() -> None:
    hiding = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "COLL"}
    loud = {"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "init,net"}
    (mask, debug) = plan_group(fabric(), profile(env=hiding), settings())[1]
    assert (debug.key, debug.value, debug.where, debug.severity) == (
        "NCCL_DEBUG",
        "WARN",
        "profile gemma-4-31b-it/throughput",
        "error",
    )
    assert (mask.key, mask.value) == ("NCCL_DEBUG_SUBSYS", "COLL")
    assert "INIT,NET,ENV" in mask.remedy
    # The user's values, for example those of -e, replace the profile's.
    plan, findings = plan_group(fabric(), profile(env=hiding), settings(env=loud))
    assert (findings, plan.ranks[0].env["NCCL_DEBUG"]) == ([], "info")
    wheres = {found.where for found in plan_group(fabric(), profile(env=loud), settings(env=hiding))[1]}
    assert wheres == {"serving_plan_env"}


@pytest.mark.parametrize(
    ("env", "warned"),
    [({"HF_TOKEN": "hf_1"}, True), ({"LOADER": "s3://me:word@host/x"}, True), ({"SGLANG_MAX_TOKENS": "8"}, False)],
)
def test_a_secret_in_the_environment_that_the_owner_adds_is_warned_of(env: dict[str, str], warned: bool) -> None:
    found = [(one.severity, one.rule, one.value) for one in plan_group(fabric(), profile(), settings(env=env))[1]]
    assert found == ([("warning", "serving.env.secret", None)] if warned else [])


def test_a_group_of_one_node_may_hide_nccl_s_transport() -> None:
    one = {"nodes": 1, "tp": 1, "env": {"NCCL_DEBUG": "WARN", "NCCL_HOSTID": "x"}}
    plan, findings = plan_group(fabric(), profile(**one), settings(nodes=("spark1",)))
    assert (findings, len(plan.ranks)) == ([], 1)


def test_an_instance_may_be_planned_again_over_itself() -> None:
    held = ({"instance": "gemma-4-31b-it", "node": "spark2", "vf_index": 0},)
    assert plan_group(fabric(), profile(), settings(taken=held))[1] == []


@given(
    order=st.permutations([f"spark{n}" for n in range(1, 9)]),
    size=st.integers(min_value=2, max_value=8),
    vf_index=st.integers(min_value=0, max_value=3),
)
def test_addresses_follow_the_node_never_the_rank(order: list[str], size: int, vf_index: int) -> None:
    hosts = fabric(8, 4)
    nodes = tuple(order[:size])
    plan, findings = plan_group(hosts, profile(nodes=size, tp=size), settings(nodes=nodes, vf_index=vf_index))
    assert findings == []
    for rank, entry in enumerate(plan.ranks):
        node_id = hosts["hosts"][nodes[rank]]["node_id"]
        assert [n.address for n in entry.networks] == [
            f"10.100.{vf_index}.{node_id}/24",
            f"10.101.{vf_index}.{node_id}/24",
        ]
        assert entry.env["SGLANG_HOST_IP"] == f"10.100.{vf_index}.{node_id}"
        assert flag(entry.argv, "--node-rank") == str(rank)
    assert len({flag(entry.argv, "--dist-init-addr") for entry in plan.ranks}) == 1


@given(
    first=st.permutations([f"spark{n}" for n in range(1, 5)]),
    second=st.permutations([f"spark{n}" for n in range(1, 5)]),
    indices=st.permutations(range(4)),
)
def test_groups_on_different_vf_indices_share_nothing(first: list[str], second: list[str], indices: list[int]) -> None:
    plans = [
        plan_group(fabric(4, 4), profile(), settings(nodes=tuple(nodes), vf_index=index))[0]
        for nodes, index in zip((first, second), indices[:2], strict=True)
    ]
    addresses = [{n.address for e in plan.ranks for n in e.networks} for plan in plans]
    devices = [{(e.node, n.rdma_device) for e in plan.ranks for n in e.networks} for plan in plans]
    assert len(addresses[0]) == 8
    assert not addresses[0] & addresses[1]
    assert not devices[0] & devices[1]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_plan_survives_the_way_through_a_fact(nodes: int) -> None:
    names = tuple(f"spark{n}" for n in range(1, nodes + 1))
    plan = sample_plan({"nodes": nodes, "tp": nodes, "models": ("a/b",), "revisions": {"a/b": "main"}}, nodes=names)
    fact = json.loads(json.dumps(plan.as_dict()))
    assert plan.as_dict() == fact
    assert (fact["schema"], fact["rendezvous"] == {}) == (1, nodes == 1)
    assert Plan.from_dict(fact | {"findings": []}) == plan


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("version", "release"),
    [
        *(("0.5.21", "0.5.21"), ("0.5.12.post1", "0.5.12"), ("mine", "")),
        *(("0.5.21-dev", "0.5.20"), ("0.5.12.dev155+gbcf8d100d", "0.5.11"), ("0.6.0-rc1", "0.6.0")),
    ],
)
def test_a_development_build_counts_as_the_release_before(version: str, release: str) -> None:
    assert facts_of(profile(sglang_version=version), settings())["release"] == release


@pytest.mark.parametrize(
    ("argv", "revisions", "named"),
    [
        (("--trust-remote-code",), {"a/b": "main", "c/d": "v1", "e/f": COMMIT}, ["a/b", "c/d"]),
        (("--trust-remote-code",), {"a/b": COMMIT}, []),
        (("--trust-remote-code",), {"a/b": COMMIT[:39]}, ["a/b"]),
        ((), {"a/b": "main"}, []),
    ],
)
def test_code_of_a_repository_that_can_change_is_warned_of(
    argv: tuple[str, ...], revisions: dict[str, str], named: list[str]
) -> None:
    findings = plan_group(fabric(), profile(argv=argv, revisions=revisions), settings())[1]
    found = [finding for finding in findings if finding.rule == "serving.model.code"]
    assert [finding.severity for finding in found] == ["warning"] * len(named)
    assert [finding.remedy.split()[6] for finding in found] == [f"https://huggingface.co/{name}" for name in named]


def test_the_plan_names_known_holes_in_one_line() -> None:
    old = profile(sglang_version="0.5.20", argv=("--enable-custom-logit-processor=True",))
    (line,) = holes(old, settings())
    assert line == (
        "known holes of SGLang 0.5.20: open: CVE-2026-7304; note: CVE-2026-112266, CVE-2026-111392; "
        "closed here: CVE-2026-15969, CVE-2026-86793, CVE-2026-15976"
    )
    (opened,) = holes(old, settings(open_routes=True))
    assert "closed" not in opened
    (newest,) = holes(profile(sglang_version="0.5.23"), settings())
    assert newest == "known holes of SGLang 0.5.23: note: CVE-2026-112266"
    assert holes(profile(sglang_version="mine"), settings()) == []
    warned = {f.rule for f in plan_group(fabric(), old, settings(open_routes=True))[1] if f.severity == "warning"}
    assert {"serving.hole.unpickler", "serving.hole.weights", "serving.hole.logit_processor"} <= warned


def test_an_environment_of_the_owner_can_open_a_hole() -> None:
    findings = plan_group(fabric(), profile(), settings(env={"DUMPER_SERVER_PORT": "9999"}))[1]
    assert "serving.hole.dumper" in {f.rule for f in findings if f.severity == "warning"}


def test_profiles_that_trust_a_repository_s_code_pin_it() -> None:
    """For these five no public record of a commit was found."""
    library = Library.load([])
    unpinned = set()
    for name, shipped in SHIPPED.items():
        served = to_serving(resolve(shipped, None, None, {}, library, None), role_values("serving_plan"))
        given = {finding.rule for finding in check(None, served, settings())}
        unpinned |= {name} if "serving.model.code" in given else set()
    assert unpinned == {
        *("ling-3.0-flash", "minimax-m2.5", "minimax-m2.7", "nemotron-3-ultra-550b", "qwen3.6-27b-nvfp4"),
    }
