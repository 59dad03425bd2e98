# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import attachments as networks

PLAN: dict[str, Any] = {
    "networks": [
        {"nad": "gb10-rail0-vf0", "rail": "rail0", "device": "enp1s0f0v0"},
        {"nad": "gb10-rail1-vf0", "rail": "rail1", "device": "enP2p1s0f0v0"},
    ],
    "hosts": {
        "spark1": {
            "vfs": [
                {"nad": "gb10-rail0-vf0", "address": "10.100.0.1", "prefix": 24},
                {"nad": "gb10-rail1-vf0", "address": "10.101.0.1", "prefix": 24},
            ]
        }
    },
}


def test_the_sriov_device_plugin_is_told_which_vf_is_which_resource() -> None:
    plan = {
        "networks": [
            {"nad": "gb10-rail0-vf1", "rail": "rail0", "vf_index": 1},
            {"nad": "gb10-rail0-vf1-enp9s0f0", "rail": "rail0", "vf_index": 1},
        ],
        "hosts": {
            "spark1": {"vfs": [{"nad": "gb10-rail0-vf1", "pf": "enp1s0f0np0"}]},
            "spark2": {"vfs": [{"nad": "gb10-rail0-vf1", "pf": "enp1s0f0np0"}]},
            "spark3": {"vfs": [{"nad": "gb10-rail0-vf1", "pf": "enp1s0f0"}]},
            "box": {"vfs": [{"nad": "gb10-rail0-vf1-enp9s0f0", "pf": "enp9s0f0"}]},
        },
    }
    assert networks.sriov_resources(plan, "gb10.cluster", {"isRdma": True}) == [
        {
            "resourcePrefix": "gb10.cluster",
            "resourceName": "gb10_rail0_vf1",
            "selectors": [{"isRdma": True, "pfNames": ["enp1s0f0#1-1", "enp1s0f0np0#1-1"]}],
        },
        {
            "resourcePrefix": "gb10.cluster",
            "resourceName": "gb10_rail0_vf1_enp9s0f0",
            "selectors": [{"isRdma": True, "pfNames": ["enp9s0f0#1-1"]}],
        },
    ]
    assert networks.sriov_offers(plan, {"spark1": "node1", "box": "box"}, "gb10.cluster") == {
        "node1": ["gb10.cluster/gb10_rail0_vf1"],
        "box": ["gb10.cluster/gb10_rail0_vf1_enp9s0f0"],
    }


def test_only_our_own_attachments_are_stale() -> None:
    ours = {networks.MANAGED_BY: networks.OWNER}
    existing = [
        {"metadata": {"name": "gb10-rail0-vf0", "labels": ours}},
        {"metadata": {"name": "gb10-rail1-vf0", "labels": ours}},
        {"metadata": {"name": "gb10-rail0-vf7", "labels": ours}},
        {"metadata": {"name": "somebody-elses"}},
    ]
    assert networks.stale_nads(existing, PLAN) == ["gb10-rail0-vf7"]


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"config": "{}"}},
        {"spec": None},
        {"metadata": {"labels": {networks.MANAGED_BY: "somebody"}}},
        {"metadata": {"annotations": {networks.RESOURCE_NAME: "gb10.cluster/gb10_rail0_vf0"}}},
    ],
)
def test_only_attachments_that_differ_are_applied(change: dict[str, Any]) -> None:
    wanted = networks.nads(PLAN, "ns")
    # What the API adds to an object
    added = {"uid": "u", "resourceVersion": "7", "generation": 1}
    live = [{**item, "metadata": {**item["metadata"], **added}} for item in wanted]
    assert networks.nads(PLAN, "ns", "", live) == []
    assert networks.nads(PLAN, "ns", "", live[1:]) == wanted[:1]
    assert networks.nads(PLAN, "ns", "gb10.cluster", live) == networks.nads(PLAN, "ns", "gb10.cluster")
    live[1] = {**live[1], **change, "metadata": {**live[1]["metadata"], **change.get("metadata", {})}}
    assert networks.nads(PLAN, "ns", "", live) == wanted[1:2]
