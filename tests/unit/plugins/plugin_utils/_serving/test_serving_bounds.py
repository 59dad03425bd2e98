# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the plans and findings of groups at and beside the bounds of what is allowed with stored ones."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Load, Plan, Profile, Settings
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import (
    Fallback,
    plan_fallback,
    plan_group,
    summarize,
)
from ring_samples import cabled_plan
from serving_samples import fabric, profile, settings
from stored import compare, said, say_words

Case = tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any]]
DEVICES = ("rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1")
FINDING = {"key": "k", "value": 1, "reason": "r", "remedy": "m", "where": "spark2", "source": ""}
THEIRS = tuple({"name": f"rail{n}", "namespace": "rdma", "resource": "nvidia.com/vf"} for n in (0, 1))


def changed(change: Callable[[dict[str, Any]], object], base: dict[str, Any] | None = None) -> dict[str, Any]:
    found = base or fabric()
    change(found)
    return found


def vfs(host: int, **values: Any) -> Callable[[dict[str, Any]], object]:
    """Return the change of the first and the last VF of a host."""

    def change(found: dict[str, Any]) -> None:
        known = found["hosts"][f"spark{host}"]["vfs"]
        known[0].update(values)
        known[2].update(values)

    return change


def without(host: int, *places: int) -> Callable[[dict[str, Any]], object]:
    def change(found: dict[str, Any]) -> None:
        known = found["hosts"][f"spark{host}"]
        known["vfs"] = [vf for place, vf in enumerate(known["vfs"]) if place not in places]

    return change


def exchanged(*hosts: int, base: dict[str, Any]) -> dict[str, Any]:
    """Exchange the cages of hosts."""
    for host in hosts:
        for vf in base["hosts"][f"spark{host}"]["vfs"]:
            vf["rdma_device"] = re.sub("f([01])v", lambda port: f"f{1 - int(port[1])}v", vf["rdma_device"])
    return base


def mesh(count: int, names: dict[int, list[str]] | None = None) -> dict[str, Any]:
    """Return hosts with one cable between every two."""
    cables = list(combinations(range(1, count + 1), 2))
    hosts: dict[str, Any] = {f"spark{number}": {"vfs": []} for number in range(1, count + 1)}
    for index, (one, two) in enumerate(cables):
        for number in (one, two):
            own = hosts[f"spark{number}"]["vfs"]
            device = (names or {}).get(number, [f"{name}v0" for name in DEVICES])[len(own)]
            own.append(
                {"rail": f"c{one}{two}", "rail_index": index, "vf_index": 0, "netdev": f"n{len(own)}", "prefix": 28}
                | {"rdma_device": device, "address": f"10.{index}.0.{number}", "nad": f"nad-{one}{two}"}
            )
    return {"schema": 1, "mtu": 4200, "hosts": hosts, "findings": []}


def with_switch(base: dict[str, Any]) -> dict[str, Any]:
    """Add a port on a switch to each host."""
    for number, host in enumerate(base["hosts"].values(), start=1):
        host["vfs"].append(
            {"rail": "switch", "rail_index": 9, "vf_index": 0, "rdma_device": "mlx5_0v0", "prefix": 24}
            | {"address": f"10.200.0.{number}", "nad": "gb10-switch-vf0", "netdev": "eth1v0"}
        )
    return base


# Three ports of one NIC, which NCCL can join.
PORTS = {number: [f"rocep1s0f{port}v0" for port in range(3)] for number in range(1, 5)}


def of(nodes: str, tp: int = 0, pp: int = 1, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return profile and settings for a group on the nodes with these numbers."""
    own = {key: values.pop(key) for key in ("nccl", "sglang_version") if key in values}
    size = {"nodes": len(nodes), "tp": tp or len(nodes) // pp, "pp": pp, "nccl": "2.30.7"}
    return size | own, {"nodes": tuple(f"spark{number}" for number in nodes), **values}


HELD = tuple(
    {"instance": name, "node": f"spark{n}", "vf_index": i} for name, n, i in (("o", 2, 0), ("p", 3, 0), ("q", 4, 1))
)
CASES: dict[str, Case] = {
    "four": (fabric(), {}, {}),
    "no fabric": (None, {}, {"models_dir": ""}),
    "everything": (
        fabric(),
        {
            "memory": ("a", "b"),
            "models": ("org/a", "org/b"),
            "revisions": {"org/a": "main", "org/b": "v1"},
            "revision": "v2",
            "model_path": "/srv/models/org--b",
            "paths": ("/srv/models/x",),
            "env": {"A": 1, "B": 2},
            "ep": 2,
            "load": Load(weights=14.6, fraction=0.8, least=103.0, most=109.0),
            "swap_gib": 48,
        },
        {
            "env": {"B": 3},
            "vf_index": 1,
            "port": 1024,
            "rendezvous_port": 65535,
            "instance": "i" * 45,
            "namespace": "models",
            "rdma_mode": "restricted",
            "rdma_resources": ("rdma/a", "rdma/b"),
            "sriov_prefix": "gb10.cluster",
            "strict_transport": True,
            "platform": "b300",
            "taken": HELD[:2],
        },
    ),
    "one node": (
        {},
        {"nodes": 1, "tp": 2, "models": ("org/a",)},
        {"nodes": ("a",), "gpus_per_node": 2, "rdma_mode": "none", "networks": THEIRS, "platform": "h200"},
    ),
    "sockets": (fabric(), {}, {"transport": "socket", "rdma_mode": "restricted", "rdma_resources": ("rdma/a",)}),
    "theirs": (None, {}, {"networks": THEIRS, "rdma_mode": "ipc_lock"}),
    "theirs, named wrongly": (
        None,
        {},
        {"networks": ({"name": "A", "namespace": "b", "given": "A"}, {"name": "a", "namespace": "B.", "given": "B"})},
    ),
    "theirs, without resource": (
        None,
        {},
        {"networks": ({"name": "a", "namespace": "b"},), "rdma_mode": "ipc_lock", "taken": HELD},
    ),
    "wrong numbers": (fabric(), {"tp": 3, "nodes": 3}, {"port": 1023, "rendezvous_port": 65536, "gpus_per_node": 2}),
    "one port twice": (fabric(), {}, {"port": 65536, "rendezvous_port": 65536, "rdma_mode": "none"}),
    "nodes": (fabric(), {}, {"nodes": ("spark8", "spark9", "spark9", "spark1", "spark1")}),
    "nodes of nothing": ({"hosts": {}}, {}, {"nodes": ("spark8", "spark9")}),
    "taken": (fabric(), {}, {"taken": HELD}),
    "taken, the same": (fabric(), {}, {"taken": HELD, "instance": "o", "vf_index": 1}),
    "paths": (
        fabric(),
        {"paths": ("/srv/models", "/nfs/a", "/srv/models/a"), "argv": ("--use-ray", "--grpc-port=1", "x", "use-ray")},
        {},
    ),
    "paths without directory": (fabric(), {"paths": ("/srv/models/a", "/b")}, {"models_dir": "", "instance": "-a"}),
    "environment": (
        fabric(),
        {
            "env": {
                "NCCL_NET": "IB",
                "NCCL_IB_HCA": "a",
                "NCCL_DEBUG_FILE": "a",
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_DEBUG": "WARN",
            }
        },
        {
            "env": {
                "SGLANG_HOST_IP": "1",
                "NCCL_DEBUG_SUBSYS": "COLL",
                "NCCL_DEBUG": "WARN",
                "A_TOKEN": "x",
                "B_KEY": "y",
                "LOADER": "s3://me:word@host/x",
                "SGLANG_MAX_TOKENS": "8",
            }
        },
    ),
    "environment of both": (
        fabric(),
        {"env": {"NCCL_IB_HCA": "a"}},
        {"env": {"NCCL_IB_HCA": "b"}, "platform": "other"},
    ),
    "old NCCL": (
        fabric(),
        {"nccl": "2.28.9", "env": {"NCCL_CONF_FILE": "/models/nccl.conf"}},
        {"env": {"NCCL_HOSTID": 7, "DUMPER_SERVER_PORT": "9"}, "rdma_mode": "none"},
    ),
    "old NCCL, B300": (fabric(), *of("1", nccl="2.28.9", platform="b300")),
    "one node, silent": (
        fabric(),
        {"nodes": 1, "tp": 1, "env": {"NCCL_DEBUG": "WARN", "NCCL_HOSTID": "x"}},
        {"nodes": ("spark1",)},
    ),
    "holes": (
        fabric(),
        {"sglang_version": "0.5.20", "argv": ("--enable-custom-logit-processor=True",), "nodes": 1, "tp": 1},
        {"open_routes": True, "nodes": ("spark1",)},
    ),
    "code": (
        fabric(),
        {"argv": ("--trust-remote-code",), "revisions": {"a": "main", "b": "0" * 40, "c": "0" * 41}},
        {},
    ),
    "findings of the fabric": (
        fabric()
        | {
            "findings": [
                {"severity": s, "rule": f"fabric.{s}{n}", **FINDING} for s in ("error", "info") for n in (1, 2)
            ]
        },
        {},
        {},
    ),
    **{
        f"no {key}": (changed(vfs(3, **{key: ""}), changed(vfs(2, **{key: ""}))), {}, {})
        for key in ("nad", "address", "rdma_device")
    },
    "no VF of this index": (changed(without(2, 1, 3), changed(without(3, 3))), {}, {"vf_index": 1}),
    "too large an index": (changed(without(3, 0)), {}, {"vf_index": 2}),
    "another order": (
        changed(
            vfs(3, rdma_device="x"),
            changed(lambda f: [v.update(rdma_device="a") for v in f["hosts"]["spark2"]["vfs"][2:]]),
        ),
        {},
        {},
    ),
    **{f"ring of {n}": (cabled_plan(n), *of("123456789"[:n])) for n in (3, 4, 5)},
    "ring of five, stages": (cabled_plan(5), *of("12345", pp=5)),
    "ring of three, stages": (cabled_plan(3), *of("123", pp=3, transport="roce", vf_index=1)),
    "ring of four, wrong order": (cabled_plan(4), *of("1324")),
    "ring of four, groups": (cabled_plan(4), *of("1234", tp=2, pp=2)),
    "ring of three, groups": (cabled_plan(3), *of("123", tp=3, pp=2)),
    "ring of four, old": (cabled_plan(4), *of("1234", nccl="2.30.6")),
    "ring of four, owned": (
        cabled_plan(4),
        of("1234")[0] | {"env": {"NCCL_ALGO": "Tree", "NCCL_NET_PLUGIN": "x"}},
        of("1234", env={"NCCL_IB_MERGE_NICS": "1", "NCCL_CUMEM_ENABLE": "0"})[1],
    ),
    "ring of three, owned": (
        cabled_plan(3),
        of("123")[0] | {"env": {"NCCL_ALGO": "Tree"}},
        of("123", env={"NCCL_IB_MERGE_NICS": "1"})[1],
    ),
    "ring of four, sockets": (cabled_plan(4), *of("1234", transport="socket", nccl="2.29.7")),
    "two of a ring": (cabled_plan(4), *of("23", nccl="2.29.7")),
    "two apart": (cabled_plan(4), *of("13")),
    "three of six": (cabled_plan(6), *of("123")),
    "three of six, unknown": (cabled_plan(6), *of("129")),
    "chain": (cabled_plan(4, closed=False), *of("1234")),
    "chain, twice": (cabled_plan(3, closed=False), *of("1223")),
    "ring, cages exchanged": (exchanged(2, base=cabled_plan(3)), *of("123")),
    # Only the VFs of the group's index matter.
    "ring, all cages alike": (
        changed(
            lambda f: [v.update(rdma_device="x") for v in f["hosts"]["spark3"]["vfs"] if v["vf_index"]],
            exchanged(2, 4, base=cabled_plan(4, cages=(1, 0))),
        ),
        *of("1234"),
    ),
    "ring, all cages alike, other names": (
        changed(
            lambda f: [v.update(rdma_device=f"mlx5_{v['rail_index']}") for v in f["hosts"]["spark3"]["vfs"]],
            exchanged(2, 4, base=cabled_plan(4, cages=(1, 0))),
        ),
        *of("1234"),
    ),
    "ring, some cages alike": (exchanged(2, base=cabled_plan(4, cages=(1, 0))), *of("1234")),
    "ring, a switch too": (with_switch(cabled_plan(3)), *of("123", nccl="2.29.7")),
    "ring, a half is missing": (
        changed(
            lambda f: [
                without(n, *(p for p, v in enumerate(f["hosts"][f"spark{n}"]["vfs"]) if v["rail"] == "ring12b"))(f)
                for n in (1, 2)
            ],
            cabled_plan(3),
        ),
        *of("123"),
    ),
    "mesh of three": (mesh(3), *of("123")),
    "mesh of four": (mesh(4, PORTS), *of("1234")),
    "mesh of four, stages": (mesh(4, PORTS), *of("1234", tp=2, pp=2)),
    "mesh of three, other names": (mesh(3, {2: ["b", "a"], 3: ["a", "b"]}), *of("123")),
}


def told(plan: Plan, findings: list[Finding]) -> Iterator[str]:
    yield from said(findings)
    yield json.dumps({key: value for key, value in plan.as_dict().items() if key not in ("ranks", "memory")})
    for rank in plan.as_dict()["ranks"]:
        rank["networks"] = [f"{n['namespace']}/{n['name']} {n['ips']} {n['rdma_device']}" for n in rank["networks"]]
        yield json.dumps({key: value for key, value in rank.items() if key not in ("argv", "name", "pod")})
    if not plan.ranks:
        return
    memory = {"fits": "fits", "download_gb": 62.3} if plan.memory else {}
    yield from summarize(
        plan,
        memory,
        full=bool(plan.memory),
        image_gb=23.4 if plan.paths else None,
        image_note=plan.revisions.get("org/b", ""),
    )


def test_plans_and_findings_of_groups_are_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    made = {name: plan_group(of_fabric, profile(**p), settings(**s)) for name, (of_fabric, p, s) in CASES.items()}
    for planned, _findings in made.values():
        assert Plan.from_dict(json.loads(json.dumps(planned.as_dict()))) == planned
    compare("serving_plans", {name: told(*found) for name, found in made.items()})


TWO: dict[str, Any] = {"preset": "two", "nodes": 2, "tp": 2}
MAIN: tuple[Profile, Settings] = profile(models=("m", "n"), revisions={"m": "v1", "n": "v1"}), settings()
FALLBACKS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "two of four": (fabric(), TWO, {}, (10, 10)),
    "soon": (fabric(), TWO, {}, (9, 9)),
    "three of four": (fabric(), {**TWO, "nodes": 3, "tp": 3}, {}, (600, 300)),
    "four of four": (fabric(), {**TWO, "nodes": 4, "tp": 4}, {}, (600, 300)),
    "three of six": (
        fabric(6),
        {**TWO, "nodes": 3, "tp": 3},
        {"nodes": tuple(f"spark{n}" for n in range(1, 7))},
        (600, 300),
    ),
    "two of a ring": (cabled_plan(4), TWO, {}, (600, 300)),
    "three of a ring": (cabled_plan(4), {**TWO, "nodes": 3, "tp": 3}, {}, (600, 300)),
    "beside others": (fabric(), TWO, {"taken": HELD}, (600, 300)),
    "all held": (fabric(), {**TWO, "nodes": 3, "tp": 3}, {"taken": HELD}, (600, 300)),
    "wrong": (fabric(), {**TWO, "tp": 5, "env": {"NCCL_NET": "IB"}}, {}, (600, 300)),
    "without a fabric": (None, TWO, {}, (600, 300)),
    "other image": (fabric(), {**TWO, "image": "o"}, {}, (600, 300)),
    "other release": (fabric(), {**TWO, "sglang_version": "0.5.23"}, {}, (600, 300)),
    "revisions": (
        fabric(),
        {**TWO, "models": ("n", "m", "o"), "revisions": {"m": "v2", "n": "v1", "o": "v1"}},
        {},
        (600, 300),
    ),
}


def test_fallbacks_are_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    found = {}
    for name, (of_fabric, of_profile, of_settings, times) in FALLBACKS.items():
        fallback, findings = plan_fallback(of_fabric, profile(**of_profile), MAIN[0], settings(**of_settings), *times)
        plans = [
            f"{key} {one.instance} {one.service} {one.rendezvous} {[(r.name, r.node) for r in one.ranks]}"
            for key, one in fallback.plans.items()
        ]
        assert plain.load(Fallback, json.loads(json.dumps(fallback.as_dict()))) == fallback
        found[name] = [*said(findings), f"{fallback.preset} {fallback.after} {fallback.return_after}", *plans]
    compare("serving_fallbacks", found)
