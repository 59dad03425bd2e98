# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.modules import pf_info, roce_gid_info
from module_runs import run_module
from sysfs_samples import mlx5_vf, pci_function


def test_success_and_failure_have_the_same_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlx5_vf(tmp_path)
    expect = {"rdma_device": "rocep1s0f0v0", "address": "10.100.0.1"}
    status, good = run_module(roce_gid_info, capsys, sysfs_root=str(tmp_path), expect=[expect], mtu=9000)
    assert (status, good["satisfied"], good["expected"][0]["index"]) == (0, True, 3)
    status, bad = run_module(
        roce_gid_info, capsys, sysfs_root=str(tmp_path), expect=[{**expect, "address": "10.100.0.2"}]
    )
    assert (status, bad["satisfied"], bad["changed"]) == (1, False, False)
    assert set(bad) - {"failed"} == set(good)
    assert "gid.absent" in bad["msg"]


def test_without_expectation_it_only_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlx5_vf(tmp_path, address=None)
    status, result = run_module(roce_gid_info, capsys, sysfs_root=str(tmp_path))
    assert (status, result["satisfied"], len(result["devices"])) == (0, True, 1)


def test_the_mtus_inside_pods_are_read_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = {"lo": {"mtu": 65536}, "net1": {"mtu": 9000}}
    pod = netns.Holder(Path("/run/netns/cni-1"), "cni-1", (7,), "gb10-serving/gemma-0-0", inside)
    monkeypatch.setattr(netns, "holders", lambda: [pod, netns.Holder(Path("/run/netns/x"), "x", (8,), "", inside)])
    assert run_module(roce_gid_info, capsys, sysfs_root=str(tmp_path))[1]["pod_mtus"] == {}
    status, result = run_module(roce_gid_info, capsys, sysfs_root=str(tmp_path), pods=True)
    assert (status, result["pod_mtus"]) == (0, {"gb10-serving/gemma-0-0": {"lo": 65536, "net1": 9000}})

    def refused() -> list[netns.Holder]:
        raise system.HostError("/proc/7/ns/net: Permission denied. The task ran as user a, but needs root")

    monkeypatch.setattr(netns, "holders", refused)
    status, result = run_module(roce_gid_info, capsys, sysfs_root=str(tmp_path), pods=True)
    assert (status, "needs root" in result["msg"], result["pod_mtus"]) == (1, True, {})


def test_pf_info_sets_the_planner_s_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pci_function(tmp_path, "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
    status, result = run_module(pf_info, capsys, sysfs_root=str(tmp_path))
    assert status == 0
    assert result["ansible_facts"]["gb10_pf_totalvfs"] == {"enp1s0f0np0": 8}
    assert result["msg"] == "1 physical functions: enp1s0f0np0"


def test_pf_info_without_sysfs_and_iproute2_finds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda *_: None)
    status, result = run_module(pf_info, capsys, sysfs_root=str(tmp_path / "nowhere"))
    assert (status, result["pfs"], result["msg"]) == (0, [], "0 physical functions: none")
    assert result["ansible_facts"]["gb10_pf_totalvfs"] == {}
