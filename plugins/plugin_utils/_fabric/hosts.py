# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's own fabric variables: its number, and its PF on every rail. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import (
    NETDEV_MAX,
    is_interface_name,
    is_vf_name,
    is_vlan_name,
    rdma_name,
)

from .model import Host, Port, Rail
from .reader import Reader, listed

VF_MAX = 127  # the largest NUM_OF_VFS that ConnectX firmware accepts for a PF
NODE_ID_LIMIT = 1 << 16  # two bytes of the MAC; the subnet sets the real limit
RDMA_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")  # IB_DEVICE_NAME_MAX is 64, with room for vN


def read_pf_name(reader: Reader, key: str, value: Any, where: str) -> str | None:
    name = str(value)
    if not is_interface_name(name):
        reason = f"not the name of a network interface ({NETDEV_MAX} characters at most)"
        remedy = "Take the PF's name from `ip link`, for example enp1s0f0np0."
        reader.add("pf.name", key, value, reason, remedy, where)
        return None
    if is_vlan_name(name):
        reason = "the name of a VLAN interface, which has no VFs"
        remedy = "Name the PF that carries the VLAN; give the fabric a VLAN by the access VLAN of its switch ports."
        reader.add("pf.is_vlan", key, name, reason, remedy, where)
        return None
    if is_vf_name(name):
        reader.add("pf.is_vf", key, name, "the name of a VF", "Name the PF that the VF belongs to.", where)
        return None
    return name


def read_host(reader: Reader, name: str, values: Mapping[str, Any], rails: tuple[Rail, ...]) -> Host | None:
    node_id = _node_id(reader, name, values.get("gb10_node_id"))
    chosen = values.get("gb10_fabric_pfs") or {}
    if not isinstance(chosen, Mapping):
        reader.add("pfs.invalid", "gb10_fabric_pfs", chosen, "not a mapping", "Write {rail name: PF name}.", name)
        chosen = {}
    # A rail with an error has its own finding.
    declared = {str(item.get("name")) for item in listed(values.get("gb10_fabric_rails")) if isinstance(item, Mapping)}
    for rail_name in chosen:
        if rail_name not in declared:
            reason = "no rail of this name is declared"
            remedy = f"Declared rails: {', '.join(rail.name for rail in rails) or 'none'}."
            reader.add("rail.unknown", f"gb10_fabric_pfs.{rail_name}", chosen[rail_name], reason, remedy, name)
    ports = tuple(p for rail in rails if (p := _port(reader, name, values, rail, chosen)) is not None)
    if node_id is None:
        return None
    return Host(
        name=name,
        node_id=node_id,
        ports=ports,
        management_interface=_text(values.get("gb10_management_interface")),
        management_address=_text(values.get("ansible_host")),
        management_port=str(values.get("ansible_port") or ""),
    )


def _node_id(reader: Reader, name: str, value: Any) -> int | None:
    if value is None:
        reader.add(
            "node_id.missing", "gb10_node_id", None, "not declared", "Give the host a number of its own, from 1.", name
        )
        return None
    number = reader.integer(value)
    if number is None:
        reader.add(
            "node_id.invalid", "gb10_node_id", value, "not a whole number", "Use a whole number such as 1.", name
        )
    elif not 0 < number < NODE_ID_LIMIT:
        reader.add("node_id.range", "gb10_node_id", number, "not a host's number", "Use 1 … 254.", name)
        number = None
    return number


def _port(reader: Reader, host: str, values: Mapping[str, Any], rail: Rail, chosen: Mapping[str, Any]) -> Port | None:
    if rail.hosts is not None and host not in rail.hosts:
        return None
    key = f"gb10_fabric_pfs.{rail.name}"
    wanted: Any = chosen.get(rail.name, rail.pf)
    if wanted is None:
        reason = "the host is declared without this rail, so it has part of the others' bandwidth"
        remedy = "Ignore this if it is intended; otherwise name its PF."
        reader.add("rail.absent", key, None, reason, remedy, host, "warning")
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
        reason = "the RDMA device's name doesn't follow from the PF's"
        remedy = f"Write {{name: {pf}, rdma_device: …}}; `rdma link` shows it."
        reader.add("rdma.unknown", key, pf, reason, remedy, host)
        return None
    reported = _facts(values, "gb10_pf_rdma").get(pf)
    if reported is not None and reported != device:
        reason = f"the host calls the RDMA device beside {pf} {reported}"
        remedy = f"Write {{name: {pf}, rdma_device: {reported}}} to keep this name."
        reader.add("rdma.differs", key, device, reason, remedy, host, "warning")
    total = reader.integer(_facts(values, "gb10_pf_totalvfs").get(pf))
    if _asked(values) and total is None:
        reported = ", ".join(sorted(values["gb10_pf_totalvfs"])) or "none"
        reason = f"the host does not have this PF (it has: {reported})"
        remedy = f"Set gb10_fabric_pfs of the host to {{{rail.name}: PF name}}."
        reader.add("pf.unknown", key, pf, reason, remedy, host)
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
            reason = f"the number of VFs that {pf} can have is unknown"
            remedy = "Run role fabric_plan on the host, or set a number."
            reader.add("vf_count.unknown", "gb10_fabric_vf_count", "auto", reason, remedy, host)
        return 0
    number = reader.integer(wanted)
    if number is None or not 0 < number <= VF_MAX:
        reason = f"neither auto nor 1 … {VF_MAX}"
        remedy = "Set auto for as many as the PF offers."
        reader.add("vf_count.invalid", "gb10_fabric_vf_count", wanted, reason, remedy, host)
        return 0
    return number
