# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GPU node and its planned ports must be like, as rules over its facts. Private to the collection.

``RULES`` has all rules of preflight: these, those of every node (module_utils/_preflight/checklist.py), and those that
compare hosts. A fact that is unknown is never taken as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.checklist import (
    NODE_RULES,
    PRIVILEGES,
    Fault,
    Host,
    Rule,
    apply_rules,
    check_node,
    fault_if,
)

_ENCODING = 128 / 130  # PCIe 3.0 and later
_BUSY_PERCENT = 50
# Bits of clocks_event_reasons.active that tell of a limit from outside the program (nvml.h, nvmlClocksEventReason…)
_SLOWDOWNS = {0x4: "power cap", 0x8: "hardware slowdown", 0x40: "heat", 0x80: "power brake"}
# Kernels that are known to fail: start of the release, what the facts must show besides, and why.
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
    # the other modes' pods have IPC_LOCK, or no RDMA at all
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


def _ports(find: Callable[[Host, Mapping[str, Any]], Sequence[Fault]]) -> Callable[[Host], Iterator[Fault]]:
    """Return a function that looks at each planned port; a fault's key is the port unless it has one."""

    def each(host: Host) -> Iterator[Fault]:
        for pf in host.known["pfs"]:
            if pf["name"] in host.pfs:
                for fault in find(host, pf):
                    yield {"key": pf["name"], "port": pf["name"], **fault}

    return each


def _lease(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    leases = ", ".join(entry["address"] for entry in pf["addresses"] if entry["dynamic"])
    return fault_if(leases, leases)


def _down(host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    # a port that has a link and that no rail uses is what a cable in the other cage looks like
    linked = [other["name"] for other in host.known["pfs"] if other["carrier"] and other["name"] not in host.pfs]
    do = "Check cable, cage and switch port."
    if linked:
        do = f"{' and '.join(linked)} has a link: if the cable is in that cage, name it in gb10_fabric_pfs."
    return fault_if(not pf["carrier"], "down", do=do)


def _not_active(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    wrong = pf["carrier"] and pf["rdma_device"] and pf["port_state"] != "ACTIVE"
    return fault_if(wrong, pf["port_state"], device=pf["rdma_device"])


def _slow(host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    rate, wanted = pf["rate_gbps"], host.settings.min_rate_gbps
    slow = pf["carrier"] and rate is not None and rate < wanted
    return [{"value": f"{rate:g} Gb/s", "wanted": f"{wanted:g}"}] if slow else []


def _pcie_unknown(pf: Mapping[str, Any]) -> bool:
    return pf["pcie_gts"] is None or pf["pcie_width"] is None


def _narrow(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    speed, width = pf["pcie_gts"], pf["pcie_width"]
    best_speed, best_width = pf["pcie_max_gts"] or speed, pf["pcie_max_width"] or width
    if _pcie_unknown(pf) or (speed >= best_speed and width >= best_width):
        return []
    return [{"value": f"{speed:g} GT/s x{width}", "best": f"{best_speed:g} GT/s x{best_width}"}]


def _pcie_slow(host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    if _pcie_unknown(pf):
        return []
    speed, width, wanted = pf["pcie_gts"], pf["pcie_width"], host.settings.min_pcie_gbps
    rate = speed * width * _ENCODING
    return fault_if(rate < wanted, f"{speed:g} GT/s x{width}", rate=f"{rate:.0f}", wanted=f"{wanted:g}")


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
        "the GPU's usual limit is {usual} W, so it runs below what it can",
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
        "Nothing to do.",
        _network_manager,
    ),
    Rule(
        "preflight.netplan.invalid",
        "error",
        "/etc/netplan",
        "netplan refuses the host's own files, which were like this before any change, so no change could be applied",
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
    Rule(
        "preflight.netplan.dhcp_lease",
        "warning",
        "port",
        "a DHCP server answers on the fabric, and its default route could take the host's traffic",
        "Switch the DHCP server off in the fabric's network, and remove dhcp4 of {port} from /etc/netplan.",
        _ports(_lease),
    ),
    Rule(
        "preflight.driver.other",
        "warning",
        "port",
        "this port is not driven by ConnectX's mlx5_core, the only driver that the collection was made for",
        "Name a ConnectX port in gb10_fabric_rails.",
        _ports(lambda host, pf: fault_if(pf["driver"] != "mlx5_core", pf["driver"])),
    ),
    Rule(
        "preflight.driver.no_rdma",
        "error",
        "port",
        "no RDMA device belongs to this port",
        "Run modprobe mlx5_ib, and check that RoCE is enabled (devlink dev param, enable_roce).",
        _ports(lambda host, pf: fault_if(pf["rdma_device"] is None, None)),
    ),
    Rule(
        "preflight.link.down",
        "error",
        "port",
        "there is no link, so the rail would be idle and NCCL would use only the others",
        "{do}",
        _ports(_down),
    ),
    Rule(
        "preflight.link.not_active",
        "error",
        "port",
        "the link is up, but the port of {device} is not active, and NCCL skips it",
        "Run ip link set {port} up.",
        _ports(_not_active),
    ),
    Rule(
        "preflight.link.slow",
        "warning",
        "port",
        "the link is below {wanted} Gb/s: a degraded NIC, a slow cable or a shaped switch port",
        "Take the power off, not only the system; check the switch port's speed.",
        _ports(_slow),
    ),
    Rule(
        "preflight.pcie.unknown",
        "warning",
        "port",
        "speed and width of the PCIe link are unknown, so the rail may be limited by it",
        "Look at LnkSta in lspci -vv.",
        _ports(lambda host, pf: fault_if(_pcie_unknown(pf), None)),
    ),
    Rule(
        "preflight.pcie.narrow",
        "warning",
        "port",
        "the PCIe link is below what the port can do ({best})",
        "Take the power off for a minute; update the system's firmware.",
        _ports(_narrow),
    ),
    Rule(
        "preflight.pcie.slow",
        "warning",
        "port",
        "the PCIe link carries {rate} Gb/s at most, and each half needs {wanted}",
        "Update the system's firmware: early GB10 firmware gave the halves x2.",
        _ports(_pcie_slow),
    ),
    Rule(
        "preflight.mtu.not_yet",
        "info",
        "port",
        "MTU {planned} is planned; a firmware update resets it",
        "Nothing to do: role netplan sets it.",
        _ports(lambda host, pf: fault_if(pf["mtu"] is not None and pf["mtu"] < host.mtu, pf["mtu"], planned=host.mtu)),
    ),
)
UNREAD = Rule(
    "preflight.host.unread",
    "error",
    "host",
    "the host could not be read in this run, so nothing is known of it",
    "See its error above.",
)
UNKNOWN_RULE = Rule(
    "preflight.settings.unknown_rule", "error", "preflight_severities", "there is no such {what}", "Use one of {known}."
)
# Ranks on unlike hosts hang in ways that are hard to read.
BETWEEN_HOSTS = tuple(
    Rule(name, "warning", key, f"the hosts have different versions of their {key}", "Bring all hosts to one version.")
    for name, key in (
        ("preflight.os.kernel_differs", "kernel"),
        ("preflight.gpu.driver_differs", "NVIDIA driver"),
        ("preflight.firmware.differs", "NIC firmware"),
    )
)
RULES = {
    rule.name: rule.severity
    for rule in (PRIVILEGES, *NODE_RULES, *GPU_NODE_RULES, UNREAD, UNKNOWN_RULE, *BETWEEN_HOSTS)
}


def check_host(host: Host) -> list[Finding]:
    """Return everything that one host's facts show."""
    if host.facts is None:
        return [UNREAD.finding(host.name, {"value": None, "key": host.name})]
    found = check_node(host)
    unprivileged = any(one.rule == PRIVILEGES.name for one in found)
    return found if unprivileged or not host.pfs else [*found, *apply_rules(GPU_NODE_RULES, host)]
