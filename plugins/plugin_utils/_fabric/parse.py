# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the fabric's inventory variables into the planner's model. Private to the collection.

This module checks each value by itself; ``checks`` finds the errors of combined values. An invalid value becomes a
finding and reading continues, so that one run reports all errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import (
    NETDEV_MAX,
    is_interface_name,
    is_vf_name,
    is_vlan_name,
    pf_of_rdma,
    rdma_name,
)

from .._controller.data import Rules
from .model import SCHEMES, TOPOLOGIES, Fabric, Host, Port, Rail

_LEADING_ZERO = re.compile(r"(^|\.)0\d")
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_RULES = Rules("_fabric", "inventory")
_OF_HOSTS = Rules("_fabric")


@dataclass
class Reader:
    """Reads values and collects findings about them."""

    findings: list[Finding] = field(default_factory=list)
    # {assumed VF count: its hosts}, so that one finding can name all of them
    assumed: dict[int, dict[str, None]] = field(default_factory=dict)
    # {host of a rail that is none of the fabric: the rails}, for the same reason
    strangers: dict[str, list[int]] = field(default_factory=dict)
    # rails of which a member cannot be planned, because its name or its port is wrong
    unclear: set[str] = field(default_factory=set)

    def add(self, rule: str, value: Any, where: str = "", **words: Any) -> None:
        """Add the finding of a rule; ``words`` are the values for its key and sentences."""
        self.findings.append(_RULES.finding(rule, value, where, **words))

    def integer(self, value: Any) -> int | None:
        """Return a whole number, also from text (as ``-e`` and INI inventories give it), or None; reject booleans."""
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value)
        return None

    def network(self, key: str, value: Any, where: str = "", rule: str = "network") -> IPv4Network | IPv6Network | None:
        """Return the network in ``value``, or None after adding a finding about it."""
        text = str(value)
        # Leading zeros of IPv6 are usual, and for network6 any IPv4 network is wrong.
        if ":" not in text and rule != "network6" and _LEADING_ZERO.search(text):
            self.add(f"fabric.{rule}.leading_zero", value, where, key=key)
            return None
        if "/" not in text:
            self.add(f"fabric.{rule}.invalid", value, where, key=key, problem="no prefix length")
            return None
        try:
            return ip_network(text)
        except ValueError as error:
            try:
                wanted = ip_network(text, strict=False)
            except ValueError:
                self.add(f"fabric.{rule}.invalid", value, where, key=key, problem=error)
            else:
                self.add(f"fabric.{rule}.host_bits", value, where, key=key, network=wanted)
        return None


def some_of(names: Iterable[str]) -> str:
    """Return up to four names; of more names, the first, the last and their number."""
    known = list(names)
    return ", ".join(known) if len(known) <= 4 else f"{known[0]} … {known[-1]} ({len(known)} hosts)"


def listed(value: Any) -> Sequence[Any]:
    """Return a list from a list, a single value or nothing."""
    if value is None:
        return []
    return value if isinstance(value, (list, tuple)) else [value]


VF_MAX = 127  # the largest NUM_OF_VFS that ConnectX firmware accepts for a PF
NODE_ID_LIMIT = 1 << 16  # two bytes of the MAC; the subnet sets the real limit
RDMA_OF_NIC = re.compile(r"roce[pP]\d|mlx[45]_\d|bnxt_re\d|irdma\d")
RDMA_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")  # IB_DEVICE_NAME_MAX is 64, with room for vN


def read_pf_name(reader: Reader, key: str, value: Any, where: str) -> str | None:
    name = str(value)
    if not is_interface_name(name):
        reader.add("fabric.pf.name", value, where, key=key, limit=NETDEV_MAX)
        return None
    if is_vlan_name(name):
        reader.add("fabric.pf.is_vlan", name, where, key=key)
        return None
    if is_vf_name(name):
        reader.add("fabric.pf.is_vf", name, where, key=key)
        return None
    if RDMA_OF_NIC.match(name):
        meant = pf_of_rdma(name)
        reader.add("fabric.pf.is_rdma", name, where, key=key, meant=f", here {meant}" if meant else "")
        return None
    return name


def read_host(reader: Reader, name: str, values: Mapping[str, Any], rails: tuple[Rail, ...]) -> Host | None:
    node_id = _node_id(reader, name, values.get("gb10_node_id"))
    chosen = values.get("gb10_fabric_pfs") or {}
    if not isinstance(chosen, Mapping):
        reader.add("fabric.pfs.invalid", chosen, name)
        chosen = {}
    # A rail with an error has its own finding; one without a name may be any.
    items = listed(values.get("gb10_fabric_rails"))
    declared = {str(item.get("name") or "") if isinstance(item, Mapping) else "" for item in items}
    for rail_name in chosen:
        if declared and rail_name not in declared and "" not in declared:
            known = ", ".join(rail.name for rail in rails) or "none"
            reader.add("fabric.rail.unknown", chosen[rail_name], name, rail=rail_name, known=known)
    ports = tuple(p for rail in rails if (p := _port(reader, name, values, rail, chosen)) is not None)
    if node_id is None:
        return None
    return Host(
        name=name,
        node_id=node_id,
        ports=ports,
        management_interface=_text(values.get("gb10_management_interface")),
        management_address=_one_spelling(values.get("ansible_host") or name),
        management_port=str(values.get("ansible_port") or 22),
    )


def _one_spelling(address: Any) -> str:
    """Return an address or a host name as every inventory that means the same machine would have it."""
    text = str(address)
    try:
        return str(ip_address(text))
    except ValueError:
        return text.lower().rstrip(".")


def _node_id(reader: Reader, name: str, value: Any) -> int | None:
    if value is None:
        reader.add("fabric.node_id.missing", None, name)
        return None
    number = reader.integer(value)
    if number is None:
        reader.add("fabric.node_id.invalid", value, name)
    elif not 0 < number < NODE_ID_LIMIT:
        reader.add("fabric.node_id.range/number", number, name)
        number = None
    return number


def _port(reader: Reader, host: str, values: Mapping[str, Any], rail: Rail, chosen: Mapping[str, Any]) -> Port | None:
    if rail.hosts is not None and host not in rail.hosts:
        return None
    key = f"gb10_fabric_pfs.{rail.name}"
    given = key if rail.name in chosen else f"gb10_fabric_rails.{rail.name}.pf"
    wanted: Any = chosen.get(rail.name, rail.pf)
    if wanted is None:
        reader.add("fabric.rail.absent", None, host, key=key)
        return None
    # the rail's own RDMA name belongs to its default PF
    rdma = rail.pf_rdma if wanted == rail.pf else None
    if isinstance(wanted, Mapping):
        rdma = wanted.get("rdma_device")
        wanted = wanted.get("name")
    pf = read_pf_name(reader, key, wanted, host)
    if pf is None:
        reader.unclear.add(rail.name)
        return None
    device = str(rdma) if rdma else rdma_name(pf)
    if device is None or not RDMA_DEVICE.fullmatch(device):
        reader.add("fabric.rdma.unknown", pf, host, key=given)
        reader.unclear.add(rail.name)
        return None
    reported = _facts(values, "gb10_pf_rdma").get(pf)
    if reported is not None and reported != device:
        reader.add("fabric.rdma.differs", device, host, key=key, pf=pf, reported=reported)
    total = reader.integer(_facts(values, "gb10_pf_totalvfs").get(pf))
    if _asked(values) and total is None:
        present = ", ".join(sorted(values["gb10_pf_totalvfs"])) or "none"
        reader.add("fabric.pf.unknown", pf, host, key=key, rail=rail.name, present=present)
    return Port(
        rail=rail,
        name=pf,
        rdma_device=device,
        vf_count=_vf_count(reader, host, values, pf, total),
        total_vfs=total,
        max_mtu=reader.integer(_facts(values, "gb10_pf_max_mtu").get(pf)),
        pci=_text(_facts(values, "gb10_pf_pci").get(pf)),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _asked(values: Mapping[str, Any]) -> bool:
    """Tell whether the host's hardware was read, also if the result was that it has no PF."""
    return isinstance(values.get("gb10_pf_totalvfs"), Mapping)


def _facts(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    facts = values.get(key)
    return facts if isinstance(facts, Mapping) else {}


def _vf_count(reader: Reader, host: str, values: Mapping[str, Any], pf: str, total: int | None) -> int:
    wanted = values.get("gb10_fabric_vf_count", "auto")
    if wanted == "auto":
        if total is not None:
            return min(total, VF_MAX)
        assumed = reader.integer(values.get("gb10_assumed_vf_count"))
        if assumed is not None:
            reader.assumed.setdefault(assumed, {})[host] = None
            return assumed
        if not _asked(values):
            reader.add("fabric.vf_count.unknown", "auto", host, pf=pf)
        return 0
    number = reader.integer(wanted)
    if number is None or not 0 < number <= VF_MAX:
        reader.add("fabric.vf_count.invalid", wanted, host, most=VF_MAX)
        return 0
    return number


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
    rails = _rails(reader, group.get("gb10_fabric_rails"), set(variables)) if variables else ()
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
        unclear=frozenset(reader.unclear),
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
            reader.unclear.add(f"{index}")
            continue
        if rail.name in rails:
            reader.add("fabric.rail.duplicate", rail.name, index=index)
            continue
        rails[rail.name] = rail
    for host, indices in reader.strangers.items():
        shown = ", ".join(map(str, indices))
        reader.add("fabric.rail.unknown_host", host, key=f"gb10_fabric_rails[{shown}].hosts")
    return tuple(rails.values())


def _rail(reader: Reader, index: int, item: Any, known_hosts: set[str]) -> Rail | None:
    key = f"gb10_fabric_rails[{index}]"
    if not isinstance(item, Mapping):
        reader.add("fabric.rail.invalid", item, key=key)
        return None
    missing = [k for k in ("name", "pf", "network") if item.get(k) in (None, "")]
    meant: list[str] = []
    for extra in sorted(str(k) for k in set(item) - RAIL_KEYS):
        alike = get_close_matches(extra, sorted(RAIL_KEYS - set(item)), 1)
        advice = f"Write {alike[0]}, if you meant that." if alike else f"Use one of {', '.join(sorted(RAIL_KEYS))}."
        reader.add("fabric.rail.unknown_key", item[extra], key=f"{key}.{extra}", advice=advice)
        meant += alike
    for k in missing:
        if k not in meant:
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
            reader.strangers.setdefault(host, []).append(index)
            reader.unclear.add(name)
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


def fabric_variables(
    hosts: Iterable[str], task_vars: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Return ``{host: {variable: value}}`` in the planner's form, and findings about values that could not be read."""
    findings: list[Finding] = []
    variables: dict[str, dict[str, Any]] = {}
    for host in hosts:
        if host in task_vars["hostvars"]:
            variables[host] = _variables(host, task_vars["hostvars"][host], findings)
        else:
            findings.append(_OF_HOSTS.finding("fabric.host.unknown", host))
    _assume_for_absent(variables, task_vars.get("ansible_play_hosts_all", []))
    return variables, findings


def _variables(host: str, hostvars: Mapping[str, Any], findings: list[Finding]) -> dict[str, Any]:
    """Return a host's fabric variables as plain data; a variable whose template fails becomes a finding."""
    facts = hostvars.get("ansible_facts") or {}
    values: dict[str, Any] = {}
    for key in VARIABLES:
        try:
            # A fact that the host reported overrides a declared value.
            value = facts.get(key) if key in FACT_VARIABLES else None
            values[key] = plain(hostvars.get(key) if value is None else value)
        except AnsibleError as error:
            findings.append(_OF_HOSTS.finding("fabric.value.template/unreadable", None, host, key=key, error=error))
    for key in K3S_VARIABLES:
        # Their values may need facts, and role k3s checks them.
        with suppress(AnsibleError):
            values[key] = plain(hostvars.get(key))
    return {key: value for key, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """Convert lazily templated containers and Ansible's strings to ordinary ones, which PyYAML can write."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _assume_for_absent(variables: dict[str, dict[str, Any]], present: list[str]) -> None:
    """For hosts that this run does not visit (--limit), assume the smallest number of VFs that a visited PF offers.

    Only the number of listed VFs depends on this assumption, not their addresses.
    """
    reported = [n for values in variables.values() for n in (values.get("gb10_pf_totalvfs") or {}).values() if n]
    for host, values in variables.items():
        if reported and host not in present:
            values.setdefault("gb10_assumed_vf_count", min(reported))
