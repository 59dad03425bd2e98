# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a Kubernetes node, by rule.

Preflight applies these rules to all hosts before anything is changed. Role k3s applies the same rules to one host
before it installs K3s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._k3s.airgap import EXAMPLE, parse_k3s_version

from .cluster_rules import (
    find_dns,
    find_encryption,
    find_fixed,
    find_lost_dns,
    find_moved,
    find_taken,
    find_taken_lan,
    find_taken_rails,
)
from .host import Fault, Find, Host, fault_if, find_unknown

MAX_CLOCK_SKEW_S = 60  # a slow connection adds seconds; a clock that is behind rejects K3s's certificates
CGROUP_V1_REFUSED_FROM = (1, 35)
# DGX OS 7 is based on Ubuntu 24.04; the lab runs Debian 13
TESTED_SYSTEMS = {("ubuntu", "24.04"), ("debian", "13")}
# The lines of Kubernetes on which the lab serves a group (tests/lab/test_lines.py)
TESTED_LINES = ((1, 35), (1, 36), (1, 37))
# Ports of K3s (docs.k3s.io/installation/requirements, and the listeners of a node of v1.36)
NODE_PORTS = {6444: "K3s's load balancer", 10250: "the kubelet", 10256: "kube-proxy", 10010: "containerd's streams"}
SERVER_PORTS = {6443: "the Kubernetes API"}
ETCD_PORTS = {2379: "etcd", 2380: "etcd"}
# Of every node with the embedded registry (docs.k3s.io/installation/registry-mirror).
REGISTRY_PORTS = {5001: "K3s's embedded registry", 6443: "K3s's embedded registry"}
FIREWALL_PORTS = {"8472/udp": "the pod network (VXLAN)", "10250/tcp": "the kubelet"}
FIREWALL_FABRIC_PORTS = {"4791/udp": "RoCE"}
NEEDED_MIB = 64  # programs and units of the roles have less than 10 MiB; the journal and apt need some room too
SWAP_AS_DELIVERED = ("/swap.img", 16 * 2**20)  # DGX OS creates this file, 16 GiB

_PORT_OWNERS = re.compile(r"(k3s|kube|containerd|etcd)")


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
    return fault_if(abs(offset) > MAX_CLOCK_SKEW_S, f"{offset:+g} s", limit=MAX_CLOCK_SKEW_S)


def _special_ports(host: Host) -> dict[int, str]:
    """Return the ports that only some nodes need, by what they run."""
    parts = ((host.embedded_registry, REGISTRY_PORTS), (host.server, SERVER_PORTS), (host.embedded_etcd, ETCD_PORTS))
    return {port: user for runs, ports in parts if runs for port, user in ports.items()}


def _ports(host: Host) -> Iterator[Fault]:
    needed = NODE_PORTS | _special_ports(host)
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


def _untested(host: Host) -> Sequence[Fault]:
    wanted = _release(host.version)
    tested = ", ".join(f"v{major}.{minor}" for major, minor in TESTED_LINES)
    return fault_if(wanted is not None and wanted.release[:2] not in TESTED_LINES, host.version, tested=tested)


def _swap(host: Host) -> Iterator[Fault]:
    name, largest = SWAP_AS_DELIVERED
    # A group that needs swap while it loads has a rule of its own.
    for area in (host.known["swap"] or ()) if host.pfs and not host.swap_gib else ():
        delivered = area["name"] == name and area["kib"] <= largest
        size = f"{area['name']}, {area['kib'] / 2**20:.1f} GiB"
        yield {"value": size, "name": area["name"], "severity": "info" if delivered else "warning"}


def _silent(host: Host) -> Iterator[Fault]:
    for path, state in host.known["written"].items():
        if state["read_only"] is None or state["free_mib"] is None:
            yield {"value": path}


def _read_only(host: Host) -> Iterator[Fault]:
    for path, state in host.known["written"].items():
        if state["read_only"]:
            yield {"value": path}


def _full(host: Host) -> Iterator[Fault]:
    for path, state in host.known["written"].items():
        if state["free_mib"] is not None and state["free_mib"] < NEEDED_MIB:
            yield {"value": f"{state['free_mib']} MiB free", "key": path, "path": path}


def _opens(entry: str, port: str) -> bool:
    """Return whether ufw's entry opens a port: Anywhere, a range (2379:2380/tcp), or a port for both protocols."""
    number, _slash, protocol = port.partition("/")
    ports, _slash, only = entry.partition("/")
    first, _colon, last = ports.partition(":")
    return entry == "Anywhere" or (
        first.isdecimal() and int(first) <= int(number) <= int(last or first) and only in {"", protocol}
    )


def _firewall(host: Host) -> Sequence[Fault]:
    return _closed(host, FIREWALL_PORTS | {f"{port}/tcp": user for port, user in _special_ports(host).items()})


def _closed(host: Host, needed: Mapping[str, str]) -> Sequence[Fault]:
    firewall = host.known["firewall"]
    closed = [port for port in needed if not any(_opens(entry, port) for entry in firewall["allowed"])]
    users = ", ".join(f"{port} for {needed[port]}" for port in closed)
    return fault_if(firewall["active"] and closed, "active", ports=users, first=next(iter(closed), ""))


def _wifi(host: Host) -> Sequence[Fault]:
    routes = host.known["default_routes"]
    return fault_if(routes and routes[0] in host.known["wifi"], routes[0] if routes else None)


def _management(host: Host) -> Sequence[Fault]:
    name, there = host.management_interface, host.known["interfaces"]
    return fault_if(name and there and name not in there, name, there=", ".join(there) or "none")


SHAPE: Mapping[str, Find] = {
    "preflight.facts.shape": lambda host: fault_if(host.misread, ", ".join(host.misread)),
}
PRIVILEGES: Mapping[str, Find] = {"preflight.user.not_root": _user}
# What depends on each fact that every node must tell; an empty one is as unknown as none.
_NEEDED = {
    "kernel": "the release of its kernel",
    "interfaces": "its interfaces",
    "addresses": "its addresses",
    "written": "whether its directories can be written",
}
NODE_RULES: Mapping[str, Find] = {
    "preflight.facts.unread": lambda host: find_unknown(host, _NEEDED),
    "preflight.os.unsupported": _system,
    "preflight.cgroup.unknown": lambda host: fault_if(host.known["cgroup_version"] is None, None),
    "preflight.cgroup.v1": _cgroup_v1,
    "preflight.time.unsynchronized": lambda host: fault_if(
        host.known["time_synchronized"] is not True, host.known["time_synchronized"]
    ),
    "preflight.time.skew": _skew,
    "preflight.network.no_default_route": lambda host: fault_if(not host.known["default_routes"], None),
    "preflight.network.wifi": _wifi,
    "preflight.network.management_missing": _management,
    "preflight.network.cluster": find_taken,
    "preflight.network.rail": find_taken_rails,
    "preflight.network.lan": find_taken_lan,
    "preflight.network.dns": find_lost_dns,
    "preflight.kubernetes.dns": find_dns,
    "preflight.firewall.closed": _firewall,
    "preflight.firewall.fabric": lambda host: _closed(host, FIREWALL_FABRIC_PORTS if host.pfs else {}),
    "preflight.port.in_use": _ports,
    "preflight.kubernetes.api_name": lambda host: fault_if(
        host.api_host.rstrip(".").lower().endswith(".local"), host.api_host
    ),
    "preflight.kubernetes.other_k3s": _other_units,
    "preflight.kubernetes.other_role": _other_role,
    "preflight.kubernetes.other_distribution": lambda host: [
        {"value": name} for name in host.known["kubernetes"]["others"]
    ],
    "preflight.kubernetes.version_invalid": lambda host: fault_if(
        host.version and _release(host.version) is None, host.version, example=EXAMPLE
    ),
    "preflight.kubernetes.version_untested": _untested,
    "preflight.kubernetes.version_differs": _version,
    "preflight.kubernetes.fixed": find_fixed,
    "preflight.kubernetes.encryption": find_encryption,
    "preflight.kubernetes.moved": find_moved,
    "preflight.memory.swap": _swap,
    "preflight.storage.no_answer": _silent,
    "preflight.storage.read_only": _read_only,
    "preflight.storage.full": _full,
}
