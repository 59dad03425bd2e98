# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a GPU node, other than those of its ports, by rule."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from ansible_collections.gb10.cluster.plugins.module_utils._host.k3s import eviction_threshold, model_reserve
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Disk

from .host import Fault, Find, Host, fault_if, find_unknown

_BUSY_PERCENT = 50
UNKNOWN_GIB = 100.0  # free space that a host needs while nobody knows which model it will serve
_STOPS = {"docker": "docker stop", "unit": "systemctl stop"}
LINK_DOWNS = 4  # a boot and a change of the network take a link down once or twice each
# Bits of clocks_event_reasons.active that show a limit from outside the program (nvml.h, nvmlClocksEventReason…); the
# driver (0x20) and the hardware (0x40) lower the clock in heat.
_SLOWDOWNS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


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
        reasons = dict.fromkeys(name for bit, name in _SLOWDOWNS.items() if int(gpu["slowdown"] or 0) & bit)
        busy = load is not None and load >= _BUSY_PERCENT
        slow = busy and clock is not None and largest is not None and clock < largest / 2
        if reasons or slow:
            shown = "unknown" if clock is None or largest is None else f"{clock:g} of {largest:g} MHz"
            yield {"value": shown, "why": ", ".join(reasons) or f"at {load:g} % load and without a stated reason"}


def _disks(host: Host) -> Iterator[Fault]:
    """Yield a fault for each file system that has less than what comes onto it and what must stay free."""
    disks = host.known["disks"]
    systems: dict[object, list[Disk]] = defaultdict(list)
    for disk in disks:
        systems[disk["path"] if None in disk.values() else disk["device"]].append(disk)
    for found in systems.values():
        free, total, paths = found[0]["free_gib"], found[0]["total_gib"], [disk["path"] for disk in found]
        parts = _wanted(host, paths, disks[0]["path"] in paths, total or 0.0)
        wanted = sum(parts.values())
        if free is None or total is None or free < wanted:
            yield {
                "value": "no answer" if free is None or total is None else f"{free:g} of {total:g} GiB free",
                "key": ", ".join(paths),
                "wanted": f"{wanted:.0f}",
                "parts": " and ".join(f"{size:.0f} {name}" for name, size in parts.items()),
            }


def _wanted(host: Host, paths: Sequence[str], first: bool, total: float) -> dict[str, float]:
    """Return what a file system needs in GiB, by what it is for; the ``first`` one has the images.

    Staging and the kubelet decide by the same thresholds (module_utils/_host/k3s.py).
    """
    if host.settings.min_free_gib >= 0:
        return {"by preflight_min_free_gib": host.settings.min_free_gib}
    if host.needs is None:
        return {"because no profile says how much image and weights need": UNKNOWN_GIB}
    mine = host.name in host.needs.nodes
    images = [size for image, size in host.needs.images.items() if first and not _has(host, image)]
    weights = [
        _missing(size, sum(host.known["staged"].get(name, 0.0) for name in names))
        for names, size in host.needs.models.items()
        if host.needs.models_dir in paths or (first and not host.needs.models_dir)
    ]
    parts = {"for the weights": sum(weights), "for the image": sum(images)} if mine else {}
    parts = {name: size for name, size in parts.items() if size}
    keep = model_reserve if parts else eviction_threshold
    return {**parts, "that must stay free": keep(int(total * 2**30)) / 2**30}


def _has(host: Host, image: str) -> bool:
    """Tell whether a host has an image; Kubernetes keeps one that was pulled by its digest without the tag."""
    ending = f"@{image.partition('@')[2]}" if "@" in image else f"/{image}"
    return any(f"/{name}".endswith(ending) for name in host.known["images"])


def _missing(size: float, there: float) -> float:
    """Return the GiB that are not there yet; published sizes of weights are rounded."""
    return 0.0 if there >= 0.97 * size else size - there


def _small_swap(host: Host) -> Iterator[Fault]:
    areas = host.known["swap"]
    there, wanted = sum(area["kib"] for area in areas or ()) / 2**20, host.swap_gib
    # The kernel keeps a page of each area for itself.
    if host.needs and areas is not None and there < 0.99 * wanted:
        words = {"profile": host.needs.profile, "wanted": f"{wanted:g}", "more": ceil(wanted - there)}
        yield {"value": f"{there:.0f} GiB", **words}


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
        ports = [name for name in file["interfaces"] if name in host.pfs or name in host.vfs]
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
    "preflight.facts.unread": lambda host: find_unknown(host, _NEEDED),
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
    "preflight.rdma.exclusive": lambda host: fault_if(host.known["rdma"]["shared_mode"] is False, "exclusive"),
    "preflight.rdma.no_device_nodes": lambda host: fault_if(
        host.known["rdma"]["devices"] and not host.known["rdma"]["device_nodes"], 0
    ),
    "preflight.storage.space": _disks,
    "preflight.memory.swap_missing": _small_swap,
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
