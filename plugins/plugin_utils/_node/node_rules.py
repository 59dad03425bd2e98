# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a Kubernetes node, of its ports and of its settings, by rule."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._host.k3s import EXAMPLE, parse_k3s_version
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import DEFAULTS

from .host import Fault, Find, Host, fault_if, find_unknown

# Find settings that a running cluster cannot change, before they are written over those that it uses.
#
# K3s reads them at every start, but parts of it have stored what follows from them. The controller manager ends with
# "cidr is out the range of cluster cidr" (k3s-io/k3s#3967). The API refuses Services that are "not within the service
# CIDR" (#3489), and etcd "is a not a member of the etcd cluster" at another address (#5352). Servers that start with
# encryption where the others started without it make keys of their own (#7195).

# The variables that set each of them, besides k3s_config
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "data-dir": ("k3s_data_dir",),
    "cluster-cidr": ("k3s_cluster_cidr", "gb10_cluster_cidr"),
    "service-cidr": ("k3s_service_cidr", "gb10_service_cidr"),
    "cluster-dns": (),
    "secrets-encryption": ("k3s_secrets_encryption",),
    "node-ip": ("k3s_node_ip",),
    "flannel-iface": ("k3s_node_interface", "gb10_management_interface"),
}
ENCRYPTION = "secrets-encryption"
DEFAULT_OF_ROLE = {ENCRYPTION: True}
# Where an owner sets each of them, and what would happen with another value
WHY = {
    "data-dir": ("k3s_data_dir", "a new, empty cluster would begin in the other directory"),
    "cluster-cidr": ("gb10_cluster_cidr", "the nodes keep their networks, and K3s ends if they are outside this one"),
    "service-cidr": (
        "gb10_service_cidr",
        "services keep their addresses, and the API refuses those outside this network",
    ),
    "cluster-dns": (
        "k3s_config.cluster-dns",
        "the Service of the DNS server keeps its address, so pods would not find it",
    ),
}

# Interfaces that Kubernetes itself makes: of flannel (K3s's default), kube-proxy, Calico and Cilium
_OF_PODS = ("cni", "flannel", "kube-", "cali", "vxlan.calico", "tunl", "cilium", "lxc", "nodelocaldns")
_NICS = ("en", "eth", "wl", "ww", "usb")
_DEFAULT_PREFIX = 7


def wanted_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that role k3s would write, by K3s's names, from the variables of a host."""
    given_config = values.get("k3s_config")
    config = given_config if isinstance(given_config, Mapping) else {}
    wanted: dict[str, Any] = dict(DEFAULT_OF_ROLE)
    for key, names in VARIABLES.items():
        given = [config.get(key), *(values.get(name) for name in names)]
        wanted.update((key, value) for value in reversed(given) if value not in (None, ""))
    return wanted


def find_fixed(host: Host) -> Iterator[Fault]:
    """Yield each setting that differs from the one with which the cluster was made."""
    used, wanted = _compared(host)
    # The usual address of the DNS server follows from the network of the Services.
    different = [key for key in WHY if used and used[key] != wanted[key]]
    for key in different if host.server else set(different) & {"data-dir"}:
        if key != "cluster-dns" or "service-cidr" not in different:
            name, why = WHY[key]
            yield {"value": wanted[key], "key": name, "installed": used[key], "why": why}


def find_encryption(host: Host) -> Sequence[Fault]:
    used, wanted = _compared(host)
    return fault_if(used and host.server and used[ENCRYPTION] != wanted[ENCRYPTION], wanted[ENCRYPTION] == "true")


def find_moved(host: Host) -> Sequence[Fault]:
    """Return a fault for a member of etcd that would start at another address than the one that etcd has stored."""
    used, wanted = _compared(host)
    member = used["node-ip"].partition(",")[0] if used and host.server else ""
    addresses = host.known["addresses"]
    interface = host.k3s.get("flannel-iface") or ""
    if wanted["node-ip"]:
        there = [wanted["node-ip"].partition(",")[0]]
    elif interface in addresses:
        # Role k3s takes the first one.
        there = [one for one in addresses[interface] if ":" not in one][:1]
    else:
        there = [one for name, found in addresses.items() if name != "lo" for one in found]
    return fault_if(member and member not in there, ", ".join(there) or None, member=member, name=host.name)


def find_taken(host: Host) -> Iterator[Fault]:
    """Yield each interface, such as a bridge of Docker or a VPN, that has a part of the cluster's networks.

    Where K3s is installed, its own routes may lead over any interface (flannel's backend host-gw).
    """
    routes = {} if host.known["kubernetes"]["units"] else host.known["routes"]
    for key, networks in _cluster_networks(host):
        yield from _taken(host, key, networks, lambda name: name.startswith(_OF_PODS), routes)


def find_taken_rails(host: Host) -> Iterator[Fault]:
    """Yield each interface that has a part of a rail's network, other than the ports of the rails and their VFs."""
    stems = tuple(re.sub(r"np\d+$", "", pf) for pf in host.pfs)
    for rail, network in host.networks.items():
        for fault in _taken(
            host, "gb10_fabric_rails", network, lambda name: name.startswith(stems), host.known["routes"]
        ):
            yield {**fault, "rail": rail}


def find_taken_lan(host: Host) -> Iterator[Fault]:
    """Yield each bridge and VPN that has a part of the network in which the hosts are managed.

    Another NIC or Wi-Fi in the same network and a wider route of a VPN are usual.
    """
    mine = host.management_interface or ""
    lan = ",".join(host.known["routes"].get(mine, ()))
    names = ("lo", *_NICS, *_OF_PODS, mine)
    for fault in (
        _taken(host, "", lan, lambda name: name.startswith(names), host.known["routes"]) if mine and lan else ()
    ):
        if "severity" not in fault:
            yield {**fault, "key": fault["interface"], "own": mine}


def find_lost_dns(host: Host) -> Iterator[Fault]:
    """Yield each name server of the host that has an address of pods, services or a rail."""
    rails = [("gb10_fabric_rails", network) for network in host.networks.values()]
    for key, networks in [*_cluster_networks(host), *rails]:
        for server in host.known["nameservers"]:
            if _overlap(server, networks):
                yield {"value": server, "key": key, "network": networks}


def find_dns(host: Host) -> Sequence[Fault]:
    """Return a fault for a DNS server of the cluster whose address no Service can have."""
    wanted = _written_alike({**DEFAULTS, **DEFAULT_OF_ROLE, **host.k3s})
    outside = [one for one in wanted["cluster-dns"].split(",") if one and not _overlap(one, wanted["service-cidr"])]
    return fault_if(host.server and outside, ", ".join(outside), network=wanted["service-cidr"])


def _cluster_networks(host: Host) -> list[tuple[str, str]]:
    wanted = _written_alike({**DEFAULTS, **DEFAULT_OF_ROLE, **host.k3s})
    return [(WHY[key][0], wanted[key]) for key in ("cluster-cidr", "service-cidr")]


def _taken(
    host: Host, key: str, networks: str, own: Callable[[str], bool], routes: Mapping[str, Sequence[str]]
) -> Iterator[Fault]:
    """Yield a fault for each interface that is not ``own`` and has an address or one of the routes in the networks.

    Where a route is wider, such as 10.0.0.0/8 of a VPN, the host loses only a part of what is behind it.
    """
    for name in dict.fromkeys([*host.known["addresses"], *routes]):
        if own(name):
            continue
        there = [*host.known["addresses"].get(name, ()), *routes.get(name, ())]
        shared = [one for one in dict.fromkeys(there) if _overlap(one, networks)]
        narrow = [one for one in shared if not _overlap(one, networks, wider=True)]
        if shared:
            severity = {} if narrow else {"severity": "warning"}
            yield {"value": ", ".join(narrow or shared), "interface": name, "key": key, "network": networks, **severity}


def _overlap(one: str, networks: str, wider: bool = False) -> bool:
    """Tell whether an address or a network shares addresses with one of the networks, or is ``wider`` than it.

    The plan has the error for a value that cannot be read. Halves and quarters of all addresses are what a VPN has
    instead of a default route. Every interface has a fe80::/64 of its own.
    """
    try:
        mine = ip_network(one, strict=False)
        others = [ip_network(text, strict=False) for text in networks.split(",")]
    except ValueError:
        return False
    if mine.version == 6 and mine.is_link_local:
        return False
    same = [other for other in others if other.version == mine.version and mine.prefixlen > _DEFAULT_PREFIX]
    if wider:
        return any(mine.prefixlen < other.prefixlen and mine.overlaps(other) for other in same)
    return any(mine.overlaps(other) for other in same)


def _compared(host: Host) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the cluster, empty without one, and the wanted ones, written alike."""
    used: Mapping[str, str] = host.known["kubernetes"]["settings"]
    # The module reads all of them from a host with K3s. An answer without some is half of one, and stands for defaults.
    whole = {**DEFAULTS, ENCRYPTION: False, **used}
    return _written_alike(whole) if used else {}, _written_alike({**DEFAULTS, **DEFAULT_OF_ROLE, **host.k3s})


def _written_alike(settings: Mapping[str, Any]) -> dict[str, str]:
    values = {key: settings[key] if isinstance(settings[key], (list, tuple)) else [settings[key]] for key in DEFAULTS}
    texts = {key: ",".join(map(str, value)).replace(" ", "").rstrip("/") for key, value in values.items()}
    texts[ENCRYPTION] = str(boolean(settings[ENCRYPTION], strict=False)).lower()
    return texts | {"cluster-dns": texts["cluster-dns"] or _usual_dns(texts["service-cidr"])}


def _usual_dns(services: str) -> str:
    """Return the address that K3s gives to the DNS server: the tenth of the network of the Services."""
    try:
        return str(ip_network(services.partition(",")[0])[10])
    except (ValueError, IndexError):
        return ""


# Find the faults of a planned port in the facts of its host, by rule.

# A ConnectX-7 that came up degraded carries about 13 Gb/s. The slowest link that owners chose is 40 Gb/s.
DEGRADED_GBPS = 25
_ENCODING = 128 / 130  # PCIe 3.0 and later


def _each_port(find: Callable[[Host, Mapping[str, Any]], Sequence[Fault]]) -> Callable[[Host], Iterator[Fault]]:
    """Return a function that checks each planned port; a fault without a key gets the port's name as key."""

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
    # an unused port with a link suggests that the cable is in the other cage
    linked = [other["name"] for other in host.known["pfs"] if other["carrier"] and other["name"] not in host.pfs]
    do = "Check cable, cage and switch port."
    if linked:
        do = f"{' and '.join(linked)} has a link: if the cable is in that cage, name it in gb10_fabric_pfs."
    return fault_if(not pf["carrier"], "down", do=do)


def _not_active(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    wrong = pf["carrier"] and pf["rdma_device"] and pf["port_state"] != "ACTIVE"
    return fault_if(wrong, pf["port_state"], device=pf["rdma_device"])


def _slow(_host: Host, pf: Mapping[str, Any]) -> Sequence[Fault]:
    rate = pf["rate_gbps"]
    slow = pf["carrier"] and rate is not None and rate < DEGRADED_GBPS
    return [{"value": f"{rate:g} Gb/s"}] if slow else []


def compare_rates(hosts: Iterable[Host]) -> Iterator[tuple[str, Fault]]:
    """Yield the rule and the fault of each rail whose ports differ in rate, or all have less than was asked for.

    A rail of 100 Gb/s on all ports is often meant: breakout cables, or a switch of 100 Gb/s. Ports of unequal rates
    were seen with silent stalls and packet_seq_err.
    """
    rates: dict[str, dict[float, list[str]]] = defaultdict(lambda: defaultdict(list))
    wanted = 0.0
    for host in hosts:
        for pf in host.facts["pfs"] if host.facts is not None else ():
            rate = pf["rate_gbps"]
            if pf["name"] in host.pfs and pf["carrier"] and rate is not None and rate >= DEGRADED_GBPS:
                rates[host.rails.get(pf["name"], pf["name"])][rate].append(f"{host.name} {pf['name']}")
                wanted = max(wanted, host.settings.min_rate_gbps)
    for rail, found in rates.items():
        if len(found) > 1:
            shown = "; ".join(f"{rate:g} Gb/s: {', '.join(ports)}" for rate, ports in sorted(found.items()))
            yield "preflight.link.unequal", {"value": shown, "key": rail, "rail": rail}
        elif (rate := min(found)) < wanted:
            fault = {"value": f"{rate:g} Gb/s", "rate": f"{rate:g}", "wanted": f"{wanted:g}", "key": rail, "rail": rail}
            yield "preflight.link.below", fault


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


PORT_RULES: Mapping[str, Find] = {
    "preflight.netplan.dhcp_lease": _each_port(_lease),
    "preflight.driver.other": _each_port(lambda host, pf: fault_if(pf["driver"] != "mlx5_core", pf["driver"])),
    "preflight.driver.no_rdma": _each_port(lambda host, pf: fault_if(pf["rdma_device"] is None, None)),
    "preflight.link.down": _each_port(_down),
    # mlx5_lag_check_prereq in the kernel refuses a RoCE bond of ports with virtual functions
    "preflight.link.member": _each_port(lambda host, pf: fault_if(pf["master"], pf["master"])),
    "preflight.link.not_active": _each_port(_not_active),
    "preflight.link.slow": _each_port(_slow),
    "preflight.link.no_rate": _each_port(
        lambda host, pf: fault_if(pf["carrier"] and pf["rdma_device"] and pf["rate_gbps"] is None, None)
    ),
    "preflight.pcie.unknown": _each_port(lambda host, pf: fault_if(_pcie_unknown(pf), None)),
    "preflight.pcie.narrow": _each_port(_narrow),
    "preflight.pcie.slow": _each_port(_pcie_slow),
    "preflight.mtu.not_yet": _each_port(
        lambda host, pf: fault_if(pf["mtu"] is not None and pf["mtu"] < host.mtu, pf["mtu"], planned=host.mtu)
    ),
}


# Find the faults of a Kubernetes node, by rule.
#
# Preflight applies these rules to all hosts before anything is changed. Role k3s applies the same rules to one host
# before it installs K3s.

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


def _prints(host: Host) -> Sequence[Fault]:
    user = host.known["user"]
    return fault_if(host.unread.get("printed"), host.unread.get("printed"), user=user["sudo_from"] or user["name"])


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
    "preflight.user.prints": _prints,
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
    "preflight.firewall.closed": lambda host: _closed(
        host, FIREWALL_PORTS | {f"{port}/tcp": user for port, user in _special_ports(host).items()}
    ),
    # The NIC handles RoCE, so the host's packet filter does not see it, and pods have packet filters of their own.
    "preflight.firewall.fabric": lambda host: _closed(
        host, {f"{host.share_port}/tcp": "copies of models"} if host.pfs else {}
    ),
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
