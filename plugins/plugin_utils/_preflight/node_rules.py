# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules for a GPU node, other than those for its ports, applied to its facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.rule import Fault, Host, Rule, fault_if

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


def _network_manager(host: Host) -> Sequence[Fault]:
    state = host.known["network_services"]["NetworkManager.service"].get("ActiveState")
    return fault_if(state == "active", "NetworkManager")


def _leftovers(host: Host) -> Iterator[Fault]:
    for file in host.known["netplan"]["files"]:
        ports = [name for name in file["interfaces"] if name in host.pfs]
        if ports:
            yield {"value": ", ".join(ports), "key": file["path"], "path": file["path"]}


GPU_NODE_RULES = (
    Rule(
        "preflight.gpu.no_driver",
        "error",
        "nvidia",
        "no NVIDIA driver is loaded, so no model can run here",
        "Install the NVIDIA driver of the system, and reboot.",
        lambda host: fault_if(host.known["gpu_driver"] is None, None),
    ),
    Rule(
        "preflight.gpu.no_runtime",
        "error",
        "nvidia-container-runtime",
        "K3s finds no NVIDIA container runtime when it starts, so pods with a GPU would not start",
        "Run apt-get install nvidia-container-toolkit, and restart K3s if it runs already.",
        lambda host: fault_if(host.known["gpu_driver"] is not None and host.known["gpu_runtime"] is None, None),
    ),
    Rule(
        "preflight.gpu.power_limit",
        "warning",
        "power limit",
        "the GPU's usual limit is {usual} W, so the GPU runs below its capability",
        "Run nvidia-smi -pl {usual}, and look for what lowered it.",
        _power,
    ),
    Rule(
        "preflight.gpu.slow_clock",
        "warning",
        "GPU clock",
        "the GPU is held back ({why}); a Spark on an unfit power supply stays at about 30 W and 500 to 850 MHz",
        "Use the power supply that came with it, in a socket of its own; take the power off for a minute.",
        _clock,
    ),
    Rule(
        "preflight.kernel.known_bad",
        "warning",
        "kernel",
        "this kernel is known to fail here: {why}",
        "Update the kernel and reboot.",
        _kernel,
    ),
    Rule(
        "preflight.iommu.off",
        "info",
        "iommu",
        "no IOMMU is active; VFs for pods do not need one, VFIO does",
        "Nothing to do.",
        lambda host: fault_if(not host.known["iommu"], False),
    ),
    Rule(
        "preflight.rdma.exclusive",
        "error",
        "rdma system",
        "each RDMA device belongs to one network namespace, and the host-device plugin moves only the netdev",
        "Run rdma system set netns shared, or set ib_core netns_mode=1.",
        lambda host: fault_if(host.known["rdma"]["shared_mode"] is False, "exclusive"),
    ),
    Rule(
        "preflight.rdma.no_device_nodes",
        "error",
        "/dev/infiniband",
        "there are RDMA devices but no /dev/infiniband/uverbs*, so no program can open them",
        "Run modprobe ib_uverbs.",
        lambda host: fault_if(host.known["rdma"]["devices"] and not host.known["rdma"]["device_nodes"], 0),
    ),
    Rule(
        "preflight.storage.space",
        "error",
        "disk",
        "images and model need {wanted} GiB free here",
        "Free space, move the directory to a larger disk, or set preflight_min_free_gib to what your model needs.",
        _disks,
    ),
    Rule(
        "preflight.runtime.memlock",
        "warning",
        "memlock",
        "pods without IPC_LOCK can't register memory beyond this limit: ibv_reg_mr fails",
        "Set LimitMEMLOCK=infinity in a drop-in of {unit}; role k3s does so for restricted pods.",
        _memlock,
    ),
    Rule(
        "preflight.cni.stale_namespace",
        "error",
        "network namespace",
        "no process is left in it, but it holds VF {vf} as {link}, so no pod can have that VF",
        "Run ip netns del {namespace}; the VF comes back to the host.",
        _namespaces,
    ),
    Rule(
        "preflight.network.no_networkd",
        "error",
        "systemd-networkd",
        "the fabric's interfaces are configured by systemd-networkd, and it can't run here",
        "Run apt-get install systemd (it contains systemd-networkd), or systemctl unmask systemd-networkd.",
        _unusable_networkd,
    ),
    Rule(
        "preflight.network.manager",
        "info",
        "renderer",
        "NetworkManager configures this host, as on every delivered DGX Spark; the fabric uses systemd-networkd",
        "Nothing to do: playbooks/fabric.yml starts systemd-networkd for the fabric's interfaces only.",
        _network_manager,
    ),
    Rule(
        "preflight.netplan.invalid",
        "error",
        "/etc/netplan",
        "netplan rejects the host's own files, even without the fabric's, so no change could be applied",
        "Correct or remove the file that the message names, until sudo netplan get succeeds.",
        lambda host: fault_if(host.known["netplan"]["error"] is not None, host.known["netplan"]["error"]),
    ),
    Rule(
        "preflight.netplan.leftover",
        "warning",
        "netplan",
        "this file configures ports of the fabric too (NVIDIA's playbook leaves 40-cx7.yaml), and netplan merges both",
        "Remove the ports from {path}, or the whole file, and run sudo netplan apply.",
        _leftovers,
    ),
)
