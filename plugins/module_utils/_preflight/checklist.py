# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules that every Kubernetes node must satisfy, applied to its facts.

Preflight applies these rules to all hosts before anything is changed. Role k3s applies the same rules to one host
before it installs K3s. A rule consists of its sentences and a function that yields the faults of a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .._common.findings import Finding
from .._common.versions import Version
from .._k3s.service import EXAMPLE, parse_k3s_version
from .rule import Fault, Host, Rule, apply_rules, fault_if

MAX_CLOCK_SKEW_S = 60  # a slow connection adds seconds; a clock that is behind rejects K3s's certificates
CGROUP_V1_REFUSED_FROM = (1, 35)
# DGX OS 7 is based on Ubuntu 24.04; the lab runs Debian 13
TESTED_SYSTEMS = {("ubuntu", "24.04"), ("debian", "13")}
# Ports of K3s (docs.k3s.io/installation/requirements, and the listeners of a node of v1.36)
NODE_PORTS = {6444: "K3s's load balancer", 10250: "the kubelet", 10256: "kube-proxy", 10010: "containerd's streams"}
SERVER_PORTS = {6443: "the Kubernetes API"}
ETCD_PORTS = {2379: "etcd", 2380: "etcd"}
FIREWALL_PORTS = {"8472/udp": "the pod network (VXLAN)", "10250/tcp": "the kubelet"}
FIREWALL_SERVER_PORTS = {"6443/tcp": "the Kubernetes API"}
FIREWALL_FABRIC_PORTS = {"4791/udp": "RoCE"}
SWAP_AS_DELIVERED = ("/swap.img", 16 * 2**20)  # DGX OS creates this file, 16 GiB

_PORT_OWNERS = re.compile(r"(k3s|kube|containerd|etcd)")


def check_node(host: Host) -> list[Finding]:
    """Return the findings of this checklist about a host that was read.

    If an unprivileged user read the host, the facts are incomplete. The only finding is then the missing privilege.
    """
    return apply_rules([PRIVILEGES], host) or apply_rules(NODE_RULES, host)


def _release(text: str) -> Version | None:
    try:
        return parse_k3s_version(text)
    except ValueError:
        return None


def _user(host: Host) -> Sequence[Fault]:
    user = host.known["user"]
    how = (
        f"sudo was used from {user['sudo_from']}, for a user other than root"
        if user["sudo_from"]
        else "no sudo was used"
    )
    return fault_if(user["uid"] != 0, f"{user['name']}, uid {user['uid']}", how=how)


def _system(host: Host) -> Sequence[Fault]:
    system = host.known["os"]
    return fault_if((system["id"], system["version"]) not in TESTED_SYSTEMS, system["name"] or None)


def _cgroup_v1(host: Host) -> Sequence[Fault]:
    wanted = _release(host.version)
    refuses = wanted is None or wanted.release[:2] >= CGROUP_V1_REFUSED_FROM
    told = "fail-cgroupv1=false" in host.kubelet_args
    return fault_if(host.known["cgroup_version"] == 1 and refuses and not told, "cgroup v1")


def _skew(host: Host) -> Sequence[Fault]:
    offset = host.known["clock_offset_s"] or 0.0
    return fault_if(abs(offset) > MAX_CLOCK_SKEW_S, f"{offset:+g} s")


def _ports(host: Host) -> Iterator[Fault]:
    needed = NODE_PORTS | (SERVER_PORTS if host.server else {}) | (ETCD_PORTS if host.embedded_etcd else {})
    for listener in host.known["listeners"]:
        port, process = listener["port"], listener["process"]
        if port in needed and not _PORT_OWNERS.match(process or ""):
            yield {"value": port, "port": port, "process": process or "an unknown process", "user": needed[port]}


def _other_units(host: Host) -> Iterator[Fault]:
    for unit, ours in host.known["kubernetes"]["units"].items():
        if not ours:
            yield {"value": host.known["kubernetes"]["version"] or None, "key": f"/etc/systemd/system/{unit}"}


def _other_role(host: Host) -> Iterator[Fault]:
    expected = "k3s.service" if host.server else "k3s-agent.service"
    for unit, ours in host.known["kubernetes"]["units"].items():
        if ours and unit != expected:
            yield {"value": host.role, "key": f"/etc/systemd/system/{unit}", "unit": unit, "role": host.role}


def _version(host: Host) -> Sequence[Fault]:
    found, wanted = host.known["kubernetes"], _release(host.version)
    installed = _release(found["version"]) if any(found["units"].values()) else None
    differs = installed is not None and wanted is not None and installed != wanted
    return fault_if(differs and not host.upgrading, host.version, installed=installed)


def _swap(host: Host) -> Iterator[Fault]:
    name, largest = SWAP_AS_DELIVERED
    for area in host.known["swap"] if host.pfs else ():
        delivered = area["name"] == name and area["kib"] <= largest
        size = f"{area['name']}, {area['kib'] / 2**20:.1f} GiB"
        yield {"value": size, "name": area["name"], "severity": "info" if delivered else "warning"}


def _firewall(host: Host) -> Sequence[Fault]:
    firewall = host.known["firewall"]
    needed = (
        FIREWALL_PORTS | (FIREWALL_SERVER_PORTS if host.server else {}) | (FIREWALL_FABRIC_PORTS if host.pfs else {})
    )
    # ufw lists a port that is open for both protocols as 6443, and lists Anywhere if all ports are open
    allowed = set(firewall["allowed"])
    closed = [p for p in needed if not allowed & {p, p.partition("/")[0], "Anywhere"}]
    users = ", ".join(f"{port} for {needed[port]}" for port in closed)
    return fault_if(firewall["active"] and closed, "active", ports=users, first=next(iter(closed), ""))


def _wifi(host: Host) -> Sequence[Fault]:
    routes = host.known["default_routes"]
    return fault_if(routes and routes[0] in host.known["wifi"], routes[0] if routes else None)


def _management(host: Host) -> Sequence[Fault]:
    name, there = host.management_interface, host.known["interfaces"]
    return fault_if(name and name not in there, name, there=", ".join(there) or "none")


PRIVILEGES = Rule(
    "preflight.user.not_root",
    "error",
    "user",
    "the host was read by an ordinary user ({how}), so most of it could not be read and nothing could be changed",
    "Set ansible_become: true in the inventory, and run with -K where sudo asks for a password.",
    _user,
)
NODE_RULES = (
    Rule(
        "preflight.os.unsupported",
        "warning",
        "os",
        "the collection was not tested on this system",
        "Use DGX OS 7 (Ubuntu 24.04); others may work.",
        _system,
    ),
    Rule(
        "preflight.cgroup.unknown",
        "warning",
        "cgroup",
        "no cgroup hierarchy was found, and the kubelet needs one",
        "Check that /sys/fs/cgroup is mounted.",
        lambda host: fault_if(host.known["cgroup_version"] is None, None),
    ),
    Rule(
        "preflight.cgroup.v1",
        "error",
        "cgroup",
        "the kubelet of Kubernetes 1.35 and later does not start on cgroup v1",
        "Boot with systemd.unified_cgroup_hierarchy=1, or add fail-cgroupv1=false to k3s_kubelet_args.",
        _cgroup_v1,
    ),
    Rule(
        "preflight.time.unsynchronized",
        "warning",
        "time",
        "the clock is not known to be synchronized; certificates and log times depend on it",
        "Run timedatectl set-ntp true, or enable chrony, and let it reach a server.",
        lambda host: fault_if(host.known["time_synchronized"] is not True, host.known["time_synchronized"]),
    ),
    Rule(
        "preflight.time.skew",
        "error",
        "clock",
        f"the clock is more than {MAX_CLOCK_SKEW_S} s off the controller's, so certificates may be refused",
        "Set the clock, then run timedatectl set-ntp true on host and controller.",
        _skew,
    ),
    Rule(
        "preflight.network.no_default_route",
        "error",
        "default route",
        "K3s needs a default route to find the node's address and to reach the service network",
        "Add one; without an uplink a route through a dummy device is enough.",
        lambda host: fault_if(not host.known["default_routes"], None),
    ),
    Rule(
        "preflight.network.wifi",
        "warning",
        "default route",
        "the default route is Wi-Fi, so the cluster's control traffic would use it",
        "Give the wired interface the lower metric, and set gb10_management_interface.",
        _wifi,
    ),
    Rule(
        "preflight.network.management_missing",
        "error",
        "gb10_management_interface",
        "the host has no such interface (it has: {there})",
        "Correct gb10_management_interface of the host.",
        _management,
    ),
    Rule(
        "preflight.firewall.closed",
        "warning",
        "ufw",
        "the firewall drops what the cluster needs between its hosts: {ports}",
        "Run ufw allow from NETWORK for the management and fabric networks, or ufw allow {first} and so on.",
        _firewall,
    ),
    Rule(
        "preflight.port.in_use",
        "error",
        "port",
        "{process} listens on this port, and {user} needs it",
        "Find it with ss -ltnp sport = :{port}, and stop or move it.",
        _ports,
    ),
    Rule(
        "preflight.kubernetes.api_name",
        "error",
        "k3s_api_host",
        "K3s is a static program that does not ask multicast DNS, so nodes could not resolve a .local name",
        "Set k3s_api_host to the server's fixed address, or to a name that your DNS server knows.",
        lambda host: fault_if(host.api_host.rstrip(".").lower().endswith(".local"), host.api_host),
    ),
    Rule(
        "preflight.kubernetes.other_k3s",
        "error",
        "k3s",
        "K3s was installed here by something else, with data and tokens that this collection must not take over",
        "Run its uninstall script (k3s-uninstall.sh or k3s-agent-uninstall.sh) first.",
        _other_units,
    ),
    Rule(
        "preflight.kubernetes.other_role",
        "error",
        "k3s",
        "this host already runs {unit}, and the inventory now makes it a K3s {role}",
        "Reset the host first (playbook reset, --limit this host), or put it back into its old group.",
        _other_role,
    ),
    Rule(
        "preflight.kubernetes.other_distribution",
        "error",
        "kubernetes",
        "another distribution of Kubernetes left its files here; it owns kubelet, CNI and packet filter rules",
        "Remove it with its own uninstaller first.",
        lambda host: [{"value": name} for name in host.known["kubernetes"]["others"]],
    ),
    Rule(
        "preflight.kubernetes.version_invalid",
        "error",
        "k3s_version",
        "this is not a full K3s release, so nothing could be downloaded, compared or upgraded",
        f"Write it like {EXAMPLE}.",
        lambda host: fault_if(host.version and _release(host.version) is None, host.version),
    ),
    Rule(
        "preflight.kubernetes.version_differs",
        "error",
        "k3s_version",
        "K3s {installed} runs here, and replacing it would stop the model of the whole group",
        "Run playbook upgrade, or set k3s_version to what is installed.",
        _version,
    ),
    Rule(
        "preflight.memory.swap",
        "warning",
        "swap",
        "K3s runs with swap, but on a GB10 the GPU uses the same memory, and a model in swap stalls all ranks",
        "Run swapoff {name} and remove it from /etc/fstab; the file that DGX OS ships does no harm.",
        _swap,
    ),
)
