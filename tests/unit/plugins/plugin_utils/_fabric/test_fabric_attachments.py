# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
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


# values are strings, because the plugin's type is map[string]string
ARP = {
    "type": "tuning",
    "sysctl": {"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv4.conf.IFNAME.arp_announce": "2"},
}


def status(*entries: tuple[str, str]) -> str:
    return json.dumps([{"interface": name, "ips": [address]} for name, address in entries])


def test_a_host_device_attachment() -> None:
    first, second = networks.nads(PLAN, "ns")
    assert first["metadata"]["name"] == "gb10-rail0-vf0"
    device = {
        "type": "host-device",
        "device": "enp1s0f0v0",
        "capabilities": {"ips": True},
        "ipam": {"type": "static"},
    }
    assert json.loads(first["spec"]["config"]) == {
        "cniVersion": "1.0.0",
        "name": "gb10-rail0-vf0",
        "plugins": [device, ARP],
    }
    assert json.loads(second["spec"]["config"])["plugins"][0]["device"] == "enP2p1s0f0v0"


def test_a_resource_of_the_sriov_plugin_instead_of_a_name() -> None:
    first = networks.nads(PLAN, "ns", "gb10.cluster")[0]
    config, tuning = json.loads(first["spec"]["config"])["plugins"]
    assert tuning == ARP
    assert first["metadata"]["annotations"] == {networks.RESOURCE_NAME: "gb10.cluster/gb10_rail0_vf0"}
    assert "device" not in config
    assert config["capabilities"] == {"ips": True, "deviceID": True}


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


def test_a_probe_asks_the_sriov_device_plugin_for_its_vfs() -> None:
    limits = [
        networks.probe_pod(PLAN, "spark1", "ns", "node1", "pause:3", prefix)["spec"]["containers"][0]["resources"]
        for prefix in ("", "gb10.cluster")
    ]
    asked = {"gb10.cluster/gb10_rail0_vf0": 1, "gb10.cluster/gb10_rail1_vf0": 1}
    assert limits == [{"limits": {}}, {"limits": asked}]


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


def test_a_probe_asks_for_every_vf_of_its_host() -> None:
    pod = networks.probe_pod(PLAN, "spark1", "ns", "node1", "pause:3")
    wanted = json.loads(pod["metadata"]["annotations"][networks.NETWORKS])
    assert [(entry["interface"], entry["ips"]) for entry in wanted] == [
        ("net1", ["10.100.0.1/24"]),
        ("net2", ["10.101.0.1/24"]),
    ]
    assert pod["spec"]["nodeName"] == "node1"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_what_a_probe_got_is_compared() -> None:
    assert networks.compare_status({"metadata": {"name": "without"}}) == []
    pod = networks.probe_pod(PLAN, "spark1", "ns", "node1", "pause:3")
    annotations = pod["metadata"]["annotations"]
    assert [finding.rule for finding in networks.compare_status(pod)] == ["multus.attachment.missing"] * 2
    annotations[networks.NETWORK_STATUS] = status(("eth0", "10.42.0.2"), ("net1", "10.100.0.1"), ("net2", "10.101.0.9"))
    assert [finding.rule for finding in networks.compare_status(pod)] == ["multus.attachment.wrong"]
    annotations[networks.NETWORK_STATUS] = status(("net1", "10.100.0.1"), ("net2", "10.101.0.1"))
    assert networks.compare_status(pod) == []
    # Others' IPAM may give any address, but has to give one.
    annotations[networks.NETWORKS] = json.dumps([{"name": "theirs", "interface": "net1"}])
    assert networks.compare_status(pod) == []
    del annotations[networks.NETWORK_STATUS]
    assert "was to get an address of this network" in str(*networks.compare_status(pod))


def test_who_holds_a_vf() -> None:
    running = networks.probe_pod(PLAN, "spark1", "ns", "node1", "pause:3")
    done = networks.probe_pod(PLAN, "spark1", "ns", "node2", "pause:3") | {"status": {"phase": "Succeeded"}}
    plain = {"metadata": {"name": "p"}, "spec": {"nodeName": "node3"}}
    assert networks.attached_nads([running, done, plain]) == {"node1": {"gb10-rail0-vf0", "gb10-rail1-vf0"}}
