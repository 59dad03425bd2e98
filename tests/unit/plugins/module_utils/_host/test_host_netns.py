# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns as host_netns
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host.netns import Holder

INSIDE = {"net1": {"address": "02:00:00:00:00:01", "ifalias": "enp1s0f0v0", "parentdev": "0000:01:00.2"}}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one pod. Files simulate the namespaces, which are identified by their inodes."""
    for name in ("proc/1/ns", "proc/77/ns", "netns", "cni"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/1/ns/net").touch()
    (tmp_path / "proc/self").symlink_to("1")
    (tmp_path / "netns/cni-5f").touch()
    (tmp_path / "netns/cni-stale").touch()
    # What has just ended.
    (tmp_path / "netns/gone").symlink_to("nowhere")
    (tmp_path / "proc/9").mkdir()
    (tmp_path / "proc/77/ns/net").hardlink_to(tmp_path / "netns/cni-5f")
    cached = {
        "cniArgs": [["K8S_POD_NAMESPACE", "gb10-serving"], ["K8S_POD_NAME", "gemma-0"], ["K8S_POD_UID", "5f-1"]],
        "result": {"interfaces": [{"name": "net1", "sandbox": "/var/run/netns/cni-5f"}]},
    }
    (tmp_path / "cni/rail0-net1").write_text(json.dumps(cached))
    (tmp_path / "cni/torn").write_text("{")
    (tmp_path / "cni/of-no-pod").write_text(json.dumps({"netns": "/var/run/netns/cni-stale"}))
    monkeypatch.setattr(system, "links", lambda netns=None: INSIDE)
    return tmp_path


def test_a_pod_and_the_namespace_of_a_deleted_pod_are_distinguished(host: Path) -> None:
    found = host_netns.holders(host / "proc", [host / "netns"], [host / "cni"])
    assert [str(holder) for holder in found] == [
        "pod gb10-serving/gemma-0 (network namespace cni-5f)",
        "network namespace cni-stale (no process in it: left behind by a deleted pod)",
    ]
    assert [holder.pod_uid for holder in found] == ["5f-1", ""]


@pytest.mark.parametrize("result", [{"interfaces": [{"name": "cali12ab"}]}, {}, None])
def test_a_pod_is_known_also_if_the_result_of_its_network_names_no_namespace(host: Path, result: Any) -> None:
    entry = {
        "netns": "/var/run/netns/cni-5f",
        "cniArgs": [["K8S_POD_NAMESPACE", "models"], ["K8S_POD_NAME", "glm-0"]],
        "result": result,
    }
    (host / "cni/rail0-net1").write_text(json.dumps(entry))
    assert str(host_netns.holders(host / "proc", [host / "netns"], [host / "cni"])[0]).startswith("pod models/glm-0 ")


@pytest.mark.parametrize(
    ("netdev", "mac", "pci", "found"),
    [
        ("enp1s0f0v0", "", "", True),
        ("", "02:00:00:00:00:01", "", True),
        ("", "", "0000:01:00.2", True),
        ("enp1s0f0v1", "02:00:00:00:00:02", "0000:01:00.3", False),
        ("", "", "", False),
    ],
)
def test_a_vf_is_recognised_by_alias_mac_or_pci_address(netdev: str, mac: str, pci: str, found: bool) -> None:
    holder = Holder(Path("/run/netns/cni-5f"), "cni-5f", (), "", INSIDE)
    assert host_netns.holder_of(netdev, mac, pci, [holder]) == (holder if found else None)
