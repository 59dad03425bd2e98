# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check what a host reports before the controller writes it: a host must not choose what Ansible executes there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

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


def _matching(what: str, pattern: str) -> Kind:
    compiled = re.compile(pattern)

    def read(value: Any) -> str:
        if not isinstance(value, str) or (value and not compiled.fullmatch(value)):
            raise ValueError
        return str(value)

    return Kind(what, read)


def _number(value: Any) -> int:
    if isinstance(value, (bool, bytes)) or not -1 <= int(value) < 2**63:
        raise ValueError
    return int(value)


def _prefix(value: Any) -> int:
    if not 0 <= _number(value) <= IPv4Address(0).max_prefixlen:
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


HOSTNAME = _matching("a host name", r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
USER = _matching("a user name", r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
INTERFACE = _matching("the name of an interface", r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,31}")
MAC = _matching("a hardware address", r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){0,19}")
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
