# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find settings that a running cluster cannot change, before they are written over those that it uses.

K3s reads them at every start, but parts of it have stored what follows from them. The controller manager ends with
"cidr is out the range of cluster cidr" (k3s-io/k3s#3967). The API refuses Services that are "not within the service
CIDR" (#3489), and etcd "is a not a member of the etcd cluster" at another address (#5352). Servers that start with
encryption where the others started without it make keys of their own (#7195).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.cluster import DEFAULTS

from .host import Fault, Host, fault_if

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
