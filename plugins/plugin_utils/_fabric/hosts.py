# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's own fabric variables: its number, and its PF on every rail. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import (
    NETDEV_MAX,
    is_interface_name,
    is_vf_name,
    is_vlan_name,
    pf_of_rdma,
    rdma_name,
)

from .model import Host, Port, Rail
from .reader import Reader, listed

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
    # A rail with an error has its own finding.
    declared = {str(item.get("name")) for item in listed(values.get("gb10_fabric_rails")) if isinstance(item, Mapping)}
    for rail_name in chosen:
        if declared and rail_name not in declared:
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
        return None
    device = str(rdma) if rdma else rdma_name(pf)
    if device is None or not RDMA_DEVICE.fullmatch(device):
        reader.add("fabric.rdma.unknown", pf, host, key=key)
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
