# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that role k3s downloads its binary only with a pinned checksum, and shows no configuration with a secret."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

VARIABLES = Path(__file__).resolve().parents[3] / "roles" / "k3s" / "vars" / "main.yml"


DEFAULT = "v1.36.4+k3s1"
PINNED = "sha256:c920706346d5ad4e5cd3c7bf1bb09ce71ebe07fec829e513e40f1caf98aed8bb"


@pytest.mark.parametrize(
    ("version", "given", "checksum"),
    [
        (DEFAULT, "", PINNED),
        (DEFAULT, "sha256:mine", "sha256:mine"),
        ("v1.37.1+k3s1", "sha256:mine", "sha256:mine"),
        ("v1.37.1+k3s1", "", ""),
        (DEFAULT, "sha256:https://github.com/k3s-io/k3s/releases/sha256sum-arm64.txt", ""),
    ],
)
def test_a_release_is_downloaded_with_a_pinned_checksum_or_refused(version: str, given: str, checksum: str) -> None:
    loader = DataLoader()
    known = loader.load_from_file(str(VARIABLES), trusted_as_template=True)
    known |= {"k3s_version": version, "k3s_binary_checksum": given, "k3s_download_url": "https://example.org"}
    known |= {"ansible_facts": {"architecture": "aarch64"}, "k3s_airgap_dir": ""}
    templar = Templar(loader=loader, variables=known)
    tasks = loader.load_from_file(str(VARIABLES.parents[1] / "tasks" / "preconditions.yml"), trusted_as_template=True)
    (that,) = [task["ansible.builtin.assert"]["that"] for task in tasks if "pinned checksum" in task["name"]]
    assert templar.template(trust_as_template(f"{{{{ {that} }}}}")) is bool(checksum)
    assert not checksum or templar.template(known["__k3s_binary_checksum"]) == checksum
    assert loader.load_from_file(str(VARIABLES.parents[1] / "defaults" / "main.yml"))["k3s_version"] == DEFAULT


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, True),
        ({"write-kubeconfig-group": "adm", "token-file": "/root/token"}, True),
        ({"datastore-endpoint": "postgres://k3s:word@db/k3s"}, False),
        ({"debug": True, "agent-token": "word"}, False),
        ({"etcd-s3-secret-key": "word"}, False),
        ({"vpn-auth": "name=tailscale,joinKey=word"}, False),
    ],
)
def test_a_configuration_with_a_secret_is_not_shown(config: dict[str, Any], shown: bool) -> None:
    loader = DataLoader()
    known = loader.load_from_file(str(VARIABLES), trusted_as_template=True)
    tasks = loader.load_from_file(str(VARIABLES.parents[1] / "tasks" / "configure.yml"), trusted_as_template=True)
    known |= {"k3s_config": config, "inventory_hostname": "spark1", "k3s_servers": ["control"]}
    known |= {"__k3s_settings": config, "__k3s_registries_file": {"path": "registries.yaml"}, "__k3s_unit_file": {}}
    templar = Templar(loader=loader, variables=known)
    given = templar.template({name: tasks[0]["gb10.cluster.host_files"][name] for name in ("files", "secret_files")})
    paths = {kind: [one.get("path") for one in entries] for kind, entries in given.items()}
    assert ("/etc/rancher/k3s/config.yaml" in paths["files"]) is shown
    assert ("/etc/rancher/k3s/config.yaml" in paths["secret_files"]) is not shown
