# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test three servers with embedded etcd, two of them GPU nodes, with the collection's playbooks: the growth from one
server with SQLite, custom networks, the CIS settings, the embedded mirror's files, a backup that is restored, also
after a reset and a new installation, and a reset.
"""

import ipaddress
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from labcommand import LabCommand, changed
from sitecommand import ONLY_K3S, PATIENCE, Site

COVERS = ("playbooks/restore.yml", "playbooks/backup.yml", "roles/k3s", "plugins/module_utils/_host")

HOSTS = ("control", "spark1", "spark2")
MAY_DIFFER = r"^/opt/containerd|^setting .* forwarding"
OPTIONS: dict[str, Any] = {
    "gb10_cluster_cidr": "10.52.0.0/16",
    "gb10_service_cidr": "10.53.0.0/16",
    "k3s_cis": True,
    "k3s_embedded_registry": True,
}


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site(make_lab(), namespace="", values=OPTIONS)
    made.lab.up(nodes=2, kubernetes=True)
    made.before = {host: made.lab.fingerprint(host) for host in HOSTS}
    made.play("fabric")
    made.play("kubernetes", *ONLY_K3S, "--limit", HOSTS[0])
    assert keep_etcd(made) == []
    made.kubectl("create", "secret", "generic", "of-one-server", "--from-literal=a=b")
    made.more = made.lab.state / "servers.yml"
    made.more.write_text(yaml.safe_dump({"gb10_servers": {"hosts": dict.fromkeys(HOSTS)}}))
    made.play("kubernetes")
    return made


def test_the_objects_of_the_only_server_are_kept(site: Site) -> None:
    assert site.get("secret", "of-one-server")["data"] == {"a": "Yg=="}


def test_three_servers_keep_etcd_and_two_of_them_are_gpu_nodes(site: Site) -> None:
    assert keep_etcd(site) == sorted(HOSTS)
    nodes = {node["metadata"]["name"]: node for node in site.get("nodes")["items"]}
    assert sorted(nodes) == sorted(HOSTS)
    assert nodes["spark1"]["status"]["allocatable"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in nodes["control"]["status"]["allocatable"]


def test_pods_and_services_use_the_networks_of_the_inventory(site: Site) -> None:
    pods = [pod for pod in site.get("pods", "--all-namespaces")["items"] if not pod["spec"].get("hostNetwork")]
    found = [pod["status"]["podIP"] for pod in pods if "podIP" in pod["status"]]  # a pod that waits has none
    assert found
    assert {ipaddress.ip_address(address) in ipaddress.ip_network("10.52.0.0/16") for address in found} == {True}
    assert site.get("service", "kubernetes")["spec"]["clusterIP"] == "10.53.0.1"


def test_the_cis_settings_are_in_force(site: Site) -> None:
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain", "namespace": "default"},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    answer = site.ask("create", "--dry-run=server", "-f", "-", stdin=json.dumps(plain)).stderr
    assert 'violates PodSecurity "restricted:latest"' in answer
    for host in HOSTS:
        seen = json.loads(site.kubectl("get", "--raw", f"/api/v1/nodes/{host}/proxy/configz"))["kubeletconfig"]
        assert seen["protectKernelDefaults"] is True
        assert "TLS_RSA_WITH_AES_128_CBC_SHA" not in seen["tlsCipherSuites"]
        assert site.lab.shell(host, "stat -c %a /var/lib/rancher/k3s/server/logs/audit.log") == "600"
        lines = site.lab.shell(host, "tail -n 20 /var/lib/rancher/k3s/server/logs/audit.log").splitlines()
        events = [json.loads(line) for line in lines]
        assert {event["level"] for event in events} == {"Metadata"}
    assert site.lab.shell("spark1", "sysctl -n vm.overcommit_memory kernel.panic") == "1\n10"


def test_every_node_names_the_registries_that_the_embedded_mirror_serves(site: Site) -> None:
    for host in HOSTS:
        assert yaml.safe_load(site.lab.shell(host, "cat /etc/rancher/k3s/registries.yaml")) == {"mirrors": {"*": {}}}
        assert yaml.safe_load(site.lab.shell(host, "cat /etc/rancher/k3s/config.yaml"))["embedded-registry"] is True


def test_a_second_run_changes_nothing(site: Site) -> None:
    assert changed(site.play("kubernetes")) == 0


def test_a_backup_restores_the_state_of_its_time(site: Site) -> None:
    site.kubectl("create", "configmap", "before")
    site.play("backup")
    backup = only_backup(site)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert backup.parent.stat().st_mode & 0o777 == 0o700
    site.kubectl("create", "configmap", "after")
    assert "k3s_restore_confirm=yes" in site.play("restore", check=False, k3s_backup_file=str(backup))
    restore(site, backup)
    assert "configmap/after" not in site.kubectl("get", "configmaps", "-o", "name")


def test_a_backup_is_restored_after_a_reset_and_a_new_installation(site: Site) -> None:
    site.play("reset", k3s_reset_confirm="yes")
    site.play("kubernetes", *ONLY_K3S)
    assert "configmap/before" not in site.kubectl("get", "configmaps", "-o", "name")
    restore(site, only_backup(site))
    # encrypted with the key of the first installation
    assert site.get("secret", "of-one-server")["data"] == {"a": "Yg=="}
    assert changed(site.play("kubernetes", *ONLY_K3S)) == 0


def test_reset_leaves_nothing(site: Site) -> None:
    site.play("reset", k3s_reset_confirm="yes")
    left = {host: site.left(host, MAY_DIFFER) for host in HOSTS}
    assert not any(left.values()), left


def keep_etcd(site: Site) -> list[str]:
    """Return the names of the nodes on which K3s runs etcd."""
    found = site.get("nodes", "--selector=node-role.kubernetes.io/etcd=true")["items"]
    return sorted(node["metadata"]["name"] for node in found)


def only_backup(site: Site) -> Path:
    """Return the archive that playbook backup wrote."""
    (backup,) = (site.lab.state / "results" / "backups").glob("*.tar.gz")
    return backup


def restore(site: Site, backup: Path) -> None:
    """Restore a backup, and require that all three servers are ready and agree on a write."""
    site.play("restore", k3s_backup_file=str(backup), k3s_restore_confirm="yes")
    # A server ends itself if it loses a lease while etcd takes in the others, and systemd starts it again.
    deadline = time.monotonic() + PATIENCE
    while "configmap/before" not in (done := site.ask("get", "configmaps", "-o", "name")).stdout:
        assert time.monotonic() < deadline and done.returncode, done.stdout + done.stderr
        time.sleep(2)
    # a kubelet that has just started reports that its node is not ready yet
    site.kubectl("wait", "--for=condition=Ready", *(f"node/{host}" for host in HOSTS), "--timeout=300s")
    site.lab.shell("spark2", "k3s kubectl create configmap again")
    assert "configmap/again" in site.kubectl("get", "configmaps", "-o", "name")
