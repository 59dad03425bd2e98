# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test three servers of the simulated K3s with embedded etcd: joining, losing one, restoring a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from labcommand import LabCommand
from test_kubernetes import AGENT_PASSWORD, CNI_BIN, HOSTS, INSTALL, SERVER_PASSWORD, UNIT, eventually

COVERS = ("lab/kubernetes", "lab/k3s")

SNAPSHOTS = "/var/lib/rancher/k3s/server/db/snapshots"


@pytest.fixture(scope="module")
def servers(make_lab: Callable[[], LabCommand]) -> LabCommand:
    """Return three hosts that are servers; the first one creates the cluster."""
    lab = make_lab()
    lab("up", "--nodes", "2", "--kubernetes")
    for host in HOSTS:
        config: dict[str, Any] = {
            "node-name": host, "flannel-iface": "enP7s7", "secrets-encryption": True,
            "kubelet-arg": ["fail-cgroupv1=false"],
            "token-file": "/etc/rancher/k3s/server-token", "agent-token-file": "/etc/rancher/k3s/agent-token",
        }  # fmt: skip
        config |= {"cluster-init": True} if host == "control" else {"server": "https://10.99.0.10:6443"}
        lab.shell(host, INSTALL.format(
            airgap="/opt/gb10-lab-cache/airgap", cni_bin=CNI_BIN, agent=AGENT_PASSWORD, server=SERVER_PASSWORD,
            config=yaml.safe_dump(config), unit="k3s", text=UNIT.format(role="server", type="notify"),
        ))  # fmt: skip
        lab.shell(host, "systemctl start k3s")
    return lab


def ready(lab: LabCommand, host: str, names: tuple[str, ...]) -> None:
    """Wait until the API of a server reports these nodes as ready."""
    nodes = "k3s kubectl get nodes --no-headers 2>&1 || true"
    eventually(
        lambda: lab.shell(host, nodes),
        lambda out: {line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["Ready"]} >= set(names),
        120,
    )


def test_three_servers_are_one_cluster_that_survives_the_loss_of_one(servers: LabCommand) -> None:
    ready(servers, "spark2", HOSTS)
    servers.shell("control", "systemctl stop k3s")
    servers.shell("spark1", "k3s kubectl create configmap without-the-first")
    servers.shell("control", "systemctl start k3s")
    servers.shell("control", "k3s kubectl get configmap without-the-first")


def test_a_snapshot_restores_the_state_of_its_time(servers: LabCommand) -> None:
    servers.shell("control", "k3s kubectl create configmap before && k3s etcd-snapshot save --name test")
    servers.shell("control", "k3s kubectl create configmap after")
    assert "test-control-" in servers.shell("control", "k3s etcd-snapshot ls")
    for host in reversed(HOSTS):
        servers.shell(host, "systemctl stop k3s")
    servers.shell("control", f"echo damaged >> {SNAPSHOTS}/damaged")
    refused = servers.shell(
        "control", f"k3s server --cluster-reset --cluster-reset-restore-path={SNAPSHOTS}/damaged 2>&1 || true"
    )
    assert "not a snapshot of etcd" in refused
    servers.shell(
        "control", f"k3s server --cluster-reset --cluster-reset-restore-path=$(ls {SNAPSHOTS}/test-control-*)"
    )
    servers.shell("control", "systemctl start k3s")
    kept = servers.shell("control", "k3s kubectl get configmaps -o name")
    assert "configmap/before" in kept
    assert "configmap/after" not in kept
    for host in HOSTS[1:]:
        servers.shell(host, "rm -rf /var/lib/rancher/k3s/server/db/etcd && systemctl start k3s")
    ready(servers, "spark2", HOSTS)
