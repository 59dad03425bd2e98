# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the fabric's inventory variables into the planner's model. Private to the collection.

This module checks each value by itself; ``checks`` finds the errors of combined values. An invalid value becomes a
finding and reading continues, so that one run reports all errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Any, TypeVar

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU

from .hosts import RDMA_DEVICE, read_host, read_pf_name
from .model import SCHEMES, TOPOLOGIES, Fabric, Rail
from .reader import Reader, listed, some_of

# variables with one value for the whole fabric; all hosts must have the same value
GROUP_VARIABLES = (
    "gb10_fabric_rails",
    "gb10_fabric_mtu",
    "gb10_fabric_scheme",
    "gb10_fabric_topology",
    "gb10_fabric_transit",
    "gb10_fabric_subnet_prefix",
    "gb10_fabric_mac_seed",
    "gb10_fabric_reserved_addresses",
    "gb10_cluster_cidr",
    "gb10_service_cidr",
)
HOST_VARIABLES = (
    "gb10_node_id",
    "gb10_fabric_pfs",
    "gb10_fabric_vf_count",
    "gb10_management_interface",
    "gb10_management_networks",
    "ansible_host",
    "ansible_port",
)
# facts about a host's own hardware: gathered, or declared for a host that is not reachable
FACT_VARIABLES = ("gb10_pf_totalvfs", "gb10_pf_max_mtu", "gb10_pf_rdma", "gb10_pf_pci", "gb10_assumed_vf_count")
VARIABLES = GROUP_VARIABLES + HOST_VARIABLES + FACT_VARIABLES
# options of role k3s with networks; a server may have them alone
K3S_VARIABLES = ("k3s_cluster_cidr", "k3s_service_cidr", "k3s_config")

Choice = TypeVar("Choice", bound=str)
RAIL_KEYS = {"name", "pf", "pf_rdma", "network", "network6", "hosts"}

_RAIL_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")


def parse_fabric(variables: Mapping[str, Mapping[str, Any]]) -> tuple[Fabric, list[Finding]]:
    """Convert ``{host: {variable: value}}`` to a fabric, and return it with the findings about single values."""
    reader = Reader()
    if not variables:
        reader.add("fabric.hosts.none", [])
    group = _group_values(reader, variables)
    rails = _rails(reader, group.get("gb10_fabric_rails"), set(variables))
    hosts = tuple(h for name in sorted(variables) if (h := read_host(reader, name, variables[name], rails)) is not None)
    for count, unasked in reader.assumed.items():
        reader.add("fabric.vf_count.assumed", "auto", count=count, hosts=some_of(unasked))
    management: dict[IPv4Network | IPv6Network, None] = {}
    for name in sorted(variables):
        for item in listed(variables[name].get("gb10_management_networks")):
            network = reader.network("gb10_management_networks", item, name, "management_network")
            if network is not None:
                management[network] = None
    fabric = Fabric(
        hosts=hosts,
        rails=rails,
        mtu=_number(reader, group, "gb10_fabric_mtu", DEFAULT_MTU, "fabric.mtu.invalid", 68, 65535),
        scheme=_choice(reader, group, "gb10_fabric_scheme", SCHEMES, "fabric.scheme.unknown"),
        topology=_choice(reader, group, "gb10_fabric_topology", TOPOLOGIES, "fabric.topology.unknown"),
        transit=_switch(reader, group, "gb10_fabric_transit", "fabric.transit.invalid"),
        subnet_prefix=_number(reader, group, "gb10_fabric_subnet_prefix", 24, "fabric.subnet_prefix.invalid", 16, 29),
        mac_seed=_seed(reader, group),
        management_networks=tuple(management),
        cluster_networks=_cluster_networks(reader, group, variables),
        reserved=tuple(str(item) for item in listed(group.get("gb10_fabric_reserved_addresses"))),
        unnumbered=len(variables) - len(hosts),
    )
    return fabric, reader.findings


def _group_values(reader: Reader, variables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values that apply to the whole fabric; report hosts whose values differ."""
    values: dict[str, Any] = {}
    for key in GROUP_VARIABLES:
        said: dict[str, list[str]] = {}
        for name in sorted(variables):
            value = variables[name].get(key)
            said.setdefault("unset" if value is None else repr(value), []).append(name)
            if value is not None:
                values.setdefault(key, value)
        if len(said) > 1:
            shown = "; ".join(f"{some_of(names)}: {value}" for value, names in said.items())
            reader.add("fabric.group_value.differs", shown, key=key)
    return values


def _number(reader: Reader, group: Mapping[str, Any], key: str, default: int, rule: str, low: int, high: int) -> int:
    value = group.get(key, default)
    number = reader.integer(value)
    if number is None or not low <= number <= high:
        reader.add(rule, value, key=key, low=low, high=high, default=default)
        return default
    return number


def _choice(reader: Reader, group: Mapping[str, Any], key: str, choices: tuple[Choice, ...], rule: str) -> Choice:
    value = group.get(key, choices[0])
    for choice in choices:
        if value == choice:
            return choice
    reader.add(rule, value, key=key, choices=", ".join(choices))
    return choices[0]


def _switch(reader: Reader, group: Mapping[str, Any], key: str, rule: str) -> bool:
    value = str(group.get(key, False)).lower()  # -e gives text
    if value not in ("true", "false"):
        reader.add(rule, group[key], key=key)
    return value == "true"


def _seed(reader: Reader, group: Mapping[str, Any]) -> str:
    value = group.get("gb10_fabric_mac_seed", "gb10")
    if not isinstance(value, str) or not value:
        reader.add("fabric.mac_seed.invalid", value)
        return "gb10"
    return str(value)


def _cluster_networks(
    reader: Reader, group: Mapping[str, Any], variables: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[str, IPv4Network | IPv6Network], ...]:
    """Return the networks of pods and services with the variable that sets each, as role k3s reads them."""
    networks: dict[tuple[str, IPv4Network | IPv6Network], None] = {}
    for kind, default in (("cluster", "10.42.0.0/16"), ("service", "10.43.0.0/16")):
        own = [found for values in variables.values() if (found := _of_k3s(values, kind))]
        for key, value in own or [(f"gb10_{kind}_cidr", group.get(f"gb10_{kind}_cidr", default))]:
            # K3s accepts an IPv4 and an IPv6 network in one value, separated by a comma, or a list of them
            for item in ",".join(map(str, listed(value))).split(","):
                network = reader.network(key, item.strip(), rule="cluster_network")
                if network is not None:
                    networks[key, network] = None
    return tuple(networks)


def _of_k3s(values: Mapping[str, Any], kind: str) -> tuple[str, Any] | None:
    """Return the option of role k3s by which a host sets a network, and its value."""
    config = values.get("k3s_config")
    given = config.get(f"{kind}-cidr") if isinstance(config, Mapping) else None
    key, value = f"k3s_config.{kind}-cidr", given
    if not given:
        key = f"k3s_{kind}_cidr"
        value = values.get(key)
    return (key, value) if value else None


def _rails(reader: Reader, declared: Any, known_hosts: set[str]) -> tuple[Rail, ...]:
    if not isinstance(declared, (list, tuple)) or not declared:
        reader.add("fabric.rails.none", declared)
        return ()
    rails: dict[str, Rail] = {}
    for index, item in enumerate(declared):
        rail = _rail(reader, index, item, known_hosts)
        if rail is None:
            continue
        if rail.name in rails:
            reader.add("fabric.rail.duplicate", rail.name, index=index)
            continue
        rails[rail.name] = rail
    return tuple(rails.values())


def _rail(reader: Reader, index: int, item: Any, known_hosts: set[str]) -> Rail | None:
    key = f"gb10_fabric_rails[{index}]"
    if not isinstance(item, Mapping):
        reader.add("fabric.rail.invalid", item, key=key)
        return None
    for extra in sorted(str(k) for k in set(item) - RAIL_KEYS):
        reader.add("fabric.rail.unknown_key", item[extra], key=f"{key}.{extra}", known=", ".join(sorted(RAIL_KEYS)))
    missing = [k for k in ("name", "pf", "network") if item.get(k) in (None, "")]
    for k in missing:
        reader.add("fabric.rail.incomplete", None, key=f"{key}.{k}", part=k)
    if missing:
        return None
    name = str(item["name"])
    if not _RAIL_NAME.fullmatch(name):
        reader.add("fabric.rail.name", name, key=f"{key}.name")
    network = reader.network(f"{key}.network", item["network"])
    network6 = (
        None
        if item.get("network6") in (None, "")
        else reader.network(f"{key}.network6", item["network6"], rule="network6")
    )
    if isinstance(network, IPv6Network):
        reader.add("fabric.network.family", str(network), key=f"{key}.network")
    if isinstance(network6, IPv4Network):
        reader.add("fabric.network6.family", str(network6), key=f"{key}.network6")
    pf = read_pf_name(reader, f"{key}.pf", item["pf"], "")
    members = None if item.get("hosts") is None else tuple(str(host) for host in listed(item["hosts"]))
    for host in members or ():
        if host not in known_hosts:
            reader.add("fabric.rail.unknown_host", host, key=f"{key}.hosts")
    if not isinstance(network, IPv4Network) or pf is None:
        return None
    rdma = item.get("pf_rdma")
    if rdma is not None and not RDMA_DEVICE.fullmatch(str(rdma)):
        reader.add("fabric.rdma.name", rdma, key=f"{key}.pf_rdma")
        rdma = None
    return Rail(
        name=name,
        index=index,
        pf=pf,
        network=network,
        hosts=members,
        pf_rdma=None if rdma is None else str(rdma),
        network6=network6 if isinstance(network6, IPv6Network) else None,
    )
