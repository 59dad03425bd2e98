# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a commented inventory for machines that were read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPV4LENGTH, IPv4Address, ip_interface
from typing import Any

from .cabling import Port, ports_of, segments, suggest
from .model import ring_order, shared_rails

ITEMS = 20_000  # of a list; a node with 110 pods has about 1,000 mounts and 120 interfaces
LENGTH = 200  # characters of a text that is only shown
_MOUNT = re.compile(r"/|(/[A-Za-z0-9_+@=~-][A-Za-z0-9_.+@=~-]*)+")


class Refused(ValueError):
    """A value that cannot be what its key says; the text names the host, the key and the start of the value."""


@dataclass(frozen=True)
class Kind:
    """What one value may be; ``read`` returns it or raises TypeError or ValueError. None stands for a missing value."""

    what: str
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Each:
    """A list of values of one shape."""

    of: Shape


@dataclass(frozen=True)
class Named:
    """A mapping whose keys are values of a kind, too."""

    key: Kind
    of: Shape


Shape = Kind | Each | Named | Mapping[str, "Shape"]


def _match(pattern: str, value: Any) -> str:
    if not isinstance(value, str) or (value and not re.fullmatch(pattern, value)):
        raise ValueError
    return str(value)


def _number(value: Any) -> int:
    if isinstance(value, (bool, bytes)) or not -1 <= int(value) < 2**63:
        raise ValueError
    return int(value)


def _prefix(value: Any) -> int:
    if not 0 <= _number(value) <= IPV4LENGTH:
        raise ValueError
    return int(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _address(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(IPv4Address(value)) if value else ""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return "".join(letter if letter.isprintable() else "?" for letter in value[:LENGTH])


HOSTNAME = Kind("a host name", partial(_match, r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}"))
USER = Kind("a user name", partial(_match, r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"))
INTERFACE = Kind("the name of an interface", partial(_match, r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,31}"))
MAC = Kind("a hardware address", partial(_match, r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){0,19}"))
ADDRESS = Kind("an IPv4 address", _address)
PREFIX = Kind("the length of an IPv4 prefix", _prefix)
NUMBER = Kind("a number", _number)
BOOL = Kind("true or false", _bool)
TEXT = Kind("text", _text)

IPV4: Shape = {"address": ADDRESS, "prefix": PREFIX}
LINK: Shape = {"device": INTERFACE, "ipv4": IPV4}
FACTS: Mapping[str, Shape] = {
    "hostname": HOSTNAME,
    "user_id": USER,
    "env": {"SUDO_USER": USER},
    "default_ipv4": {"interface": INTERFACE, "address": ADDRESS, "prefix": PREFIX},
    "interfaces": Each(INTERFACE),
    "mounts": Each({"mount": TEXT, "size_available": NUMBER, "options": TEXT}),
    "gb10_pf_totalvfs": Named(INTERFACE, NUMBER),
    "gb10_cabling": Each(
        {
            "name": INTERFACE,
            "mac": MAC,
            "carrier": BOOL,
            "neighbours": Each(MAC),
            "speed_mbps": NUMBER,
            "pcie_width": NUMBER,
            "pcie_max_width": NUMBER,
            "mtu": NUMBER,
            "mtu_passes": NUMBER,
            "switch": TEXT,
            "switch_port": TEXT,
            "link_local": BOOL,
        }
    ),
    "gb10_preflight": {"gpus": Each({"name": TEXT})},
}
"""The facts that a new inventory uses, with what each of them may be. No other fact is read."""


def reported(host: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of FACTS, and ``links``: a LINK of each interface. Raise Refused for a value of another kind.

    A mount point with other characters than letters, digits and ``_.+@=~-`` is left out: it is no place for models.
    """
    known: dict[str, Any] = _read(f"{host}: ", FACTS, facts)
    names = known.get("interfaces") or []
    own = {name.replace("-", "_") for name in names} - set(FACTS)  # Ansible's setup writes the facts so
    known["links"] = [link for link in _read(f"{host}: ", dict.fromkeys(sorted(own), LINK), facts).values() if link]
    ports = [{key: one for key, one in port.items() if one is not None} for port in known.get("gb10_cabling") or []]
    if not all(port.get("name") for port in ports):
        raise Refused(f"{host}: gb10_cabling has a port without a name")
    known["gb10_cabling"] = [{"mac": "", "carrier": False, "neighbours": [], **port} for port in ports]
    known["mounts"] = [entry for entry in known.get("mounts") or [] if _MOUNT.fullmatch(entry.get("mount") or "")]
    return known


def _read(where: str, shape: Shape, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(shape, Kind):
        try:
            return shape.read(value)
        except (TypeError, ValueError, OverflowError):
            raise Refused(f"{where} is {ascii(value)[:60]}, and must be {shape.what}") from None
    if isinstance(shape, Each):
        if not isinstance(value, list) or len(value) > ITEMS:
            raise Refused(f"{where} is not a list of at most {ITEMS} items")
        return [_read(f"{where}[{number}]", shape.of, one) for number, one in enumerate(value) if one is not None]
    if not isinstance(value, Mapping) or len(value) > ITEMS:
        raise Refused(f"{where} is not a mapping of at most {ITEMS} keys")
    join = "" if where.endswith(" ") else "."
    if isinstance(shape, Named):
        keys = [_read(f"a key of {where}", shape.key, key) for key in value]
        return {key: _read(f"{where}{join}{key}", shape.of, value[key]) for key in keys}
    return {key: _read(f"{where}{join}{key}", part, value[key]) for key, part in shape.items() if key in value}


_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_GPU = re.compile(r"NVIDIA ([A-Za-z0-9]+)")
# A host of one of these names would get the tasks that are delegated to the controller, or stand for all hosts.
RESERVED = {"all", "localhost", "ungrouped"}
USUAL_VFS = 2
# As in inventory/1x-b300, which says why.
B300 = {"serving_plan_profile": "gemma-4-26b-a4b-it-b300", "serving_plan_preset": "current"}
SYSTEM_MOUNTS = ("/boot", "/etc", "/media", "/run", "/snap", "/tmp", "/usr", "/var/")


@dataclass(frozen=True)
class Machine:
    """One machine: the address that reaches it, its interface and network there, and the free bytes by mount point."""

    hostname: str
    address: str
    user: str
    interface: str
    network: str
    vfs: int
    free: Mapping[str, int]
    ports: Sequence[Mapping[str, Any]]
    gpu: str = ""

    @classmethod
    def of(cls, address: str, facts: Mapping[str, Any]) -> Machine:
        """Return the machine with these Ansible facts; ``address`` is an address or a name.

        Raise Refused if the host reports a value that cannot be what its key says.
        """
        known = reported(address, facts)
        main = known.get("default_ipv4") or {}
        found = next((one for one in known["links"] if (one.get("ipv4") or {}).get("address") == address), None)
        ipv4 = found["ipv4"] if found else main
        complete = ipv4.get("address") and ipv4.get("prefix") is not None
        environment = known.get("env") or {}
        return cls(
            hostname=str(known.get("hostname") or "").lower(),
            address=address,
            user=environment.get("SUDO_USER") or str(known.get("user_id") or ""),
            interface=str((found or {}).get("device") or main.get("interface") or ""),
            network=str(ip_interface(f"{ipv4['address']}/{ipv4['prefix']}").network) if complete else "",
            vfs=min(filter(None, (known.get("gb10_pf_totalvfs") or {}).values()), default=0),
            free={
                mount["mount"]: int(mount.get("size_available") or 0)
                for mount in known["mounts"]
                if "ro" not in (mount.get("options") or "").split(",")
            },
            ports=known["gb10_cabling"],
            gpu=next((gpu.get("name") or "" for gpu in (known.get("gb10_preflight") or {}).get("gpus") or []), ""),
        )

    @property
    def platform(self) -> str:
        """Return the GPU's model (gb10 for ``NVIDIA GB10``), in the spelling of profiles; gb10 if it is unknown."""
        match = _GPU.search(self.gpu)
        return match[1].lower() if match else "gb10"


def twins(machines: Sequence[Machine]) -> list[str]:
    """Return the pairs of addresses that belong to the same machine, by the MACs of its ports."""
    owners: dict[str, str] = {}
    firsts = [(machine.address, machine.ports[0]["mac"]) for machine in machines if machine.ports]
    pairs = [(owners.setdefault(mac, address), address) for address, mac in firsts if mac]
    return [f"{one} and {two}" for one, two in pairs if one != two]


@dataclass(frozen=True)
class Inventory:
    """The variables of a new inventory: those of the group, and those of each host in their order."""

    group: Mapping[str, Any]
    hosts: Mapping[str, Mapping[str, Any]]

    def variables(self) -> dict[str, dict[str, Any]]:
        """Return the variables of every host, as Ansible would."""
        return {host: {**self.group, **own} for host, own in self.hosts.items()}


def compose(machines: Sequence[Machine]) -> Inventory:
    """Return the inventory of machines; in a ring the order of the cables is that of the hosts."""
    names = [machine.hostname for machine in machines]
    if len(set(names)) < len(names) or not all(_NAME.fullmatch(name) and name not in RESERVED for name in names):
        names = [f"spark{number}" for number in range(1, len(machines) + 1)]
    by_name = dict(zip(names, machines, strict=True))
    ports = ports_of({name: machine.ports for name, machine in by_name.items()})
    order, pair = _order(ports, names)
    fitting = suggest(ports)
    usual = machines[0].interface
    hosts: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(order, start=1):
        machine = by_name[name]
        hosts[name] = {"ansible_host": machine.address, "gb10_node_id": number, **fitting["hosts"].get(name, {})}
        if machine.interface != usual:
            hosts[name]["gb10_management_interface"] = machine.interface
    vfs = min(machine.vfs for machine in machines)
    group = {
        "ansible_user": machines[0].user,
        "ansible_become": True,
        **fitting["group"],
        "gb10_fabric_vf_count": min(vfs, USUAL_VFS) or "auto",
        "gb10_management_interface": usual,
        "gb10_management_networks": sorted({machine.network for machine in machines} - {""}),
        "gb10_models_dir": models_dir(machines),
        "serving_plan_platform": machines[0].platform,
        **_serving(machines[0].platform, fitting["group"]["gb10_fabric_topology"], order, pair),
    }
    return Inventory(group, hosts)


def _order(ports: Sequence[Port], names: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the hosts in the order of their cables if these form a ring, and the first two hosts with a cable."""
    found = segments(ports)
    rails = {name: [str(i) for i, part in enumerate(found) if name in {p.host for p in part}] for name in names}
    order = (ring_order(rails, names) if len(names) <= 8 else None) or names
    pairs = ((one, two) for one in order for two in order if one != two and shared_rails(rails, one, two))
    return order, next(pairs, order[:1])


def _serving(platform: str, topology: str, order: Sequence[str], pair: Sequence[str]) -> dict[str, Any]:
    if platform == "b300":
        return {**B300, "serving_plan_nodes": list(order[:1])}
    profile = {"serving_plan_profile": "gemma-4-31b-it"}
    if topology == "switch" and len(order) >= 4:
        return {**profile, "serving_plan_preset": "current"}
    preset = "two-nodes" if len(pair) == 2 else "one-node"
    return {**profile, "serving_plan_preset": preset, "serving_plan_nodes": list(pair)}


def models_dir(machines: Sequence[Machine]) -> str:
    """Return a directory on the mount point that all machines have and that has the most free space everywhere."""
    common = set.intersection(*(set(machine.free) for machine in machines))
    usable = [mount for mount in common if not mount.startswith(SYSTEM_MOUNTS)] or ["/"]
    best = max(sorted(usable), key=lambda mount: min(machine.free.get(mount, 0) for machine in machines))
    return "/srv/models" if best == "/" else f"{best}/models"


COMMENTS = {
    "ansible_user": "User that logs in to the hosts. It needs sudo; `ansible-playbook -K` asks for its password.",
    "gb10_fabric_topology": "How the hosts are cabled, as found. docs/fabric.md explains rails.",
    "gb10_fabric_vf_count": "VFs per PF: as many groups can run at the same time.",
    "gb10_management_interface": "The fabric never changes this interface and does not overlap these networks.",
    "gb10_models_dir": "Directory on every node for the models, on the file system with the most free space.",
    "serving_plan_platform": "Hardware of the hosts. Profiles for other hardware are refused.",
    "serving_plan_profile": "Profile, preset, and nodes in rank order. docs/profiles.md lists what can be served.",
}


def render(inventory: Inventory, flow: Any) -> dict[str, str]:
    """Return the text of each file by its path; ``flow`` writes a value as YAML on one line."""
    lines = ["---"]
    for key, value in inventory.group.items():
        if key in COMMENTS:
            lines += ["", f"# {COMMENTS[key]}"] if len(lines) > 1 else [f"# {COMMENTS[key]}"]
        if key == "gb10_fabric_rails":
            lines += [f"{key}:" if value else f"{key}: []", *(f"  - {flow(rail)}" for rail in value)]
        else:
            lines.append(f"{key}: {flow(value)}")
    first = next(iter(inventory.hosts))
    hosts = [
        "---",
        "# The node id is the last number of every fabric address of the host. Never give it to another machine.",
        "gb10_cluster:",
        "  children:",
        "    gb10_servers:",
        "      hosts:",
        f"        {flow(first)}:",
        "    gb10_nodes:",
        "      hosts:",
        *(f"        {flow(name)}: {flow(own)}" for name, own in inventory.hosts.items()),
    ]
    return {"group_vars/gb10_cluster.yml": "\n".join([*lines, ""]), "hosts.yml": "\n".join([*hosts, ""])}
