# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a GPU node, other than those of its ports, by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .host import Fault, Find, Host, fault_if

_BUSY_PERCENT = 50
# Bits of clocks_event_reasons.active that show a limit from outside the program (nvml.h, nvmlClocksEventReason…)
_SLOWDOWNS = {0x4: "power cap", 0x8: "hardware slowdown", 0x40: "heat", 0x80: "power brake"}
# Kernels that are known to fail: start of the release, a further condition on the host's facts, and the reason.
BAD_KERNELS: tuple[tuple[str, Callable[[Host], bool], str], ...] = (
    (
        "7.0.0-1019-nvidia",
        lambda host: host.known["cma_kib"] == 0,
        "without contiguous memory, registering memory for RDMA fails on GB10 (NVIDIA advisory of 2026-09-13)",
    ),
)


def _kernel(host: Host) -> Iterator[Fault]:
    release = host.known["kernel"] or ""
    for start, shows, why in BAD_KERNELS:
        if release.startswith(start) and shows(host):
            yield {"value": release, "why": why}


def _power(host: Host) -> Iterator[Fault]:
    for gpu in host.known["gpus"]:
        limit, usual = gpu["power_limit_w"], gpu["default_power_limit_w"]
        if limit is not None and usual is not None and limit < usual:
            yield {"value": f"{limit:g} W", "usual": f"{usual:g}"}


def _clock(host: Host) -> Iterator[Fault]:
    for gpu in host.known["gpus"]:
        clock, largest, load = gpu["clock_mhz"], gpu["max_clock_mhz"], gpu["utilization"]
        reasons = [name for bit, name in _SLOWDOWNS.items() if int(gpu["slowdown"] or 0) & bit]
        busy = load is not None and load >= _BUSY_PERCENT
        slow = busy and clock is not None and largest is not None and clock < largest / 2
        if reasons or slow:
            shown = "unknown" if clock is None or largest is None else f"{clock:g} of {largest:g} MHz"
            yield {"value": shown, "why": ", ".join(reasons) or f"at {load:g} % load and without a stated reason"}


def _disks(host: Host) -> Iterator[Fault]:
    wanted = host.settings.min_free_gib
    for disk in host.known["disks"]:
        if disk["free_gib"] < wanted:
            shown = f"{disk['free_gib']:g} of {disk['total_gib']:g} GiB free"
            yield {"value": shown, "key": disk["path"], "wanted": f"{wanted:g}"}


def _memlock(host: Host) -> Iterator[Fault]:
    # pods of the other modes have IPC_LOCK or use no RDMA
    severity = "warning" if host.settings.rdma_mode == "restricted" else "info"
    for unit, limit in host.known["runtime_memlock"].items():
        if limit is not None:
            yield {"value": limit, "key": unit, "unit": unit, "severity": severity}


def _namespaces(host: Host) -> Iterator[Fault]:
    macs = {mac: netdev for netdev, mac in host.vfs.items()}
    for orphan in host.known["orphan_namespaces"]:
        for link in orphan["links"]:
            held = link["alias"] if link["alias"] in host.vfs else macs.get(link["mac"])
            if held:
                yield {"value": orphan["namespace"], "namespace": orphan["namespace"], "vf": held, "link": link["name"]}


def _unusable_networkd(host: Host) -> Sequence[Fault]:
    state = host.known["network_services"]["systemd-networkd.service"].get("LoadState")
    return fault_if(state in ("not-found", "masked"), state)


def _leftovers(host: Host) -> Iterator[Fault]:
    for file in host.known["netplan"]["files"]:
        ports = [name for name in file["interfaces"] if name in host.pfs]
        if ports:
            yield {"value": ", ".join(ports), "key": file["path"], "path": file["path"]}


GPU_NODE_RULES: Mapping[str, Find] = {
    "preflight.gpu.no_driver": lambda host: fault_if(host.known["gpu_driver"] is None, None),
    "preflight.gpu.no_runtime": lambda host: fault_if(
        host.known["gpu_driver"] is not None and host.known["gpu_runtime"] is None, None
    ),
    "preflight.gpu.power_limit": _power,
    "preflight.gpu.slow_clock": _clock,
    "preflight.kernel.known_bad": _kernel,
    "preflight.iommu.off": lambda host: fault_if(not host.known["iommu"], False),
    "preflight.rdma.exclusive": lambda host: fault_if(host.known["rdma"]["shared_mode"] is False, "exclusive"),
    "preflight.rdma.no_device_nodes": lambda host: fault_if(
        host.known["rdma"]["devices"] and not host.known["rdma"]["device_nodes"], 0
    ),
    "preflight.storage.space": _disks,
    "preflight.runtime.memlock": _memlock,
    "preflight.cni.stale_namespace": _namespaces,
    "preflight.network.no_networkd": _unusable_networkd,
    "preflight.network.manager": lambda host: fault_if(
        host.known["network_services"]["NetworkManager.service"].get("ActiveState") == "active", "NetworkManager"
    ),
    "preflight.netplan.invalid": lambda host: fault_if(
        host.known["netplan"]["error"] is not None, host.known["netplan"]["error"]
    ),
    "preflight.netplan.leftover": _leftovers,
}
