# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with one fault: for each rule of preflight what breaks it, and something similar that does not."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import DEFAULTS
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, Needs, Settings
from preflight_samples import GOOD

VFS = {"enp1s0f0v0": "02:95:2a:00:01:00"}
HOST = Host(
    "spark1",
    cast(Facts, GOOD),
    server=True,
    version="v1.36.4+k3s1",
    api_host="192.168.10.1",
    management_interface="enP7s7",
    pfs=("enp1s0f0np0", "enP2p1s0f0np0"),
    vfs=VFS,
    settings=Settings(rdma_mode="restricted"),
)
CX7 = "/etc/netplan/40-cx7.yaml"
ADDRESS: dict[str, Any] = {"address": "192.168.177.12/24", "dynamic": False}
Change = Callable[[Host], Host]


def as_it_is(host: Host) -> Host:
    return host


def with_facts(**facts: Any) -> Change:
    return lambda host: replace(host, facts=cast(Facts, {**copy.deepcopy(host.known), **facts}))


def with_pf(**values: Any) -> Change:
    def change(host: Host) -> Host:
        facts = copy.deepcopy(host.known)
        facts["pfs"][0].update(values)
        return replace(host, facts=facts)

    return change


def orphan(**link: str) -> Change:
    whole = {"name": "net1", "alias": "", "mac": "", **link}
    return with_facts(orphan_namespaces=[{"namespace": "cni-1", "links": [whole]}])


def disk(free: float | None) -> Change:
    return with_facts(disks=[{"path": "/srv/models", "device": None, "total_gib": 120.0, "free_gib": free}])


def with_address(interface: str, address: str, **k3s: str) -> Change:
    return both(with_facts(addresses={interface: [address]}), host_with(k3s=k3s))


TAKEN = (
    (("docker0", "10.42.0.1"), ("docker0", "172.17.0.1")),
    (("virbr0", "10.43.255.1"), ("virbr0", "10.44.0.1")),
    (("wg0", "10.42.7.7"), ("cni0", "10.42.7.1")),
    (("tun0", "10.42.0.5"), ("tun0", "what a stranger says")),
)


FLANNEL = {"cni0": ["10.42.0.0/24"], "flannel.1": ["10.42.1.0/24"], "eth9": ["10.44.0.0/16", "x"]}
DNS = {"cluster-dns": "10.43.0.53", "service-cidr": "10.43.0.0/16"}
FAR = {"cluster-dns": "10.43.0.10,10.44.0.10"}


def with_rail(interface: str, network: str) -> Change:
    return both(with_facts(routes={interface: [network]}), host_with(networks={"rail0": "10.100.0.0/16"}))


def with_lan(interface: str, network: str) -> Change:
    routes = with_facts(routes={"enP7s7": ["192.168.10.0/24", "fe80::/64", "fd00:5::/64"], interface: [network]})
    return both(routes, host_with(management_interface="enP7s7"))


# bridges and VPNs in the network of the hosts; usual are other networks, another NIC, a wider route, an unknown LAN
IN_LAN = (
    (("docker0", "192.168.10.0/24"), ("docker0", "172.17.0.0/16")),
    (("br-0c1d", "192.168.10.128/25"), ("wlP9s9", "192.168.10.0/24")),
    (("virbr0", "192.168.10.1"), ("enp1s0f0v0", "192.168.10.1")),
    (("tailscale0", "192.168.10.12"), ("tun0", "192.168.0.0/16")),
    (("wg0", "192.168.10.0/24"), ("wg0", "0.0.0.0/1")),
    (("docker0", "fd00:5::/80"), ("veth16eea297", "fe80::/64")),
)


def with_networks(manager: str = "inactive", networkd: str = "active", load: str = "loaded") -> Change:
    return with_facts(
        network_services={
            "NetworkManager.service": {"LoadState": "loaded", "ActiveState": manager},
            "systemd-networkd.service": {"LoadState": load, "ActiveState": networkd},
        }
    )


def listens(port: int, process: str | None) -> Change:
    return with_facts(listeners=[{"port": port, "process": process}])


def gpu(**values: Any) -> Change:
    return with_facts(gpus=[{**GOOD["gpus"][0], **values}])


def k3s(version: str = "v1.36.4+k3s1", **units: bool) -> Change:
    found = {name.replace("_", "-") + ".service": ours for name, ours in units.items()}
    return with_facts(kubernetes=GOOD["kubernetes"] | {"units": found, "version": version})


def uses(**settings: str) -> Change:
    """Return a host whose K3s was started with these settings."""
    used = DEFAULTS | {"secrets-encryption": "true"} | settings
    return with_facts(kubernetes=GOOD["kubernetes"] | {"settings": used})


def both(*changes: Change) -> Change:
    def change(host: Host) -> Host:
        for one in changes:
            host = one(host)
        return host

    return change


def host_with(**values: Any) -> Change:
    return lambda host: replace(host, **values)


def written(**state: Any) -> Change:
    return with_facts(written={"/etc": {"read_only": False, "free_mib": 900, **state}})


def swap(name: str, gib: float) -> Change:
    return with_facts(swap=[{"name": name, "kind": "file", "kib": int(gib * 2**20)}])


def ufw(*allowed: str) -> Change:
    return with_facts(firewall={"active": True, "allowed": list(allowed)})


def logged(kind: str, count: int) -> Change:
    return with_facts(kernel_log={kind: {"count": count, "last": f"{kind} message"}})


VLLM = {"kind": "docker", "name": "vllm", "kib": 61 * 2**20}
TOLD = ("fail-cgroupv1=false",)
# The example of two Sparks: qwen3.8-flash-next, whose weights are 127.3 GB, and an image of 23 GB
IMAGE = f"docker.io/lmsysorg/sglang:v0.5.21@sha256:{'a' * 64}"
MODEL = "RadixArk--Qwen3.8-Flash-Next-NVFP4"
NEEDS = Needs(("spark1",), "p/q", {IMAGE: 21.4}, {(MODEL,): 118.6}, "/srv/models", swap_gib=48)
# rule, facts to which it applies, and similar facts to which it does not
RULE_CASES: list[tuple[str, Change, Change]] = [
    ("preflight.user.not_root", with_facts(user={"uid": 1000, "name": "nvidia", "sudo_from": None}), as_it_is),
    ("preflight.user.not_root", with_facts(user={"uid": 33, "name": "www-data", "sudo_from": "nvidia"}), as_it_is),
    ("preflight.cgroup.unknown", with_facts(cgroup_version=None), as_it_is),
    (
        "preflight.cgroup.v1",
        with_facts(cgroup_version=1),
        both(with_facts(cgroup_version=1), host_with(kubelet_args=TOLD)),
    ),
    (
        "preflight.cgroup.v1",
        both(with_facts(cgroup_version=1), host_with(version="v1.35.0+k3s1")),
        both(with_facts(cgroup_version=1), host_with(version="v1.34.9+k3s1")),
    ),
    ("preflight.cni.stale_namespace", orphan(alias="enp1s0f0v0"), orphan(alias="enp1s0f0v9")),
    ("preflight.cni.stale_namespace", orphan(mac="02:95:2a:00:01:00"), orphan(mac="02:95:2a:00:01:01")),
    ("preflight.driver.no_rdma", with_pf(rdma_device=None), as_it_is),
    ("preflight.driver.other", with_pf(driver="igb"), as_it_is),
    ("preflight.firewall.fabric", ufw("22/tcp", "10250/tcp", "8472/udp", "6443"), ufw("Anywhere")),
    (
        "preflight.firewall.fabric",
        both(ufw("7420/tcp", "10250/tcp", "8472/udp", "6443"), host_with(share_port=7421)),
        as_it_is,
    ),
    ("preflight.firewall.closed", ufw("7420/tcp"), ufw("7420/tcp", "10250/tcp", "8472/udp", "6443")),
    ("preflight.gpu.no_driver", with_facts(gpu_driver=None), with_facts(gpu_driver="610.1")),
    ("preflight.gpu.no_runtime", with_facts(gpu_runtime=None), with_facts(gpu_runtime="/usr/local/nvidia/toolkit/x")),
    ("preflight.gpu.power_limit", gpu(power_limit_w=30.0), gpu(power_limit_w=None)),
    ("preflight.gpu.slow_clock", gpu(slowdown=0x80), gpu(slowdown=0x1)),
    ("preflight.gpu.slow_clock", gpu(slowdown=0x20), gpu(slowdown=0x10)),
    ("preflight.gpu.slow_clock", gpu(utilization=96.0, clock_mhz=850.0), gpu(utilization=2.0, clock_mhz=208.0)),
    ("preflight.host.unread", host_with(facts=None), as_it_is),
    ("preflight.memory.held", with_facts(memory_holders=[VLLM]), as_it_is),
    ("preflight.log.unknown", with_facts(kernel_log=None), as_it_is),
    *((f"preflight.log.{kind}", logged(kind, 4), as_it_is) for kind in ("aer", "corrected", "xid", "nvrm", "nic")),
    ("preflight.log.link", logged("link", 4), logged("link", 3)),
    ("preflight.kubernetes.api_name", host_with(api_host="spark1.local"), host_with(api_host="spark1.localdomain")),
    ("preflight.kubernetes.other_k3s", k3s(k3s=False), k3s(k3s=True)),
    ("preflight.kubernetes.other_role", k3s(k3s_agent=True), k3s(k3s=True)),
    (
        "preflight.kubernetes.other_distribution",
        with_facts(kubernetes=GOOD["kubernetes"] | {"others": ["RKE2"]}),
        as_it_is,
    ),
    (
        "preflight.kubernetes.version_differs",
        both(k3s(k3s=True), host_with(version="v1.36.5+k3s1")),
        both(k3s(k3s=True), host_with(version="v1.36.5+k3s1", upgrading=True)),
    ),
    *(
        ("preflight.kubernetes.version_untested", host_with(version=other), host_with(version=tested))
        for other, tested in (("v1.34.9+k3s1", "v1.35.0+k3s1"), ("v1.38.0+k3s1", "v1.37.9+k3s1"))
    ),
    ("preflight.kubernetes.fixed", uses(**{"cluster-cidr": "10.52.0.0/16"}), uses()),
    ("preflight.kubernetes.encryption", uses(**{"secrets-encryption": "false"}), uses()),
    ("preflight.kubernetes.moved", uses(**{"node-ip": "192.168.10.12"}), uses(**{"node-ip": "192.168.10.11"})),
    ("preflight.kubernetes.version_invalid", host_with(version="latest"), host_with(version="")),
    ("preflight.link.down", with_pf(carrier=False), as_it_is),
    ("preflight.link.member", with_pf(master="bond0"), as_it_is),
    ("preflight.link.not_active", with_pf(port_state="DOWN"), as_it_is),
    ("preflight.link.slow", with_pf(rate_gbps=13.0), with_pf(rate_gbps=200.0)),
    ("preflight.link.no_rate", with_pf(rate_gbps=None), with_pf(rate_gbps=200.0)),
    ("preflight.facts.shape", host_with(misread=["gpus"]), as_it_is),
    ("preflight.facts.unread", with_facts(interfaces=[]), as_it_is),
    ("preflight.facts.unread", with_facts(kernel=None), as_it_is),
    ("preflight.facts.unread", with_facts(swap=None), with_facts(swap=[])),
    ("preflight.facts.unread", with_facts(network_services={}), as_it_is),
    ("preflight.facts.unread", with_facts(disks=[]), as_it_is),
    ("preflight.network.unmanaged", with_networks(networkd="inactive"), with_networks("active", "inactive")),
    ("preflight.storage.no_answer", written(free_mib=None), as_it_is),
    ("preflight.storage.no_answer", written(read_only=None), as_it_is),
    ("preflight.storage.space", disk(None), disk(100.0)),
    ("preflight.memory.swap", swap("/dev/nvme0n1p3", 8), as_it_is),
    ("preflight.memory.swap", swap("/swap.img", 64), swap("/swap.img", 16)),
    ("preflight.memory.swap", swap("/swap.img", 64), both(swap("/swap.img", 64), host_with(needs=NEEDS))),
    *(
        ("preflight.memory.swap_missing", both(swap("/swap.img", 16), host_with(needs=NEEDS)), both(near, other))
        for near, other in (
            (swap("/swap.img", 48), host_with(needs=NEEDS)),
            (swap("/swap.img", 16), host_with(needs=replace(NEEDS, nodes=("spark2",)))),
            (with_facts(swap=None), host_with(needs=NEEDS)),
            (swap("/swap.img", 16), host_with(needs=replace(NEEDS, swap_gib=0))),
        )
    ),
    ("preflight.storage.read_only", written(read_only=True), written(read_only=False)),
    ("preflight.storage.full", written(free_mib=63), written(free_mib=64)),
    ("preflight.mtu.not_yet", with_pf(mtu=1500), with_pf(mtu=9216)),
    ("preflight.netplan.dhcp_lease", with_pf(addresses=[ADDRESS | {"dynamic": True}]), with_pf(addresses=[ADDRESS])),
    ("preflight.netplan.invalid", with_facts(netplan={"error": "90-NM-1.yaml:3:1: Error", "files": []}), as_it_is),
    (
        "preflight.netplan.leftover",
        with_facts(netplan={"error": None, "files": [{"path": CX7, "interfaces": ["enp1s0f0np0"]}]}),
        with_facts(netplan={"error": None, "files": [{"path": CX7, "interfaces": ["enp1s0f1np1"]}]}),
    ),
    (
        "preflight.netplan.leftover",
        with_facts(netplan={"error": None, "files": [{"path": CX7, "interfaces": ["enp1s0f0v0"]}]}),
        with_facts(netplan={"error": None, "files": [{"path": CX7, "interfaces": ["enp1s0f0v9"]}]}),
    ),
    *(("preflight.network.cluster", with_address(*there), with_address(*elsewhere)) for there, elsewhere in TAKEN),
    ("preflight.network.cluster", with_facts(routes={"tun0": ["10.42.128.0/17"]}), with_facts(routes=FLANNEL)),
    (
        "preflight.network.cluster",
        with_facts(routes={"enP7s7": ["10.42.1.0/24"]}),
        both(k3s(k3s=True), with_facts(routes={"enP7s7": ["10.42.1.0/24"]})),
    ),
    ("preflight.network.rail", with_rail("docker0", "10.100.7.0/24"), with_rail("enp1s0f0v3", "10.100.7.0/24")),
    ("preflight.network.rail", with_rail("enp1s0f1np1", "10.100.0.1"), with_rail("enP2p1s0f0np0.7", "10.100.0.1")),
    *(("preflight.network.lan", with_lan(*there), with_lan(*elsewhere)) for there, elsewhere in IN_LAN),
    ("preflight.network.dns", with_facts(nameservers=["10.43.0.10"]), with_facts(nameservers=["10.44.0.10", "x"])),
    ("preflight.kubernetes.dns", host_with(k3s=DNS | {"cluster-dns": "10.44.0.10"}), host_with(k3s=DNS)),
    ("preflight.kubernetes.dns", host_with(k3s=FAR), both(host_with(k3s=FAR), host_with(server=False))),
    ("preflight.network.management_missing", host_with(management_interface="eth7"), as_it_is),
    ("preflight.network.manager", with_networks("active"), with_networks("inactive")),
    ("preflight.network.no_default_route", with_facts(default_routes=[]), with_facts(default_routes=["usb0"])),
    ("preflight.network.no_networkd", with_networks(load="masked"), with_networks(networkd="inactive")),
    ("preflight.network.wifi", with_facts(default_routes=["wlP9s9", "enP7s7"]), as_it_is),
    ("preflight.user.prints", host_with(unread={"printed": "Welcome"}), as_it_is),
    ("preflight.os.unsupported", with_facts(os={"id": "arch", "version": "", "name": "Arch Linux"}), as_it_is),
    ("preflight.pcie.narrow", with_pf(pcie_gts=16.0, pcie_width=8, pcie_max_width=8), with_pf(pcie_max_gts=None)),
    ("preflight.pcie.slow", with_pf(pcie_width=2, pcie_max_width=2), as_it_is),
    ("preflight.pcie.unknown", with_pf(pcie_width=None), as_it_is),
    ("preflight.port.in_use", listens(6443, "haproxy"), both(listens(6443, "haproxy"), host_with(server=False))),
    ("preflight.port.in_use", listens(10250, None), listens(10250, "k3s-agent")),
    ("preflight.port.in_use", both(listens(2379, "x"), host_with(embedded_etcd=True)), listens(2379, "x")),
    ("preflight.port.in_use", both(listens(5001, "x"), host_with(embedded_registry=True)), listens(5001, "x")),
    (
        "preflight.port.in_use",
        both(both(listens(6443, "haproxy"), host_with(server=False)), host_with(embedded_registry=True)),
        both(both(listens(6443, "k3s-agent"), host_with(server=False)), host_with(embedded_registry=True)),
    ),
    (
        "preflight.firewall.closed",
        both(ufw("7420/tcp", "10250/tcp", "8472/udp", "6443"), host_with(embedded_registry=True)),
        both(ufw("7420/tcp", "10250/tcp", "8472/udp", "6443", "5001/tcp"), host_with(embedded_registry=True)),
    ),
    (
        "preflight.firewall.closed",
        both(ufw("7420/tcp", "10250/tcp", "8472/udp", "6443", "2379"), host_with(embedded_etcd=True)),
        both(ufw("7420/tcp", "10250/tcp", "8472/udp", "6443", "2379:2380/tcp"), host_with(embedded_etcd=True)),
    ),
    ("preflight.firewall.closed", ufw("1:65535/tcp"), ufw("1:65535/tcp", "1:65535/udp")),
    ("preflight.rdma.exclusive", with_facts(rdma={**GOOD["rdma"], "shared_mode": False}), as_it_is),
    ("preflight.rdma.no_device_nodes", with_facts(rdma={**GOOD["rdma"], "device_nodes": 0}), as_it_is),
    ("preflight.runtime.memlock", with_facts(runtime_memlock={"k3s-agent.service": 8388608}), as_it_is),
    ("preflight.storage.space", disk(99.9), disk(100.0)),
    ("preflight.time.unsynchronized", with_facts(time_synchronized=False), as_it_is),
    ("preflight.time.unsynchronized", with_facts(time_synchronized=None), as_it_is),
    ("preflight.time.skew", with_facts(clock_offset_s=-86400.0), as_it_is),
    ("preflight.time.skew", with_facts(clock_offset_s=61.0), with_facts(clock_offset_s=60.0)),
    ("preflight.cgroup.v1", both(with_facts(cgroup_version=1), host_with(version="")), as_it_is),
    *(("preflight.port.in_use", listens(port, "x"), listens(port + 1, "x")) for port in (6444, 10256, 10010)),
    ("preflight.port.in_use", both(listens(2380, "x"), host_with(embedded_etcd=True)), listens(2380, "x")),
    ("preflight.memory.swap", swap("/swap.img", 16.01), with_facts(swap=None)),
    ("preflight.kubernetes.other_k3s", k3s(k3s=True, k3s_agent=False), k3s(k3s=True)),
    ("preflight.kubernetes.other_role", k3s(k3s=True, k3s_agent=True), k3s(k3s=False)),
    (
        "preflight.kubernetes.other_role",
        both(k3s(k3s=True), host_with(server=False)),
        both(k3s(k3s_agent=True), host_with(server=False)),
    ),
    *(
        ("preflight.kubernetes.version_differs", both(k3s(k3s=True), host_with(version="v1.36.5+k3s1")), near)
        for near in (
            k3s(k3s=True),
            both(k3s(k3s=False), host_with(version="v1.36.5+k3s1")),
            both(k3s(k3s=True), host_with(version="")),
            both(k3s("unknown", k3s=True), host_with(version="v1.36.5+k3s1")),
        )
    ),
    ("preflight.firewall.closed", ufw("OpenSSH", "7420/tcp"), ufw("OpenSSH", "1:65535")),
    ("preflight.network.management_missing", host_with(management_interface="x"), host_with(management_interface="")),
    ("preflight.gpu.no_driver", with_facts(gpu_driver=None, gpu_runtime=None), as_it_is),
    ("preflight.gpu.no_runtime", with_facts(gpu_runtime=None), with_facts(gpu_driver=None, gpu_runtime=None)),
    ("preflight.gpu.power_limit", gpu(power_limit_w=139.0), gpu(power_limit_w=30.0, default_power_limit_w=None)),
    *(
        ("preflight.gpu.slow_clock", gpu(utilization=50.0, clock_mhz=1501.0), gpu(**near))
        for near in (
            {"utilization": 49.0, "clock_mhz": 850.0},
            {"utilization": 96.0, "clock_mhz": 1502.0},
            {"utilization": 96.0, "clock_mhz": None},
            {"utilization": 96.0, "max_clock_mhz": None},
            {"utilization": None, "clock_mhz": 850.0},
            {"slowdown": None},
        )
    ),
    ("preflight.log.xid", logged("xid", 1), logged("xid", 0)),
    (
        "preflight.storage.space",
        with_facts(disks=[{"path": "/srv", "device": 1, "total_gib": None, "free_gib": 900.0}]),
        as_it_is,
    ),
    (
        "preflight.network.unmanaged",
        with_networks(networkd="inactive"),
        with_facts(network_services={"systemd-networkd.service": {"LoadState": "loaded", "ActiveState": "inactive"}}),
    ),
    (
        "preflight.rdma.no_device_nodes",
        with_facts(rdma={**GOOD["rdma"], "device_nodes": 0}),
        with_facts(rdma={**GOOD["rdma"], "devices": [], "device_nodes": 0}),
    ),
    *(
        ("preflight.link.not_active", with_pf(port_state="DOWN"), with_pf(port_state="DOWN", **near))
        for near in ({"carrier": False}, {"rdma_device": None})
    ),
    ("preflight.link.slow", with_pf(rate_gbps=24.9), with_pf(rate_gbps=24.9, carrier=False)),
    *(
        ("preflight.link.no_rate", with_pf(rate_gbps=None), with_pf(rate_gbps=None, **near))
        for near in ({"carrier": False}, {"rdma_device": None})
    ),
    ("preflight.pcie.unknown", with_pf(pcie_gts=None), as_it_is),
    ("preflight.pcie.narrow", with_pf(pcie_max_width=8), with_pf(pcie_max_width=None)),
    ("preflight.pcie.narrow", with_pf(pcie_max_gts=64.0), with_pf(pcie_max_width=2, pcie_max_gts=16.0)),
    ("preflight.mtu.not_yet", with_pf(mtu=8999), with_pf(mtu=None)),
    ("preflight.netplan.dhcp_lease", with_pf(addresses=[ADDRESS, ADDRESS | {"dynamic": True}]), as_it_is),
]
