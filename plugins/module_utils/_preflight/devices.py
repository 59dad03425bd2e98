# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's GPU, RDMA devices and physical functions without changing anything."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from .._rdma.gids import parse_rate, parse_state
from .._sriov.physical_functions import Pf, read_int, read_text
from .commands import Run
from .model import Address, Gpu, Port, Rdma

_SPEED = re.compile(r"(?P<speed>[\d.]+) GT/s")
# Where K3s looks for the container toolkit's runtime at its start, besides its PATH (k3s pkg/agent/containerd).
RUNTIMES = ("usr/local/nvidia/toolkit/nvidia-container-runtime", "usr/bin/nvidia-container-runtime")
_GPU_FIELDS = {
    "name": "name",
    "utilization": "utilization.gpu",
    "clock_mhz": "clocks.sm",
    "max_clock_mhz": "clocks.max.sm",
    "power_limit_w": "enforced.power.limit",
    "default_power_limit_w": "power.default_limit",
    "slowdown": "clocks_event_reasons.active",
}


def read_gpu_driver(proc: Path) -> str | None:
    """Return the version of the loaded NVIDIA driver."""
    text = read_text(proc / "driver/nvidia/version") or ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return match[1] if match else None


def read_gpu_module(proc: Path) -> str | None:
    """Return which of NVIDIA's kernel modules is loaded, ``open`` or ``proprietary``."""
    text = read_text(proc / "driver/nvidia/version") or ""
    return None if "Kernel Module" not in text else "open" if "Open Kernel Module" in text else "proprietary"


def read_gpu_runtime(root: Path) -> str | None:
    """Return the path of NVIDIA's container runtime, or None if K3s would not find one."""
    return next((f"/{name}" for name in RUNTIMES if (root / name).exists()), None)


def read_gpus(run: Run) -> list[Gpu] | None:
    """Return name, load, clocks, power limits and slow-down bits of each GPU; unknown values are None.

    None means that nvidia-smi is missing, failed or did not answer. An empty list means that it found no GPU.
    """
    query = ",".join(_GPU_FIELDS.values())
    answer = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.output.splitlines())]
    found = [_gpu(row) for row in rows if len(row) == len(_GPU_FIELDS)]
    return found if answer.status == 0 else None


def _gpu(row: Sequence[str]) -> Gpu:
    numbers = dict(zip(_GPU_FIELDS, map(_number, row), strict=True))
    return cast(Gpu, {**numbers, "name": row[0]})


def _number(cell: str) -> float | None:
    try:
        return float(int(cell, 16)) if cell.startswith("0x") else float(cell)
    except ValueError:  # GB10 prints [N/A] for values that its power supply does not report
        return None


def read_rdma(sysfs: Path, dev: Path) -> Rdma:
    """Return RDMA devices, the number of device nodes that programs can open, and whether namespaces share devices."""
    mode = read_text(sysfs / "module/ib_core/parameters/netns_mode")
    return {
        "devices": sorted(path.name for path in (sysfs / "class/infiniband").glob("*")),
        "device_nodes": len(list((dev / "infiniband").glob("uverbs*"))),
        "shared_mode": {"Y": True, "N": False}.get(mode or ""),
    }


def read_ports(
    sysfs: Path, pfs: Iterable[Pf], addresses: Mapping[str, list[Address]], masters: Mapping[str, str]
) -> list[Port]:
    """Return driver, firmware, link, PCIe link, addresses and master of each physical function."""
    return [_port(sysfs, pf, addresses.get(pf.name, []), masters.get(pf.name)) for pf in pfs]


def _port(sysfs: Path, pf: Pf, addresses: list[Address], master: str | None) -> Port:
    netdev = sysfs / "class/net" / pf.name
    device = netdev / "device"
    driver = device / "driver"
    rdma = sysfs / "class/infiniband" / (pf.rdma_device or "-")
    return {
        "name": pf.name,
        "pci_address": pf.pci_address,
        "total_vfs": pf.total_vfs,
        "num_vfs": pf.num_vfs,
        "rdma_device": pf.rdma_device,
        "max_mtu": pf.max_mtu,
        "driver": driver.readlink().name if driver.is_symlink() else None,
        "driver_version": read_text(sysfs / "module/mlx5_core/version"),
        "firmware": read_text(rdma / "fw_ver"),
        "mtu": read_int(netdev / "mtu"),
        "carrier": read_text(netdev / "carrier") == "1",
        "speed_mbps": read_int(netdev / "speed"),
        "port_state": parse_state(read_text(rdma / "ports/1/state")),
        "rate_gbps": parse_rate(read_text(rdma / "ports/1/rate")),
        "pcie_gts": _gts(read_text(device / "current_link_speed")),
        "pcie_width": read_int(device / "current_link_width"),
        "pcie_max_gts": _gts(read_text(device / "max_link_speed")),
        "pcie_max_width": read_int(device / "max_link_width"),
        "addresses": addresses,
        "master": master,
    }


def _gts(text: str | None) -> float | None:
    match = _SPEED.match(text or "")
    return float(match["speed"]) if match else None
