# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fabric of four nodes with two rails and a profile for it, in the format of the planners."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import REVISION
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan, Profile, Settings
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group

RAILS = (("rail0", "enp1s0f0", "rocep1s0f0"), ("rail1", "enP2p1s0f0", "roceP2p1s0f0"))


def fabric(nodes: int = 4, vf_count: int = 2) -> dict[str, Any]:
    """Return a fabric plan of hosts spark1…N with ``vf_count`` VFs a rail."""
    return {
        "schema": 1,
        "mtu": 9000,
        "rails": [{"name": name, "index": index} for index, (name, *_network) in enumerate(RAILS)],
        "hosts": {f"spark{node}": _host(node, vf_count) for node in range(1, nodes + 1)},
        "findings": [],
    }


def _host(node: int, vf_count: int) -> dict[str, Any]:
    return {
        "node_id": node,
        "vfs": [
            {
                "rail": rail,
                "rail_index": rail_index,
                "vf_index": vf,
                "netdev": f"{netdev}v{vf}",
                "rdma_device": f"{device}v{vf}",
                "address": f"10.{100 + rail_index}.{vf}.{node}",
                "prefix": 24,
                "nad": f"gb10-{rail}-vf{vf}",
            }
            for rail_index, (rail, netdev, device) in enumerate(RAILS)
            for vf in range(vf_count)
        ],
    }


def profile(**changes: Any) -> Profile:
    """Return the profile of seed 000 at four nodes, changed as asked."""
    values: dict[str, Any] = {
        "name": "gemma-4-31b-it",
        "preset": "throughput",
        "sglang_version": "0.5.12.post1",
        "image": "localhost/gb10/sglang-standin:dev",
        "model_path": "google/gemma-4-31B-it",
        "nodes": 4,
        "tp": 4,
        "pp": 1,
        "ep": 1,
        "argv": ("--attention-backend", "triton", "--mem-fraction-static", "0.6"),
        "nccl": "2.29.7",
    }
    return Profile(**(values | changes))


def settings(**changes: Any) -> Settings:
    """Return settings for a group on all four nodes, changed as asked."""
    nodes = ("spark1", "spark2", "spark3", "spark4")
    values: dict[str, Any] = {"instance": "gemma-4-31b-it", "nodes": nodes, "models_dir": "/srv/models"}
    values |= {"kubeconfig": "/k", "kube_context": "c"}
    return Settings(**(values | changes))


def plan(of_profile: dict[str, Any] | None = None, **of_settings: Any) -> Plan:
    """Return the plan of a group on all four nodes without staged models, changed as asked."""
    return plan_group(fabric(), profile(**(of_profile or {})), settings(**{"models_dir": "", **of_settings}))[0]


def group_revision(objects: list[dict[str, Any]]) -> str:
    """Return the one revision that all workloads among ``objects`` carry."""
    (found,) = {o["metadata"]["annotations"][REVISION] for o in objects if o["kind"] == "StatefulSet"}
    return str(found)
