# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.facts import Roots, read_host
from sysfs_samples import pci_function, rdma_port, write

OS_RELEASE = 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
wlP9s9 00000000 0100A8C0 0003 0 0 600 00000000 0 0 0
enP7s7 00000000 0100A8C0 0003 0 0 100 00000000 0 0 0
enP7s7 0000A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 x
   1: 0100007F:280A 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 x
"""


class Host:
    """A host below a directory, and the answers of its commands."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.answers: dict[str, str] = {}
        self.roots = Roots(**{name: str(top / name) for name in ("sysfs", "proc", "etc", "dev", "netns", "cgroup")})

    def run(self, command: list[str]) -> str:
        return self.answers.get(" ".join(command), "")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    sysfs, proc = tmp_path / "sysfs", tmp_path / "proc"
    write(tmp_path / "etc/os-release", OS_RELEASE.rstrip())
    write(tmp_path / "cgroup/cgroup.controllers", "cpu memory")
    write(proc / "sys/kernel/osrelease", "6.14.0-1013-nvidia")
    write(proc / "cmdline", "quiet iommu=pt")
    write(proc / "meminfo", "MemTotal:  125000000 kB\nSwapTotal: 1024 kB\nCmaTotal: 0 kB")
    write(proc / "net/route", ROUTES.rstrip())
    write(proc / "net/dev", "Inter-|\n face |\n    lo: 1 2\nenP7s7: 1 2\nwlP9s9: 0 0")
    write(proc / "net/tcp", TCP.rstrip())
    write(
        proc / "driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release"
    )
    write(proc / "77/comm", "python3")
    (proc / "77/fd").mkdir()
    (proc / "77/fd/3").symlink_to("socket:[4711]")
    function = pci_function(sysfs, "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
    (sysfs / "bus/pci/drivers/mlx5_core").mkdir(parents=True)
    (function / "driver").symlink_to(sysfs / "bus/pci/drivers/mlx5_core")
    device = function / "infiniband/rocep1s0f0"
    rdma_port(device, {0: ("fe80::1", "RoCE v2", "enp1s0f0np0")})
    write(device / "fw_ver", "28.45.4028")
    (sysfs / "class/infiniband").mkdir()
    (sysfs / "class/infiniband/rocep1s0f0").symlink_to(device)
    (sysfs / "class/net/wlP9s9/wireless").mkdir(parents=True)
    write(sysfs / "module/ib_core/parameters/netns_mode", "Y")
    write(tmp_path / "dev/infiniband/uverbs0", "")
    made.answers = {
        "ip -d -j link show": '[{"ifname": "enp1s0f0np0", "max_mtu": 9978}]',
        "timedatectl show --property=NTPSynchronized --value": "yes\n",
        **{
            f"systemctl show --property=ActiveState,UnitFileState,LimitMEMLOCK {unit}.service": answer
            for unit, answer in {
                "k3s": "LimitMEMLOCK=8388608\nActiveState=active\nUnitFileState=enabled\n",
                "k3s-agent": "LimitMEMLOCK=\nActiveState=inactive\nUnitFileState=\n",
                "containerd": "LimitMEMLOCK=8388608\nActiveState=inactive\nUnitFileState=disabled\n",
                "docker": "LimitMEMLOCK=infinity\nActiveState=inactive\nUnitFileState=enabled\n",
            }.items()
        },
    }
    return made


def test_everything_is_read(host: Host) -> None:
    facts = read_host(host.roots, [str(host.top / "models/not/yet")], host.run)
    assert facts["os"] == {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.3 LTS"}
    assert (facts["kernel"], facts["command_line"]) == ("6.14.0-1013-nvidia", "quiet iommu=pt")
    assert (facts["memory_kib"], facts["swap_kib"], facts["cma_kib"]) == (125000000, 1024, 0)
    assert (facts["cgroup_version"], facts["time_synchronized"], facts["iommu"]) == (2, True, False)
    assert facts["runtime_memlock"] == {"k3s.service": 8388608, "docker.service": None}
    assert facts["gpu_driver"] == "580.95.05"
    assert facts["rdma"] == {"devices": ["rocep1s0f0"], "device_nodes": 1, "shared_mode": True}
    assert facts["interfaces"] == ["enP7s7", "lo", "wlP9s9"]
    assert (facts["wifi"], facts["default_routes"]) == (["wlP9s9"], ["enP7s7", "wlP9s9"])
    assert facts["listeners"] == [{"port": 10250, "process": "python3"}]
    assert facts["disks"][0]["free_gib"] > 0
    assert facts["pfs"] == [
        {
            "name": "enp1s0f0np0",
            "pci_address": "0000:01:00.0",
            "total_vfs": 8,
            "num_vfs": 0,
            "rdma_device": "rocep1s0f0",
            "max_mtu": 9978,
            "driver": "mlx5_core",
            "driver_version": None,
            "firmware": "28.45.4028",
            "mtu": 9000,
            "carrier": True,
            "speed_mbps": 200000,
            "port_state": "ACTIVE",
            "rate_gbps": 200.0,
            "pcie_gts": 32.0,
            "pcie_width": 4,
            "pcie_max_gts": 32.0,
            "pcie_max_width": 4,
        }
    ]
    assert json.loads(json.dumps(facts)) == facts


def test_the_clock_is_compared_with_the_controller_s(host: Host) -> None:
    assert read_host(host.roots, [], host.run)["clock_offset_s"] is None
    assert abs(read_host(host.roots, [], host.run, time.time() - 3600)["clock_offset_s"] - 3600) < 60


def test_an_empty_host_is_unknown_and_not_an_error(tmp_path: Path) -> None:
    bare = Host(tmp_path)
    facts = read_host(bare.roots, [], bare.run)
    assert facts["kernel"] is None
    assert facts["cgroup_version"] is None
    assert facts["time_synchronized"] is None
    assert facts["rdma"] == {"devices": [], "device_nodes": 0, "shared_mode": None}
    assert facts["pfs"] == []


def test_cgroup_version_one_has_no_list_of_controllers(host: Host) -> None:
    (host.top / "cgroup/cgroup.controllers").unlink()
    assert read_host(host.roots, [], host.run)["cgroup_version"] == 1


def test_a_namespace_without_a_process_is_an_orphan(host: Host) -> None:
    for name in ("cni-dead", "cni-alive"):
        write(host.top / "netns" / name, "")
    (host.top / "proc/77/ns").mkdir()
    os.link(host.top / "netns/cni-alive", host.top / "proc/77/ns/net")
    links = [{"ifname": "lo"}, {"ifname": "net1", "ifalias": "enp1s0f0v0", "address": "02:95:2a:00:01:00"}]
    host.answers["ip -n cni-dead -d -j link show"] = json.dumps(links)
    assert read_host(host.roots, [], host.run)["orphan_namespaces"] == [
        {"namespace": "cni-dead", "links": [{"name": "net1", "alias": "enp1s0f0v0", "mac": "02:95:2a:00:01:00"}]}
    ]
