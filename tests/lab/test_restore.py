# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a backup is restored to a server and an agent that were reset and installed again.

The new installation has another CA, other tokens and other node passwords than the backup. test_servers.py does the
same with three servers.
"""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from labcommand import LabCommand, changed
from sitecommand import ONLY_K3S, Site

COVERS = ("playbooks/restore.yml", "playbooks/backup.yml", "roles/k3s")

CONFIRMED = {"k3s_restore_confirm": "yes"}


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    """Install K3s on a server and an agent, create an object, back up, reset, and install K3s again."""
    made = Site(make_lab(), namespace="")
    made.lab.up(nodes=1, kubernetes=True)
    made.play("kubernetes", *ONLY_K3S)
    made.kubectl("create", "configmap", "before")
    made.play("backup")
    made.play("reset", k3s_reset_confirm="yes")
    made.play("kubernetes", *ONLY_K3S)
    return made


def test_the_state_of_the_backup_is_back_and_both_nodes_are_ready(site: Site) -> None:
    (backup,) = (site.lab.results / "backups").glob("*.tar.gz")
    assert "configmap/before" not in site.kubectl("get", "configmaps", "-o", "name")
    site.play("restore", k3s_backup_file=str(backup), **CONFIRMED)
    # kubectl uses the controller's kubeconfig, which must trust the CA of the backup
    assert "configmap/before" in site.kubectl("get", "configmaps", "-o", "name")
    # a kubelet that has just started reports that its node is not ready yet
    site.kubectl("wait", "--for=condition=Ready", "node/control", "node/spark1", "--timeout=300s")


def test_the_restored_cluster_accepts_its_agent_again_and_needs_no_repair(site: Site) -> None:
    site.lab.shell("spark1", "systemctl restart k3s-agent")  # joins again with the token and the password of now
    site.kubectl("wait", "--for=condition=Ready", "node/spark1", "--timeout=120s")
    events = site.get("events", "--all-namespaces")["items"]
    assert "NodePasswordValidationFailed" not in {event["reason"] for event in events}
    assert "Node password rejected" not in site.lab.shell("spark1", "journalctl -u k3s-agent --since -60s -o cat")
    assert changed(site.play("kubernetes", *ONLY_K3S)) == 0


def test_a_backup_with_which_k3s_does_not_start_leaves_the_cluster_as_it_was(site: Site, tmp_path: Path) -> None:
    (backup,) = (site.lab.results / "backups").glob("*.tar.gz")
    broken = tmp_path / "broken.tar.gz"
    with tarfile.open(backup) as whole, tarfile.open(broken, "w:gz", format=tarfile.GNU_FORMAT) as made:
        for member in whole:
            member.mtime = int(member.mtime)
            content = whole.extractfile(member)
            text = content.read() if content else b""
            if member.name == "etc/rancher/k3s/config.yaml":
                text = b"- no: mapping\n"
            member.size = len(text)
            made.addfile(member, io.BytesIO(text))
    site.kubectl("create", "configmap", "since")
    said = site.play("restore", check=False, k3s_backup_file=str(broken), **CONFIRMED)
    assert "Every server has its old state again" in said
    assert "Job for k3s.service failed" not in said  # K3s's own reason instead
    # The run ends while K3s starts; this joins the start, which ends when the API answers.
    site.lab.shell("control", "systemctl start k3s")
    site.kubectl("wait", "--for=condition=Ready", "node/control", "node/spark1", "--timeout=180s")
    assert "configmap/since" in site.kubectl("get", "configmaps", "-o", "name")
    assert site.lab.shell("control", "ls -A /var/lib/rancher/k3s/server /etc/rancher | grep gb10 || true") == ""
