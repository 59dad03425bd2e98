# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.physical_functions import (
    Pf,
    max_mtus,
    pf_facts,
    read_link,
    read_pfs,
)
from sysfs_samples import mlx5_vf, pci_function, write

LINKS = '[{"ifname": "lo"}, {}, {"ifname": "enp1s0f0np0", "max_mtu": 9978}, {"ifname": "enP7s7", "max_mtu": 9194}]'


def test_functions_with_sriov_are_pfs(tmp_path: Path) -> None:
    function = pci_function(tmp_path, "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
    (function / "infiniband/rocep1s0f0").mkdir(parents=True)
    pci_function(tmp_path, "enP7s7", "0007:01:00.0")
    mlx5_vf(tmp_path)
    pfs = read_pfs(str(tmp_path), LINKS)
    assert pfs == [Pf("enp1s0f0np0", "0000:01:00.0", 8, 0, "rocep1s0f0", 9978)]
    assert pf_facts(pfs) == {
        "gb10_pf_totalvfs": {"enp1s0f0np0": 8},
        "gb10_pf_max_mtu": {"enp1s0f0np0": 9978},
        "gb10_pf_rdma": {"enp1s0f0np0": "rocep1s0f0"},
        "gb10_pf_pci": {"enp1s0f0np0": "0000:01:00.0"},
    }


def test_a_connectx_without_sriov_in_its_firmware_offers_none(tmp_path: Path) -> None:
    write(pci_function(tmp_path, "enp1s0f0np0", "0000:01:00.0") / "vendor", "0x15b3")
    virtual = pci_function(tmp_path, "enp1s0f0v0", "0000:01:00.2")
    write(virtual / "vendor", "0x15b3")
    (virtual / "physfn").symlink_to(tmp_path / "devices/0000:01:00.0")
    assert [(pf.name, pf.total_vfs) for pf in read_pfs(str(tmp_path))] == [("enp1s0f0np0", 0)]


def test_each_port_is_read_with_its_functions_and_first_rdma_device(tmp_path: Path) -> None:
    for name, address, rdma in (("enp1s0f1np1", "0000:01:00.1", ()), ("enp1s0f0np0", "0000:01:00.0", ("b", "a"))):
        function = pci_function(tmp_path, name, address, total_vfs=8)
        write(function / "sriov_numvfs", "2")
        for device in rdma:
            (function / "infiniband" / device).mkdir(parents=True)
    links = '[{"ifname": "enp1s0f0np0", "max_mtu": 9978}, {"ifname": "enp1s0f1np1", "max_mtu": 9000}]'
    pfs = read_pfs(str(tmp_path), links)
    assert pfs == [
        Pf("enp1s0f0np0", "0000:01:00.0", 8, 2, "a", 9978),
        Pf("enp1s0f1np1", "0000:01:00.1", 8, 2, None, 9000),
    ]
    assert {name: list(values) for name, values in pf_facts(pfs).items()} == {
        "gb10_pf_totalvfs": ["enp1s0f0np0", "enp1s0f1np1"],
        "gb10_pf_max_mtu": ["enp1s0f0np0", "enp1s0f1np1"],
        "gb10_pf_rdma": ["enp1s0f0np0"],
        "gb10_pf_pci": ["enp1s0f0np0", "enp1s0f1np1"],
    }
    assert max_mtus("") == {}


def test_what_is_unknown_is_left_out(tmp_path: Path) -> None:
    pci_function(tmp_path, "enp1s0f0np0", "0000:01:00.0", total_vfs=0)
    assert pf_facts(read_pfs(str(tmp_path))) == {
        "gb10_pf_totalvfs": {"enp1s0f0np0": 0},
        "gb10_pf_max_mtu": {},
        "gb10_pf_rdma": {},
        "gb10_pf_pci": {"enp1s0f0np0": "0000:01:00.0"},
    }
    assert read_pfs(str(tmp_path / "nowhere")) == []
    assert max_mtus("Object not json") == {}


def test_a_port_whose_driver_tells_nothing_has_no_vfs_and_a_link_has_both_figures(tmp_path: Path) -> None:
    function = pci_function(tmp_path, "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
    (function / "sriov_numvfs").write_text("unreadable\n")
    assert read_pfs(str(tmp_path))[0].num_vfs == 0
    link = tmp_path / "class/net/enp1s0f0np0"
    (link / "carrier_changes").write_text("3\n")
    (link / "speed").write_text("-1\n")
    assert read_link(tmp_path, "enp1s0f0np0") == {"carrier_changes": 3, "speed": -1}
    assert read_link(tmp_path, "absent0") == {"carrier_changes": None, "speed": None}
