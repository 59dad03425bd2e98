# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what preflight judges from a host, changing nothing. Private to the collection.

Every path has a root that tests and the lab can move; every command goes through one function. What can't be read is
None, which the rules take as unknown and never as good.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._rdma.gids import parse_rate, parse_state
from .._sriov.physical_functions import Pf, read_int, read_pfs, read_text

Run = Callable[[list[str]], str]  # the output of a command; empty when it failed or doesn't exist

RUNTIME_UNITS = ("k3s.service", "k3s-agent.service", "containerd.service", "docker.service")
_UNIT_PROPERTIES = "ActiveState,UnitFileState,LimitMEMLOCK"
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)
_SPEED = re.compile(r"(?P<speed>[\d.]+) GT/s")
_SOCKET = re.compile(r"socket:\[(?P<inode>\d+)\]")


@dataclass(frozen=True)
class Roots:
    """Where the kernel's and the system's trees are."""

    sysfs: str = "/sys"
    proc: str = "/proc"
    etc: str = "/etc"
    dev: str = "/dev"
    netns: str = "/run/netns"
    cgroup: str = "/sys/fs/cgroup"


def read_host(roots: Roots, paths: Iterable[str], run: Run, controller_time: float | None = None) -> dict[str, Any]:
    """Return the facts of a host; ``paths`` are those whose free space counts. Sizes in KiB or GiB as named.

    ``controller_time`` (seconds since 1970, just before this was started) tells how far the host's clock is off.
    """
    clock_offset = None if controller_time is None else round(time.time() - controller_time, 1)
    links = run(["ip", "-d", "-j", "link", "show"])
    memory = _memory(Path(roots.proc))
    return {
        "os": _os_release(Path(roots.etc)),
        "arch": platform.machine(),
        "kernel": read_text(Path(roots.proc, "sys/kernel/osrelease")),
        "command_line": read_text(Path(roots.proc, "cmdline")),
        "memory_kib": memory.get("MemTotal"),
        "swap_kib": memory.get("SwapTotal"),
        "cma_kib": memory.get("CmaTotal"),
        "cgroup_version": _cgroup_version(Path(roots.cgroup)),
        "time_synchronized": _yes_no(run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])),
        "clock_offset_s": clock_offset,
        "disks": [_disk(path) for path in paths],
        "iommu": any(Path(roots.sysfs, "class/iommu").glob("*")),
        "runtime_memlock": _memlocks(run),
        "gpu_driver": _gpu_driver(Path(roots.proc)),
        "rdma": _rdma(roots),
        "pfs": [_pf(Path(roots.sysfs), pf) for pf in read_pfs(roots.sysfs, links)],
        "interfaces": _interfaces(Path(roots.proc)),
        "wifi": sorted(path.parent.name for path in Path(roots.sysfs, "class/net").glob("*/wireless")),
        "default_routes": _default_routes(Path(roots.proc)),
        "listeners": _listeners(Path(roots.proc)),
        "orphan_namespaces": _orphans(roots, run),
    }


def _os_release(etc: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in (read_text(etc / "os-release") or "").splitlines())
    values = {key: value.strip('"') for key, _equals, value in pairs if value}
    return {"id": values.get("ID", ""), "version": values.get("VERSION_ID", ""), "name": values.get("PRETTY_NAME", "")}


def _memory(proc: Path) -> dict[str, int]:
    lines = (line.split() for line in (read_text(proc / "meminfo") or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _cgroup_version(root: Path) -> int | None:
    if not root.is_dir():
        return None
    # only the root of the unified hierarchy has this file (cgroups(7))
    return 2 if (root / "cgroup.controllers").exists() else 1


def _yes_no(text: str) -> bool | None:
    return {"yes": True, "no": False}.get(text.strip())


def _disk(path: str) -> dict[str, Any]:
    """Return the free space where ``path`` is or will be."""
    existing = next(p for p in [Path(path), *Path(path).parents] if p.exists())
    return {"path": path, "free_gib": round(shutil.disk_usage(existing).free / 2**30, 1)}


def _memlocks(run: Run) -> dict[str, int | None]:
    """Return ``{unit: memlock limit in bytes, None for no limit}`` of container runtimes that run, or will at boot."""
    limits: dict[str, int | None] = {}
    for unit in RUNTIME_UNITS:
        lines = run(["systemctl", "show", f"--property={_UNIT_PROPERTIES}", unit]).splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        if values.get("ActiveState") == "active" or values.get("UnitFileState") == "enabled":
            limit = values.get("LimitMEMLOCK", "")
            limits[unit] = int(limit) if limit.isdigit() else None
    return limits


def _gpu_driver(proc: Path) -> str | None:
    text = read_text(proc / "driver/nvidia/version") or ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return match[1] if match else None


def _rdma(roots: Roots) -> dict[str, Any]:
    mode = read_text(Path(roots.sysfs, "module/ib_core/parameters/netns_mode"))
    return {
        "devices": sorted(path.name for path in Path(roots.sysfs, "class/infiniband").glob("*")),
        "device_nodes": len(list(Path(roots.dev, "infiniband").glob("uverbs*"))),
        "shared_mode": {"Y": True, "N": False}.get(mode or ""),
    }


def _pf(sysfs: Path, pf: Pf) -> dict[str, Any]:
    netdev = sysfs / "class/net" / pf.name
    device = netdev / "device"
    driver = device / "driver"
    rdma = sysfs / "class/infiniband" / (pf.rdma_device or "-")
    return {
        **asdict(pf),
        "driver": driver.readlink().name if driver.is_symlink() else None,
        "driver_version": read_text(sysfs / "module/mlx5_core/version"),
        "firmware": read_text(rdma / "fw_ver"),
        "mtu": read_int(netdev / "mtu"),
        "carrier": read_text(netdev / "carrier") == "1",
        "speed_mbps": read_int(netdev / "speed"),
        "port_state": parse_state(read_text(rdma / "ports/1/state")),
        "rate_gbps": parse_rate(read_text(rdma / "ports/1/rate")),
        "pcie_gts": _gts(read_text(device / "current_link_speed")),
        "pcie_width": read_int(device / "current_link_width"),
        "pcie_max_gts": _gts(read_text(device / "max_link_speed")),
        "pcie_max_width": read_int(device / "max_link_width"),
    }


def _gts(text: str | None) -> float | None:
    match = _SPEED.match(text or "")
    return float(match["speed"]) if match else None


def _interfaces(proc: Path) -> list[str]:
    lines = (read_text(proc / "net/dev") or "").splitlines()[2:]
    return sorted(line.partition(":")[0].strip() for line in lines)


def _default_routes(proc: Path) -> list[str]:
    """Return the interfaces of the IPv4 default routes, the preferred first."""
    rows = [line.split() for line in (read_text(proc / "net/route") or "").splitlines()[1:]]
    routes = sorted((int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000")
    return [name for _metric, name in routes]


def _listeners(proc: Path) -> list[dict[str, Any]]:
    """Return ``{port, process}`` of every listening TCP socket in this network namespace."""
    inodes: dict[str, int] = {}
    for table in ("net/tcp", "net/tcp6"):
        for line in (read_text(proc / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN:
                inodes[words[9]] = int(words[1].rsplit(":", 1)[1], 16)
    owners = _socket_owners(proc, set(inodes)) if inodes else {}
    found = {(port, owners.get(inode)) for inode, port in inodes.items()}
    return [{"port": port, "process": process} for port, process in sorted(found, key=lambda f: (f[0], str(f[1])))]


def _socket_owners(proc: Path, inodes: set[str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for process in proc.glob("[0-9]*"):
        try:
            targets = [str(entry.readlink()) for entry in (process / "fd").iterdir()]
        except OSError:  # it ended meanwhile
            continue
        for target in targets:
            match = _SOCKET.fullmatch(target)
            if match and match["inode"] in inodes:
                owners[match["inode"]] = read_text(process / "comm") or process.name
    return owners


def _orphans(roots: Roots, run: Run) -> list[dict[str, Any]]:
    """Return the named network namespaces in which no process lives, with the links that are stuck in them."""
    used = set()
    for namespace in Path(roots.proc).glob("[0-9]*/ns/net"):
        try:
            used.add(namespace.stat().st_ino)
        except OSError:  # it ended meanwhile
            continue
    orphans = []
    for path in sorted(Path(roots.netns).glob("*")):
        if path.stat().st_ino not in used:
            links = _links(run(["ip", "-n", path.name, "-d", "-j", "link", "show"]))
            orphans.append({"namespace": path.name, "links": links})
    return orphans


def _links(text: str) -> list[dict[str, str]]:
    try:
        links = json.loads(text or "[]")
    except ValueError:
        return []
    return [
        {"name": link["ifname"], "alias": link.get("ifalias", ""), "mac": link.get("address", "")}
        for link in links
        if link.get("ifname") not in (None, "lo")
    ]
