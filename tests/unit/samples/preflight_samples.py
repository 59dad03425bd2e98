# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of a host without any preflight finding."""

from __future__ import annotations

from typing import Any

PF = {
    "name": "enp1s0f0np0",
    "pci_address": "0000:01:00.0",
    "total_vfs": 4,
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
    "addresses": [],
    "master": None,
}
GOOD: dict[str, Any] = {
    "user": {"uid": 0, "name": "root", "sudo_from": "nvidia"},
    "os": {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.3 LTS"},
    "arch": "aarch64",
    "kernel": "6.14.0-1013-nvidia",
    "boot_id": None,
    "command_line": "quiet",
    "memory_kib": 125000000,
    "swap": [],
    "memory_holders": [],
    "kernel_log": {},
    "cma_kib": 65536,
    "cma_free_kib": 61000,
    "cgroup_version": 2,
    "time_synchronized": True,
    "clock_offset_s": 1.5,
    "disks": [{"path": "/var/lib", "device": 1, "total_gib": 3700.0, "free_gib": 900.0}],
    "images": [],
    "staged": {},
    "written": {path: {"read_only": False, "free_mib": 900000} for path in ("/etc", "/usr/local", "/var/lib")},
    "iommu": True,
    "runtime_memlock": {"k3s-agent.service": None},
    "kubernetes": {"units": {}, "version": "", "others": [], "settings": {}, "kubeconfig": False},
    "dgx_os": "7.3.1",
    "bios": "5.36_0ACUM018",
    "modules": ["mlx5_core", "nvidia"],
    "packages": {"nvidia-container-toolkit": "1.18.0-1"},
    "gpu_driver": "580.95.05",
    "gpu_module": "open",
    "gpu_runtime": "/usr/bin/nvidia-container-runtime",
    "gpus": [
        {
            "name": "NVIDIA GB10",
            "utilization": 0.0,
            "clock_mhz": 208.0,
            "max_clock_mhz": 3003.0,
            "power_limit_w": 140.0,
            "default_power_limit_w": 140.0,
            "slowdown": 1.0,
        }
    ],
    "rdma": {"devices": ["rocep1s0f0"], "device_nodes": 1, "shared_mode": True},
    "pfs": [PF, {**PF, "name": "enP2p1s0f0np0", "rdma_device": "roceP2p1s0f0"}],
    "interfaces": ["enP7s7", "lo", "wlP9s9"],
    "addresses": {"lo": ["127.0.0.1"], "enP7s7": ["192.168.10.11"]},
    "wifi": ["wlP9s9"],
    "default_routes": ["enP7s7", "wlP9s9"],
    "routes": {"enP7s7": ["192.168.10.0/24"]},
    "nameservers": ["127.0.0.53", "192.168.10.1"],
    "listeners": [{"port": 22, "process": "sshd"}, {"port": 10250, "process": "k3s-agent"}],
    "network_services": {
        "NetworkManager.service": {"LoadState": "not-found", "ActiveState": "inactive"},
        "systemd-networkd.service": {"LoadState": "loaded", "ActiveState": "active"},
    },
    "netplan": {"error": None, "files": []},
    "firewall": {"active": False, "allowed": []},
    "orphan_namespaces": [{"namespace": "mine", "links": [{"name": "veth0", "alias": "", "mac": "aa:bb:cc:00:00:01"}]}],
}
