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

LINKS = """[{"ifname": "lo"}, {}, {"ifname": "enp1s0f0np0", "max_mtu": 9978}, {"ifname": "enP7s7", "max_mtu": 9194},
 {"ifname": "enp1s0f1np1", "max_mtu": 9000}]"""


def test_each_port_is_read_with_its_functions_and_first_rdma_device(tmp_path: Path) -> None:
    for name, address, rdma in (("enp1s0f1np1", "0000:01:00.1", ()), ("enp1s0f0np0", "0000:01:00.0", ("b", "a"))):
        function = pci_function(tmp_path, name, address, total_vfs=8)
        write(function / "sriov_numvfs", "2")
        for device in rdma:
            (function / "infiniband" / device).mkdir(parents=True)
    # A NIC that is no PF, a VF, a ConnectX without SR-IOV in its firmware, its VF, and a PF that tells nothing.
    pci_function(tmp_path, "enP7s7", "0007:01:00.0")
    mlx5_vf(tmp_path)
    disabled = pci_function(tmp_path, "enp9s0np0", "0000:09:00.0")
    virtual = pci_function(tmp_path, "enp9s0v0", "0000:09:00.2")
    for function in (disabled, virtual):
        write(function / "vendor", "0x15b3")
    (virtual / "physfn").symlink_to(disabled)
    write(pci_function(tmp_path, "x0", "0000:0a:00.0", total_vfs=0) / "sriov_numvfs", "unreadable")
    pfs = read_pfs(str(tmp_path), LINKS)
    assert pfs == [
        Pf("enp1s0f0np0", "0000:01:00.0", 8, 2, "a", 9978),
        Pf("enp1s0f1np1", "0000:01:00.1", 8, 2, None, 9000),
        Pf("enp9s0np0", "0000:09:00.0", 0, 0, None, None),
        Pf("x0", "0000:0a:00.0", 0, 0, None, None),
    ]
    assert pf_facts(pfs[1:]) == {
        "gb10_pf_totalvfs": {"enp1s0f1np1": 8, "enp9s0np0": 0, "x0": 0},
        "gb10_pf_max_mtu": {"enp1s0f1np1": 9000},
        "gb10_pf_rdma": {},
        "gb10_pf_pci": {"enp1s0f1np1": "0000:01:00.1", "enp9s0np0": "0000:09:00.0", "x0": "0000:0a:00.0"},
    }
    assert pf_facts(pfs[:1])["gb10_pf_rdma"] == {"enp1s0f0np0": "a"}
    assert [pf.max_mtu for pf in read_pfs(str(tmp_path))] == [None] * 4
    assert read_pfs(str(tmp_path / "nowhere")) == []
    assert max_mtus("") == max_mtus("Object not json") == {}


def test_a_link_has_both_figures(tmp_path: Path) -> None:
    pci_function(tmp_path, "enp1s0f0np0", "0000:01:00.0")
    link = tmp_path / "class/net/enp1s0f0np0"
    (link / "carrier_changes").write_text("3\n")
    (link / "speed").write_text("-1\n")
    assert read_link(tmp_path, "enp1s0f0np0") == {"carrier_changes": 3, "speed": -1}
    assert read_link(tmp_path, "absent0") == {"carrier_changes": None, "speed": None}
