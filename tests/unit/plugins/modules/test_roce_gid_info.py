# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is told of GIDs and of physical functions, and which GIDs are missed."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.modules import pf_info, roce_gid_info
from module_runs import Step, play
from sysfs_samples import mlx5_vf, pci_function


class Host:
    """A host with a VF, also as it would be without an address, and with a pod and another namespace."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.options, self.may_look = place, {"sysfs_root": str(place / "good")}, True
        mlx5_vf(place / "good")
        mlx5_vf(place / "bare", address=None)
        pci_function(place / "pf", "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
        patch.setattr(netns, "holders", self.holders)
        patch.setattr(AnsibleModule, "get_bin_path", lambda *_: None)

    def holders(self) -> list[netns.Holder]:
        if not self.may_look:
            raise system.HostError("/proc/7/ns/net: Permission denied. The task ran as user a, but needs root")
        inside = {"lo": {"mtu": 65536}, "net1": {"mtu": 9000}}
        names = {"cni-1": "gb10-serving/gemma-0-0", "x": ""}
        return [netns.Holder(Path("/run/netns") / name, name, (7,), pod, inside) for name, pod in names.items()]


def at(name: str, **more: Any) -> Step:
    return lambda host: {"sysfs_root": str(host.place / name), **more}


VF = {"rdma_device": "rocep1s0f0v0", "address": "10.100.0.1"}
CASES: dict[str, list[Step]] = {
    "as expected": [{"expect": [VF], "mtu": 9000}],
    "another address": [{"expect": [{**VF, "address": "10.100.0.2"}]}],
    "nothing expected": [at("bare")],
    "pods": [at("none"), at("none", pods=True), at("none", pods=True, may_look=False)],
}


def test_each_list_of_gids(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("roce_gid_info", roce_gid_info, CASES, Host, capsys, tmp_path)


def test_each_list_of_functions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("pf_info", pf_info, {"one": [at("pf")], "none": [at("none")]}, Host, capsys, tmp_path)
