# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find settings that a running cluster cannot change, before they are written over those that it uses.

K3s reads them at every start, but parts of it have stored what follows from them. The controller manager ends with
"cidr is out the range of cluster cidr" (k3s-io/k3s#3967). The API refuses Services that are "not within the service
CIDR" (#3489), and etcd "is a not a member of the etcd cluster" at another address (#5352). Servers that start with
encryption where the others started without it make keys of their own (#7195).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
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
    """Yield each interface, such as Docker's or libvirt's bridge or a VPN, whose address is one of pods or services."""
    wanted = _written_alike({**DEFAULTS, **DEFAULT_OF_ROLE, **host.k3s})
    for key in ("cluster-cidr", "service-cidr"):
        for name, addresses in host.known["addresses"].items():
            inside = [one for one in addresses if not name.startswith(_OF_PODS) and _is_inside(one, wanted[key])]
            if inside:
                yield {"value": ", ".join(inside), "interface": name, "key": WHY[key][0], "network": wanted[key]}


def _is_inside(address: str, networks: str) -> bool:
    """Tell whether an address is in one of the networks; the plan has the error for a value that cannot be read."""
    try:
        return any(ip_address(address) in ip_network(text, strict=False) for text in networks.split(","))
    except ValueError:
        return False


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
