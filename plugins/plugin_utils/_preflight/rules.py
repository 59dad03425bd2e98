# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what a host said of itself before anything is changed on it. Private to the collection.

``RULES`` is the list of all rules with their usual severity. A rule's second part is its layer, so that a finding names
what is broken: firmware, pcie, link, rdma … A fact that is unknown is never taken as good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

RULES: dict[str, Severity] = {
    "preflight.cgroup.unknown": "warning",
    "preflight.cgroup.v1": "error",
    "preflight.cni.stale_namespace": "error",
    "preflight.driver.no_rdma": "error",
    "preflight.driver.other": "warning",
    "preflight.firmware.differs": "warning",
    "preflight.gpu.driver_differs": "warning",
    "preflight.gpu.no_driver": "error",
    "preflight.host.unread": "error",
    "preflight.iommu.off": "info",
    "preflight.link.down": "error",
    "preflight.link.not_active": "error",
    "preflight.link.slow": "warning",
    "preflight.memory.cma": "warning",
    "preflight.memory.swap": "warning",
    "preflight.mtu.not_yet": "info",
    "preflight.network.management_missing": "error",
    "preflight.network.wifi": "warning",
    "preflight.os.kernel_differs": "warning",
    "preflight.os.unsupported": "warning",
    "preflight.pcie.narrow": "warning",
    "preflight.pcie.slow": "warning",
    "preflight.pcie.unknown": "warning",
    "preflight.port.in_use": "error",
    "preflight.rdma.exclusive": "error",
    "preflight.rdma.no_device_nodes": "error",
    "preflight.runtime.memlock": "warning",
    "preflight.settings.unknown_rule": "error",
    "preflight.storage.space": "error",
    "preflight.time.skew": "warning",
    "preflight.time.unsynchronized": "warning",
}
MAX_SKEW_S = 30.0  # what a slow connection adds is far below it
# DGX OS 7 is Ubuntu 24.04; Debian 13 is what the lab runs
SUPPORTED = {("ubuntu", "24.04"), ("debian", "13")}
# ports of K3s (docs.k3s.io/installation/requirements); the first is the servers' only
API_PORT = 6443
NODE_PORTS = {6444: "K3s' load balancer", 10250: "the kubelet", 10256: "kube-proxy", 10010: "containerd's streams"}
# NVIDIA advisory of 2026-09-13: with this kernel no contiguous memory is reserved and ibv_reg_mr fails on GB10
CMA_KERNEL = "7.0.0-1019-nvidia"

_OWNERS = re.compile(r"(k3s|kube|containerd|etcd)")
_ENCODING = 128 / 130  # PCIe 3.0 and later


@dataclass(frozen=True)
class Settings:
    """What is asked of hosts. Space in GiB, rates in Gb/s; ``rdma_mode`` is how pods get RDMA (gb10_rdma_mode)."""

    min_free_gib: float = 100
    min_rate_gbps: float = 200
    min_pcie_gbps: float = 100
    rdma_mode: str = "privileged"
    severities: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A host as it is meant to be: its PFs, and the VFs ``{netdev: MAC}`` that it gets. No PFs: no GPU node."""

    name: str
    facts: Mapping[str, Any] | None
    pfs: tuple[str, ...] = ()
    vfs: Mapping[str, str] = field(default_factory=dict)
    mtu: int = 9000
    server: bool = False
    management_interface: str | None = None


def finding(rule: str, key: str, value: object, reason: str, remedy: str, where: str) -> Finding:
    """Return a finding with its rule's usual severity."""
    return Finding(RULES[rule], rule, key, value, reason, remedy, where, "preflight")


def judge_host(subject: Subject, settings: Settings) -> list[Finding]:
    """Return everything that one host's facts say."""
    if subject.facts is None:
        reason = "the host could not be read in this run, so nothing is known of it"
        return [finding("preflight.host.unread", subject.name, None, reason, "See its error above.", subject.name)]
    return [
        *_judge_system(subject, subject.facts),
        *_judge_network(subject, subject.facts),
        *(_judge_node(subject, subject.facts) if subject.pfs else ()),
        *(_judge_runtime(subject, subject.facts, settings) if subject.pfs else ()),
        *(
            found
            for pf in subject.facts["pfs"]
            if pf["name"] in subject.pfs
            for found in _judge_pf(subject, pf, settings)
        ),
    ]


def _judge_system(subject: Subject, facts: Mapping[str, Any]) -> Iterator[Finding]:
    where = subject.name
    system = facts["os"]
    if (system["id"], system["version"]) not in SUPPORTED:
        remedy = "Use DGX OS 7 (Ubuntu 24.04); others may work."
        yield finding("preflight.os.unsupported", "os", system["name"] or None, "not a tested system", remedy, where)
    if facts["cgroup_version"] is None:
        remedy = "Check that cgroups are mounted."
        yield finding("preflight.cgroup.unknown", "cgroup", None, "no cgroup hierarchy was found", remedy, where)
    elif facts["cgroup_version"] < 2:
        reason = "the kubelet refuses cgroup v1 unless it is told otherwise (failCgroupV1, since Kubernetes 1.35)"
        remedy = "Boot with systemd.unified_cgroup_hierarchy=1."
        yield finding("preflight.cgroup.v1", "cgroup", facts["cgroup_version"], reason, remedy, where)
    if facts["time_synchronized"] is not True:
        reason = "the clock isn't known to be synchronized; certificates and log times depend on it"
        remedy = "Enable systemd-timesyncd or chrony, and let it reach a server."
        yield finding("preflight.time.unsynchronized", "time", facts["time_synchronized"], reason, remedy, where)
    if abs(facts["clock_offset_s"] or 0.0) > MAX_SKEW_S:
        reason = (
            "off the controller's clock; certificates may be refused, and logs of different hosts don't fit together"
        )
        remedy = "Set the clock, then keep it by systemd-timesyncd or chrony."
        yield finding("preflight.time.skew", "clock", f"{facts['clock_offset_s']:+g} s", reason, remedy, where)


def _judge_network(subject: Subject, facts: Mapping[str, Any]) -> Iterator[Finding]:
    where = subject.name
    wanted = {**NODE_PORTS, **({API_PORT: "the Kubernetes API"} if subject.server else {})}
    for listener in facts["listeners"]:
        port, process = listener["port"], listener["process"]
        if port in wanted and not _OWNERS.match(process or ""):
            reason = f"{process or 'an unknown process'} listens there, and {wanted[port]} needs it"
            yield finding("preflight.port.in_use", "port", port, reason, "Stop or move that process.", where)
    if facts["default_routes"] and facts["default_routes"][0] in facts["wifi"]:
        reason = "the default route is Wi-Fi, so control traffic would go there"
        remedy = "Give the wired interface the lower metric, and set gb10_management_interface."
        yield finding("preflight.network.wifi", "default route", facts["default_routes"][0], reason, remedy, where)
    name = subject.management_interface
    if name and name not in facts["interfaces"]:
        reason = f"no such interface (there are: {', '.join(facts['interfaces']) or 'none'})"
        remedy = "Correct gb10_management_interface of the host."
        yield finding("preflight.network.management_missing", "gb10_management_interface", name, reason, remedy, where)


def _judge_node(subject: Subject, facts: Mapping[str, Any]) -> Iterator[Finding]:
    where, rdma = subject.name, facts["rdma"]
    if facts["gpu_driver"] is None:
        remedy = "Install the NVIDIA driver of the system."
        yield finding("preflight.gpu.no_driver", "nvidia", None, "no NVIDIA driver is loaded", remedy, where)
    if facts["swap_kib"]:
        reason = "GPU and CPU share the memory of a GB10; swapping makes it hang instead of failing"
        remedy = "Run swapoff -a and remove swap from /etc/fstab."
        yield finding("preflight.memory.swap", "swap", f"{facts['swap_kib']} KiB", reason, remedy, where)
    if (facts["kernel"] or "").startswith(CMA_KERNEL) and facts["cma_kib"] == 0:
        reason = "this kernel reserves no contiguous memory, and registering memory for RDMA can fail"
        remedy = "Update the kernel (NVIDIA advisory of 2026-09-13)."
        yield finding("preflight.memory.cma", "kernel", facts["kernel"], reason, remedy, where)
    if not facts["iommu"]:
        reason = "no IOMMU is active; VFs for pods don't need one, VFIO does"
        yield finding("preflight.iommu.off", "iommu", False, reason, "Nothing to do.", where)
    if rdma["shared_mode"] is False:
        reason = "RDMA devices belong to one network namespace each, and host-device moves only the netdev"
        remedy = "Run rdma system set netns shared, or set ib_core netns_mode=1."
        yield finding("preflight.rdma.exclusive", "rdma system", "exclusive", reason, remedy, where)
    if rdma["devices"] and not rdma["device_nodes"]:
        reason = "there are RDMA devices but no /dev/infiniband/uverbs*, so no program can open them"
        yield finding("preflight.rdma.no_device_nodes", "/dev/infiniband", 0, reason, "Load ib_uverbs.", where)


def _judge_runtime(subject: Subject, facts: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    where = subject.name
    for disk in facts["disks"]:
        if disk["free_gib"] < settings.min_free_gib:
            reason = f"less than {settings.min_free_gib:g} GiB free for image and model"
            remedy = "Free space, or set preflight_paths and preflight_min_free_gib to what your model needs."
            yield finding("preflight.storage.space", disk["path"], f"{disk['free_gib']} GiB", reason, remedy, where)
    for unit, limit in facts["runtime_memlock"].items():
        if limit is not None:
            reason = "pods without IPC_LOCK can't register memory beyond it: ibv_reg_mr fails"
            remedy = f"Set LimitMEMLOCK=infinity in a drop-in of {unit}; role k3s does for restricted pods."
            found = finding("preflight.runtime.memlock", unit, limit, reason, remedy, where)
            # the other modes' pods have IPC_LOCK, or no RDMA at all
            yield found if settings.rdma_mode == "restricted" else replace(found, severity="info")
    macs = {mac: netdev for netdev, mac in subject.vfs.items()}
    for orphan in facts["orphan_namespaces"]:
        for link in orphan["links"]:
            held = link["alias"] if link["alias"] in subject.vfs else macs.get(link["mac"])
            if held:
                reason = f"no process is left in it, but it holds VF {held} as {link['name']}: no pod can have it"
                remedy = f"Run ip netns del {orphan['namespace']}; the VF comes back to the host."
                yield finding(
                    "preflight.cni.stale_namespace", "network namespace", orphan["namespace"], reason, remedy, where
                )


def _judge_pf(subject: Subject, pf: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    name, where = pf["name"], subject.name
    if pf["driver"] != "mlx5_core":
        reason = "not ConnectX's driver mlx5_core"
        yield finding("preflight.driver.other", name, pf["driver"], reason, "Name a ConnectX PF.", where)
    if pf["rdma_device"] is None:
        reason = "no RDMA device belongs to it"
        remedy = "Load mlx5_ib; check that RoCE is enabled (devlink dev param, enable_roce)."
        yield finding("preflight.driver.no_rdma", name, None, reason, remedy, where)
    if not pf["carrier"]:
        linked = [other["name"] for other in (subject.facts or {})["pfs"] if _spare(subject, other)]
        reason = "no link; the rail would be idle and NCCL would use the others only"
        remedy = "Check cable, cage and switch port."
        if linked:
            remedy = f"{' and '.join(linked)} has a link: if the cable is in that cage, name it in gb10_fabric_pfs."
        yield finding("preflight.link.down", name, "down", reason, remedy, where)
    elif pf["rdma_device"] and pf["port_state"] != "ACTIVE":
        reason = f"the link is up, but the port of {pf['rdma_device']} isn't active, and NCCL skips it"
        remedy = f"Bring the interface up (ip link set {name} up)."
        yield finding("preflight.link.not_active", name, pf["port_state"], reason, remedy, where)
    if pf["carrier"] and pf["rate_gbps"] is not None and pf["rate_gbps"] < settings.min_rate_gbps:
        reason = f"below {settings.min_rate_gbps:g} Gb/s: a degraded NIC, a slow cable or a shaped switch port"
        remedy = "Take the power off, not only the system; check the switch port's speed."
        yield finding("preflight.link.slow", name, f"{pf['rate_gbps']:g} Gb/s", reason, remedy, where)
    yield from _judge_pcie(pf, where, settings)
    if pf["mtu"] is not None and pf["mtu"] < subject.mtu:
        reason = f"{subject.mtu} is planned; a firmware update resets it"
        yield finding("preflight.mtu.not_yet", name, pf["mtu"], reason, "Role netplan sets it.", where)


def _spare(subject: Subject, pf: Mapping[str, Any]) -> bool:
    """Tell a port that has a link and that no rail uses, which is what a cable in the other cage looks like."""
    return bool(pf["carrier"]) and pf["name"] not in subject.pfs


def _judge_pcie(pf: Mapping[str, Any], where: str, settings: Settings) -> Iterator[Finding]:
    name, speed, width = pf["name"], pf["pcie_gts"], pf["pcie_width"]
    if speed is None or width is None:
        reason = "the PCIe link's speed and width are unknown"
        yield finding("preflight.pcie.unknown", name, None, reason, "Look at lspci -vv.", where)
        return
    shown = f"{speed:g} GT/s x{width}"
    if width < (pf["pcie_max_width"] or width) or speed < (pf["pcie_max_gts"] or speed):
        reason = f"trained below what it can do ({pf['pcie_max_gts']:g} GT/s x{pf['pcie_max_width']})"
        remedy = "Take the power off for a minute; update the system's firmware."
        yield finding("preflight.pcie.narrow", name, shown, reason, remedy, where)
    rate = speed * width * _ENCODING
    if rate < settings.min_pcie_gbps:
        reason = f"carries {rate:.0f} Gb/s at most, {settings.min_pcie_gbps:g} are wanted of a half"
        remedy = "Update the system's firmware: early GB10 firmware gave the halves x2."
        yield finding("preflight.pcie.slow", name, shown, reason, remedy, where)
