# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the summary: values that were read, and dashes for values that were not."""

import json
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import Status
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import summary
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import kept
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import describe, outdated
from serving_samples import plan
from stored import compare

PLAN = plan()


def pods() -> list[dict[str, Any]]:
    return [
        {
            "metadata": {
                "name": f"{entry.name}-0",
                "labels": {summary.RANK: str(entry.rank)},
                "annotations": {
                    summary.NETWORK_STATUS: json.dumps(
                        [{"interface": "eth0", "ips": ["10.42.0.9"]}]
                        + [{"interface": n.interface, "ips": [n.ip]} for n in entry.networks]
                    )
                },
            }
        }
        for entry in PLAN.ranks
    ]


DEVICES = {
    entry.node: [
        {
            "name": network.rdma_device,
            "ports": [
                {
                    "gids": [
                        {"index": 2, "type": "RoCE v1", "ipv4": network.ip},
                        {"index": 3 + place, "type": "RoCE v2", "ipv4": network.ip},
                        {"index": 0, "type": "RoCE v2", "ipv4": None},
                    ],
                }
            ],
        }
        for place, network in enumerate(entry.networks)
    ]
    for entry in PLAN.ranks
}
FOUND = summary.gids(DEVICES)
MTUS = {rank: {"net1": 9000, "net2": 9000} for rank in range(4)}
CLUSTER = ("~/.kube/config", "gb10")
SPEED = {"tokens": 64, "tokens_per_second": 21.94, "first_token_seconds": 0.1}


def workload(*argv: str, name: str = "sglang") -> dict[str, Any]:
    command = ["python3", "/opt/gb10/start_rank.py", "--model", "/no", "--", "python3", "-m", "x", *argv]
    template = {"metadata": {}, "spec": {"containers": [{"name": name, "command": command}]}}
    return {"kind": "StatefulSet", "metadata": {"name": "g-0"}, "spec": {"template": template}}


def test_a_group_is_outdated_when_any_rank_runs_another_revision() -> None:
    wanted = render(plan(), PodOptions(), {}, {})
    other = render(plan(vf_index=1), PodOptions(), {}, {})
    assert not outdated([], wanted)
    assert not outdated(wanted, wanted)
    # Only workloads are compared.
    assert not outdated([o for o in wanted if o["kind"] == "StatefulSet"], wanted)
    assert outdated(other, wanted)
    assert outdated([o for o in wanted if o["metadata"]["name"] != "gemma-4-31b-it-3"], wanted)
    bare = [{"kind": "StatefulSet", "metadata": {"name": "gemma-4-31b-it-0", "labels": {}}}]
    assert outdated(bare, wanted)


def bare(name: str, rank: str | None, *beside: dict[str, Any], **container: Any) -> dict[str, Any]:
    """Return a workload as the API may return it: what is empty is absent."""
    labels = {"labels": {summary.RANK: rank}} if rank else {}
    spec = {
        "containers": [
            {"name": "sglang", "image": "i", "command": ["python3", "a", "--b", "c", "d", "--e"], **container},
            *beside,
        ]
    }
    return {
        "kind": "StatefulSet",
        "metadata": {"name": name, **labels},
        "spec": {"template": {"metadata": labels, "spec": spec}},
    }


def annotated(networks: Any) -> dict[str, Any]:
    found = bare(
        "g-2",
        "2",
        {"name": "other", "command": ["x", "--y", "z"]},
        env=[{"name": "A"}],
        resources={"b": {"d": 1, "c": 2}, "a": []},
    )
    found["spec"]["template"]["metadata"]["annotations"] = {summary.NETWORKS: json.dumps(networks)}
    return found


MANY: dict[str, Any] = {
    "verdict": "ib",
    "transport_class": "rdma",
    "evidence": "channels",
    "satisfied": True,
    "evidence_files": ["a", "b"],
    "counters": {"cables": {"a": 1500000, "b": 250000}},
    "ranks": [
        {"rank": 1, "channels": {"Socket": {"1": 2}, "IB": {"1": 4, "0": 2}}},
        {"rank": 0, "verdict": "no"},
        {"rank": 2},
    ],
}
READ = [
    {
        "item": {"metadata": {"name": f"g-{n}-0"}, "spec": {"nodeName": "a"} if n else {}},
        "log_lines": ["x", "y"] if n else [],
    }
    for n in (0, 1)
]


STATUSES = [
    Status(),
    Status("f1", "NodeLost", "preset two serves on a, b", 60.0),
    Status(reason="NoFallbackFits", message="gone: a, b"),
]


def test_what_is_said_about_running_groups_is_what_is_stored() -> None:
    alone = plan({"nodes": 1, "tp": 1}, nodes=("b300",))
    some = pods()[1:3]
    some[0]["metadata"]["annotations"] = {
        summary.NETWORK_STATUS: json.dumps([{"interface": "net2", "ips": "x"}, {"ips": []}])
    }
    del some[1]["metadata"]["annotations"]
    other = [*some, {"metadata": {}}, {"metadata": {"labels": None}}]
    embeds = replace(PLAN.ranks[0], argv=("--is-embedding",))
    head = workload("--model-path", "org/m", "--node-rank", "0", "--port", "31000")
    worker = workload("--model-path", "/srv/m", "--node-rank", "1", "--port", "32000")
    short, other_name = workload("--model-path", "org/m"), workload("--model-path", "org/m", name="other")
    theirs = plan(networks=({"name": "a", "namespace": "b"},))
    waived = replace(PLAN, waived={"a": [], "b": []})
    devices = {"spark1": [*DEVICES["spark1"], {"name": "x", "ports": [{"gids": []}, *DEVICES["spark1"][0]["ports"]]}]}
    seen = {
        "all": summary.summary(PLAN, pods(), FOUND, MTUS, MANY, SPEED, *CLUSTER),
        "some": summary.summary(waived, other, FOUND, {2: {"net1": 1500}}, {"verdict": "x"}, {}, "~/a b", "c d"),
        "one node": summary.summary(alone, [], {}, {}, {}, SPEED, "/a", "c"),
        "networks of others": summary.summary(
            theirs, pods(), {}, MTUS, {"ranks": None, "satisfied": True}, {}, *CLUSTER
        ),
        "GIDs": [f"{key} {index}" for key, index in summary.gids(devices | {"spark2": DEVICES["spark2"]}).items()],
        "image": summary.judged({"verdict": "rejected"})
        + summary.judged({"verdict": "a", "seconds": 1.6, "message": "m"}),
        "an embedding model": summary.next_steps(replace(PLAN, ranks=(embeds, *PLAN.ranks[1:])), *CLUSTER)[-1:],
        "served": [summary.served(each, "ns", "g") for each in ([worker, head], [short], [], [worker], [other_name])],
        "switch": [
            str(kept(found))
            for found in ([], [{"data": None}], *([{"data": {"status": one.as_json()}}] for one in STATUSES))
        ],
        "logs": summary.shown_logs(READ, "ns", *CLUSTER),
        "no logs": summary.shown_logs([], "ns", *CLUSTER),
        "ranks": describe(
            [
                bare("g-10", "10"),
                annotated([{"interface": "a", "name": "n", "ips": ["1", "2"]}, {"ips": "x"}]),
                bare("g", None),
                bare("g-x", "x"),
            ]
        ).splitlines(),
        "none": describe([bare("g", None)]).splitlines(),
    }
    compare("serving_summaries", seen)
