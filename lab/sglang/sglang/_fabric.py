# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the pod's interfaces with addresses, RDMA devices with GIDs, and device nodes that it may open."""

import errno
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFADDR = 0x8915
_LAB_SYSFS = Path("/run/gb10-lab/sys")


@dataclass(frozen=True)
class Interface:
    name: str
    address: str


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table; ``address`` is its IPv4 address, if any."""

    index: int
    value: str
    kind: str

    @property
    def address(self) -> str:
        mapped = ipaddress.IPv6Address(self.value).ipv4_mapped
        return str(mapped) if mapped else ""


@dataclass(frozen=True)
class Device:
    """An RDMA device with its active port; ``openable`` tells whether this pod may use its verbs node."""

    name: str
    active: bool
    openable: bool
    speed: int
    gids: tuple[Gid, ...]


def interfaces() -> list[Interface]:
    """Return the IPv4 interfaces of this network namespace in kernel order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            found.append(Interface(name, socket.inet_ntoa(answer[20:24])))
    return found


def sysfs_root() -> Path:
    """Return the lab's simulated sysfs if it exists, otherwise the kernel's sysfs."""
    return Path(os.environ.get("GB10_LAB_SYSFS", _LAB_SYSFS if _LAB_SYSFS.is_dir() else "/sys"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        # An empty slot of a GID table answers EINVAL, as on mlx5.
        return ""


def _gids(port: Path) -> tuple[Gid, ...]:
    entries = []
    for path in sorted((port / "gids").iterdir(), key=lambda p: int(p.name)) if (port / "gids").is_dir() else []:
        value = _text(path)
        if value and set(value) - set("0:"):
            kind = _text(port / "gid_attrs" / "types" / path.name)
            entries.append(Gid(int(path.name), value, kind))
    return tuple(entries)


def can_open(node: Path) -> bool:
    """Tell whether the device cgroup and the file's mode let this process open a verbs node.

    The lab's node has no driver, so ENXIO means that the cgroup and the mode allowed the access.
    """
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        return error.errno in {errno.ENXIO, errno.ENODEV}
    return True


def _uverbs(root: Path, name: str) -> str:
    """Return the verbs node of a device: ``uverbs0``."""
    for entry in sorted((root / "class" / "infiniband_verbs").glob("uverbs*")):
        if _text(entry / "ibdev") == name:
            return entry.name
    listed = sorted((root / "class" / "infiniband" / name / "device" / "infiniband_verbs").glob("uverbs*"))
    return listed[0].name if listed else ""


def devices(root: Path | None = None, dev: Path = Path("/dev/infiniband")) -> list[Device]:
    """Return all RDMA devices of the host; in shared mode a pod sees all of them and may open only its own."""
    root = root or sysfs_root()
    found: list[tuple[str, Device]] = []
    base = root / "class" / "infiniband"
    for path in sorted(base.iterdir()) if base.is_dir() else []:
        port = path / "ports" / "1"
        node = _uverbs(root, path.name)
        rate = _text(port / "rate").partition(" ")[0]
        found.append(
            (
                node,
                Device(
                    name=path.name,
                    active="ACTIVE" in _text(port / "state"),
                    openable=bool(node) and can_open(dev / node),
                    speed=int(float(rate) * 1000) if rate else 0,
                    gids=_gids(port),
                ),
            )
        )
    # libibverbs lists devices in the order of their verbs nodes.
    return [device for _, device in sorted(found, key=lambda pair: (len(pair[0]), pair[0], pair[1].name))]
