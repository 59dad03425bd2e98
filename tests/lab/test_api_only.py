# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve, verify and stop a group on nodes that nobody can reach over SSH, in networks that somebody else made.

One lab of two nodes, in the order of this file. The networks are in a namespace of their own, and a plugin of their
owner chooses the addresses. Before the first test, sshd stops on all nodes.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site, is_ready

COVERS = (
    "playbooks/planned.yml",
    "playbooks/kubernetes.yml",
    "roles/existing_cluster",
    "roles/sglang",
    "roles/serving_plan",
    "plugins/plugin_utils/_proof/proof.py",
    "plugins/plugin_utils/_serving",
    "plugins/module_utils/_pod",
)

NODES = ("spark1", "spark2")
# The only other namespace whose networks Multus gives to pods, if it isolates namespaces as here.
SPACE = "default"
# A VF index that the plan would not use, so that its devices differ from those of the plan.
RAILS = {"rail0": ("enp1s0f0v2", 210), "rail1": ("enP2p1s0f0v2", 211)}
THEIRS: dict[str, Any] = {
    "serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}},
    "gb10_kubernetes_provider": "existing",
    "gb10_kube_context": "gb10",
    "gb10_networks": [{"name": f"{SPACE}/{rail}"} for rail in RAILS],
    "gb10_ssh": False,
}
# No node listens on this port, and no connection of an earlier playbook is used for it.
UNREACHABLE = {"ansible_port": 1}
IPAM = """
directory=$(dirname "$(find /var/lib/rancher/k3s/data -name host-device | head -n 1)")
cat > $directory/theirs-ipam <<'PROGRAM'
#!/usr/bin/env python3
import json, os, sys
config = json.load(sys.stdin)
if os.environ["CNI_COMMAND"] == "ADD":
    address = f"10.{config['ipam']['block']}.9.NUMBER/24"
    print(json.dumps({"cniVersion": config["cniVersion"], "ips": [{"address": address}]}))
PROGRAM
chmod 755 $directory/theirs-ipam
"""


def network(rail: str) -> dict[str, Any]:
    device, block = RAILS[rail]
    ipam = {"type": "theirs-ipam", "block": block}
    config = {"cniVersion": "1.0.0", "name": rail, "type": "host-device", "device": device, "ipam": ipam}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": rail, "namespace": SPACE},
        "spec": {"config": json.dumps(config)},
    }


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site.deployed(make_lab(), nodes=2)
    made.kubectl("delete", "network-attachment-definitions", "--all")
    for number, node in enumerate(NODES, start=41):
        made.lab.shell(node, IPAM.replace("NUMBER", str(number)))
        made.lab.shell(node, "systemctl stop ssh.socket ssh.service 2>/dev/null || systemctl stop ssh.service")
    return made


def play(site: Site, playbook: str, check: bool = True, **values: Any) -> str:
    return " ".join(site.play(playbook, check=check, **{**THEIRS, **UNREACHABLE, **values}).split())


def test_a_playbook_that_contacts_the_nodes_fails(site: Site) -> None:
    said = play(site, "serve", check=False, gb10_ssh=True, gb10_networks=[])
    assert "Connection refused" in said


def test_a_network_that_does_not_exist_is_named_before_anything_starts(site: Site) -> None:
    said = play(site, "serve", check=False)
    assert f"namespace {SPACE} has no NetworkAttachmentDefinition of this name, which gb10_networks gives" in said
    assert site.pods() == []
    for rail in RAILS:
        site.kubectl("apply", "-f", "-", f"--namespace={SPACE}", stdin=json.dumps(network(rail)))


def test_the_cluster_is_checked_without_a_node(site: Site) -> None:
    said = play(site, "kubernetes")
    assert "No node was asked over SSH, so neither VFs nor CNI plugins were checked." in said
    assert site.get("network-attachment-definitions")["items"] == []


def test_a_group_is_served_over_the_networks_of_others(site: Site) -> None:
    play(site, "serve")
    ranks = site.pods()
    assert len(ranks) == 2
    assert all(map(is_ready, ranks))
    for rank, pod in enumerate(ranks):
        status = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"])
        addresses = [f"10.{block}.9.{41 + rank}" for _device, block in RAILS.values()]
        assert [entry["ips"] for entry in status[1:]] == [[address] for address in addresses]
        (condition,) = (c for c in pod["status"]["conditions"] if c["type"] == "gb10.cluster/transport")
        assert (condition["status"], condition["reason"]) == ("True", "Proven")
    environment = site.in_head("sh", "-c", "tr '\\0' '\\n' < /proc/1/environ")
    assert "NCCL_IB_HCA==rocep1s0f0v2,roceP2p1s0f0v2" in environment.splitlines()
    assert changed(site.play("serve", **THEIRS, **UNREACHABLE)) == 0


def test_the_group_is_proved_by_its_pods_alone(site: Site) -> None:
    said = play(site, "verify")
    assert "Transport: ib (rdma), by channels evidence, as expected" in said
    (path,) = site.lab.results.rglob("proof.json")
    proof = json.loads(path.read_text(encoding="utf-8"))
    assert proof["counters"]["agrees"] is True
    assert proof["counters"]["rdma_bytes"] > proof["counters"]["tcp_bytes"]
    assert "rank 0" in play(site, "serve_status", instance=site.group)


def test_the_group_is_stopped(site: Site) -> None:
    play(site, "serve_stop", instance=site.group)
    assert site.kubectl("get", "all,cm,sa", "-l", f"gb10.cluster/instance={site.group}", "-o", "name") == ""
    assert len(site.get("network-attachment-definitions", f"--namespace={SPACE}")["items"]) == 2
