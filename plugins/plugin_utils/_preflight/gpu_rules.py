# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a GPU node, other than those of its ports, by rule."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from .host import Fault, Find, Host, fault_if, find_unknown

_BUSY_PERCENT = 50
_STOPS = {"docker": "docker stop", "unit": "systemctl stop"}
LINK_DOWNS = 4  # a boot and a change of the network take a link down once or twice each
# Bits of clocks_event_reasons.active that show a limit from outside the program (nvml.h, nvmlClocksEventReason…)
_SLOWDOWNS = {0x4: "power cap", 0x8: "hardware slowdown", 0x40: "heat", 0x80: "power brake"}


def _logged(kind: str, least: int = 1) -> Find:
    def find(host: Host) -> Iterator[Fault]:
        message = (host.known["kernel_log"] or {}).get(kind)
        if message and message["count"] >= least:
            yield {"value": message["last"], "count": message["count"]}

    return find


def _held(host: Host) -> Iterator[Fault]:
    for holder in host.known["memory_holders"]:
        how = f"{_STOPS.get(holder['kind'], 'pkill')} {shlex.quote(holder['name'])}"
        yield {"value": f"{holder['name']}, {holder['kib'] / 2**20:.1f} GiB", "kind": holder["kind"], "how": how}


def _power(host: Host) -> Iterator[Fault]:
    for gpu in host.known["gpus"] or ():
        limit, usual = gpu["power_limit_w"], gpu["default_power_limit_w"]
        if limit is not None and usual is not None and limit < usual:
            yield {"value": f"{limit:g} W", "usual": f"{usual:g}"}


def _clock(host: Host) -> Iterator[Fault]:
    for gpu in host.known["gpus"] or ():
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
        free, total = disk["free_gib"], disk["total_gib"]
        if free is None or total is None:
            yield {"value": "no answer", "key": disk["path"], "wanted": f"{wanted:g}"}
        elif free < wanted:
            shown = f"{free:g} of {total:g} GiB free"
            yield {"value": shown, "key": disk["path"], "wanted": f"{wanted:g}"}


def _memlock(host: Host) -> Iterator[Fault]:
    # pods of the other modes have IPC_LOCK or use no RDMA
    severity = "warning" if host.settings.rdma_mode == "restricted" else "info"
    for unit, limit in (host.known["runtime_memlock"] or {}).items():
        if limit is not None:
            yield {"value": limit, "key": unit, "unit": unit, "severity": severity}


def _namespaces(host: Host) -> Iterator[Fault]:
    macs = {mac: netdev for netdev, mac in host.vfs.items()}
    for orphan in host.known["orphan_namespaces"]:
        for link in orphan["links"]:
            held = link["alias"] if link["alias"] in host.vfs else macs.get(link["mac"])
            if held:
                yield {"value": orphan["namespace"], "namespace": orphan["namespace"], "vf": held, "link": link["name"]}


def _service(host: Host, name: str, what: str) -> str:
    """Return a property of a network service; empty if systemd did not tell."""
    services = host.known["network_services"] or {}
    return services.get(f"{name}.service", {}).get(what, "")


def _unusable_networkd(host: Host) -> Sequence[Fault]:
    state = _service(host, "systemd-networkd", "LoadState")
    return fault_if(state in ("not-found", "masked"), state)


def _unmanaged(host: Host) -> Sequence[Fault]:
    states = {name: _service(host, name, "ActiveState") for name in ("systemd-networkd", "NetworkManager")}
    return fault_if(all(states.values()) and "active" not in states.values(), "neither of them runs")


def _leftovers(host: Host) -> Iterator[Fault]:
    for file in host.known["netplan"]["files"]:
        ports = [name for name in file["interfaces"] if name in host.pfs]
        if ports:
            yield {"value": ", ".join(ports), "key": file["path"], "path": file["path"]}


# What depends on each fact that a GPU node must tell; an empty one is as unknown as none.
_NEEDED = {
    "command_line": "the arguments of its kernel",
    "memory_kib": "its memory",
    "pfs": "its ConnectX ports",
    "swap": "its swap areas",
    "disks": "its free space",
    "network_services": "what configures its network",
    "runtime_memlock": "the memlock limit of its container runtime",
}
GPU_NODE_RULES: Mapping[str, Find] = {
    "preflight.facts.unknown": lambda host: find_unknown(host, _NEEDED),
    "preflight.gpu.no_driver": lambda host: fault_if(host.known["gpu_driver"] is None, None),
    "preflight.gpu.no_runtime": lambda host: fault_if(
        host.known["gpu_driver"] is not None and host.known["gpu_runtime"] is None, None
    ),
    "preflight.gpu.power_limit": _power,
    "preflight.gpu.slow_clock": _clock,
    "preflight.memory.held": _held,
    "preflight.log.unknown": lambda host: fault_if(host.known["kernel_log"] is None, None),
    "preflight.log.aer": _logged("aer"),
    "preflight.log.corrected": _logged("corrected"),
    "preflight.log.xid": _logged("xid"),
    "preflight.log.nvrm": _logged("nvrm"),
    "preflight.log.nic": _logged("nic"),
    "preflight.log.link": _logged("link", LINK_DOWNS),
    "preflight.iommu.off": lambda host: fault_if(not host.known["iommu"], False),
    "preflight.rdma.exclusive": lambda host: fault_if(host.known["rdma"]["shared_mode"] is False, "exclusive"),
    "preflight.rdma.no_device_nodes": lambda host: fault_if(
        host.known["rdma"]["devices"] and not host.known["rdma"]["device_nodes"], 0
    ),
    "preflight.storage.space": _disks,
    "preflight.runtime.memlock": _memlock,
    "preflight.cni.stale_namespace": _namespaces,
    "preflight.network.no_networkd": _unusable_networkd,
    "preflight.network.unmanaged": _unmanaged,
    "preflight.network.manager": lambda host: fault_if(
        _service(host, "NetworkManager", "ActiveState") == "active", "NetworkManager"
    ),
    "preflight.netplan.invalid": lambda host: fault_if(
        host.known["netplan"]["error"] is not None, host.known["netplan"]["error"]
    ),
    "preflight.netplan.leftover": _leftovers,
}
