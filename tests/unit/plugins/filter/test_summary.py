# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the summary of the registered results of role summary, also of tasks that were skipped."""

import json
from typing import Any

from ansible_collections.gb10.cluster.plugins.filter.serving import summary_lines
from serving_samples import plan

PLAN = plan().as_dict()
RANK = PLAN["ranks"][0]
VERDICT = {"verdict": "ib", "satisfied": True}
STREAM = {"tokens": 64, "tokens_per_second": 31.25, "first_token_seconds": 0.2}


def address(network: dict[str, Any]) -> str:
    return str(network["ips"][0]).partition("/")[0]


def gids(network: dict[str, Any], index: int) -> dict[str, Any]:
    table = [{"index": index, "type": "RoCE v2", "ipv4": address(network)}]
    return {"name": network["rdma_device"], "ports": [{"gids": table}]}


def pod(rank: dict[str, Any]) -> dict[str, Any]:
    status = [{"interface": network["interface"], "ips": [address(network)]} for network in rank["networks"]]
    labels = {"gb10.cluster/rank": str(rank["rank"])}
    annotations = {"k8s.v1.cni.cncf.io/network-status": json.dumps(status)}
    return {"metadata": {"name": f"{rank['name']}-0", "labels": labels, "annotations": annotations}}


def test_registered_results_become_lines() -> None:
    mtus = {network["interface"]: mtu for network, mtu in zip(RANK["networks"], (9000, 1500), strict=True)}
    read = {
        "devices": [gids(network, 3) for network in RANK["networks"]],
        "pod_mtus": {f"{PLAN['namespace']}/{RANK['pod']}": mtus},
    }
    hosts = {RANK["node"]: {"summary_gids": read}, PLAN["ranks"][1]["node"]: {"summary_gids": {"skipped": True}}}
    stream = {"stdout": json.dumps(STREAM)}
    lines = summary_lines(PLAN, [pod(RANK)], hosts, VERDICT, stream, "~/.kube/config", "gb10")
    first, second = lines[3].split(), lines[4].split()
    assert (first[-3:-1], second[-2:]) == (["9000", "3"], ["1500", "3"])
    assert "31.2 tokens/s in one stream of 64 tokens" in lines[-4]
