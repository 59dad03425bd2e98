# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's GPU, RDMA devices and physical functions without changing anything."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from .._fabric.physical_functions import Pf, read_int, read_text
from .._fabric.rdma import parse_rate, parse_state
from .commands import Run
from .model import Address, Firewall, Gpu, Link, Listener, Netplan, NetplanFile, Orphan, Port, Rdma

_SPEED = re.compile(r"(?P<speed>[\d.]+) GT/s")
# Where K3s looks for the container toolkit's runtime at its start, besides its PATH (k3s pkg/agent/containerd).
RUNTIMES = ("usr/local/nvidia/toolkit/nvidia-container-runtime", "usr/bin/nvidia-container-runtime")
_GPU_FIELDS = {
    "name": "name",
    "utilization": "utilization.gpu",
    "clock_mhz": "clocks.sm",
    "max_clock_mhz": "clocks.max.sm",
    "power_limit_w": "enforced.power.limit",
    "default_power_limit_w": "power.default_limit",
    "slowdown": "clocks_event_reasons.active",
}


def read_gpu_driver(proc: Path) -> str | None:
    """Return the version of the loaded NVIDIA driver."""
    text = read_text(proc / "driver/nvidia/version") or ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return match[1] if match else None


def read_gpu_module(proc: Path) -> str | None:
    """Return which of NVIDIA's kernel modules is loaded, ``open`` or ``proprietary``."""
    text = read_text(proc / "driver/nvidia/version") or ""
    return None if "Kernel Module" not in text else "open" if "Open Kernel Module" in text else "proprietary"


def read_gpus(run: Run) -> list[Gpu] | None:
    """Return name, load, clocks, power limits and slow-down bits of each GPU; unknown values are None.

    None means that nvidia-smi is missing, failed or did not answer. An empty list means that it found no GPU.
    """
    query = ",".join(_GPU_FIELDS.values())
    answer = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.output.splitlines())]
    whole = [row for row in rows if len(row) == len(_GPU_FIELDS)]
    found = [cast(Gpu, {**dict(zip(_GPU_FIELDS, map(_number, row), strict=True)), "name": row[0]}) for row in whole]
    return found if answer.status == 0 else None


def _number(cell: str) -> float | None:
    try:
        return float(int(cell, 16)) if cell.startswith("0x") else float(cell)
    except ValueError:  # GB10 prints [N/A] for values that its power supply does not report
        return None


def read_rdma(sysfs: Path, dev: Path) -> Rdma:
    """Return RDMA devices, the number of device nodes that programs can open, and whether namespaces share devices."""
    mode = read_text(sysfs / "module/ib_core/parameters/netns_mode")
    return {
        "devices": sorted(path.name for path in (sysfs / "class/infiniband").glob("*")),
        "device_nodes": len(list((dev / "infiniband").glob("uverbs*"))),
        "shared_mode": {"Y": True, "N": False}.get(mode or ""),
    }


def read_ports(
    sysfs: Path, pfs: Iterable[Pf], addresses: Mapping[str, list[Address]], masters: Mapping[str, str]
) -> list[Port]:
    """Return driver, firmware, link, PCIe link, addresses and master of each physical function."""
    return [_port(sysfs, pf, addresses.get(pf.name, []), masters.get(pf.name)) for pf in pfs]


def _port(sysfs: Path, pf: Pf, addresses: list[Address], master: str | None) -> Port:
    netdev = sysfs / "class/net" / pf.name
    device = netdev / "device"
    driver = device / "driver"
    rdma = sysfs / "class/infiniband" / (pf.rdma_device or "-")
    found = {
        **vars(pf),
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
        "addresses": addresses,
        "master": master,
    }
    return cast(Port, found)


def _gts(text: str | None) -> float | None:
    match = _SPEED.match(text or "")
    return float(match["speed"]) if match else None


# Read a host's interfaces, routes, listeners, namespaces, netplan and firewall without changing anything.

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h)
_SOCKET = re.compile(r"socket:\[(?P<inode>\d+)\]")
_DEFAULT_ROUTE6 = "0" * 32
OUR_NETPLAN_FILE = "Written by gb10.cluster"  # start of the first line in the file of role netplan


def read_default_routes(proc: Path) -> list[str]:
    """Return the interfaces of the default routes: IPv4 before IPv6, the preferred IPv4 route first."""
    rows = [line.split() for line in (read_text(proc / "net/route") or "").splitlines()[1:]]
    ipv4 = sorted(
        (int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000" and row[6].isdigit()
    )
    rows = [line.split() for line in (read_text(proc / "net/ipv6_route") or "").splitlines()]
    # the kernel keeps an unreachable default route on lo, which does not count
    ipv6 = sorted(
        (int(row[5], 16), row[9])
        for row in rows
        if len(row) == 10 and row[0] == _DEFAULT_ROUTE6 and row[1] == "00" and row[9] != "lo"
    )
    return list(dict.fromkeys(name for _metric, name in [*ipv4, *ipv6]))


def read_routes(run: Run) -> dict[str, list[str]]:
    """Return ``{interface: IPv4 networks}`` of the routes in all tables, without default routes and the host's own.

    A VPN such as Tailscale has its routes in a table of its own. ``ip -j`` names the type of all but unicast routes.
    """
    found: dict[str, list[str]] = {}
    for route in _parsed(run(["ip", "-j", "route", "show", "table", "all"]).output):
        if "dev" in route and route.get("type", "unicast") == "unicast" and route.get("dst", "default") != "default":
            found.setdefault(route["dev"], []).append(route["dst"])
    return {name: list(dict.fromkeys(networks)) for name, networks in found.items()}


def read_nameservers(etc: Path, top: Path) -> list[str]:
    """Return the name servers of the host, which systemd-resolved keeps in a file of its own."""
    files = etc / "resolv.conf", top / "run/systemd/resolve/resolv.conf"
    lines = [line.split() for path in files for line in (read_text(path) or "").splitlines()]
    return list(dict.fromkeys(words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"))


def addresses_of(links_json: str) -> dict[str, list[Address]]:
    """Return ``{interface: [{address, dynamic}]}`` from ``ip -d -j address show``, without link-local IPv6 addresses.

    iproute2 marks an address with a limited lifetime, such as one from a DHCP server, as ``dynamic``.
    """
    return {
        link["ifname"]: [
            {"address": f"{info['local']}/{info['prefixlen']}", "dynamic": bool(info.get("dynamic"))}
            for info in link.get("addr_info", [])
            if "local" in info and info.get("scope") != "link"
        ]
        for link in _parsed(links_json)
        if "ifname" in link
    }


def masters_of(links_json: str) -> dict[str, str]:
    """Return ``{interface: master}`` from ``ip -d -j address show`` for the members of a bond, a bridge or a VRF."""
    return {link["ifname"]: link["master"] for link in _parsed(links_json) if "ifname" in link and "master" in link}


def read_netplan(etc: Path, interfaces: Iterable[str], run: Run) -> Netplan:
    """Return the error in the host's netplan files (None: no error), and which of ``interfaces`` each file names.

    ``netplan get`` reads and validates all files and writes none. Netplan 1.1 exits with 0 for an invalid file and
    prints ``Command failed: FILE:LINE:COLUMN: …`` to stderr. Files of this collection are omitted.
    """
    answer = run(["netplan", "get"])
    files: list[NetplanFile] = []
    for path in sorted((etc / "netplan").glob("*.yaml")):
        text = read_text(path) or ""
        words = set(re.findall(r"[\w.-]+", text))
        named = [name for name in interfaces if name in words]
        if named and OUR_NETPLAN_FILE not in text:
            files.append({"path": str(path), "interfaces": named})
    said = " ".join(answer.error.split())
    if "Command failed: " in said:
        return {"error": said.partition("Command failed: ")[2], "files": files}
    return {"error": (said or f"exit status {answer.status}") if answer.status else None, "files": files}


def read_firewall(run: Run) -> Firewall:
    """Return whether ufw is active, and what it allows, in its own notation (``4791/udp``, ``Anywhere``)."""
    lines = run(["ufw", "status"]).output.splitlines()
    rows = (re.split(r"\s{2,}", line.strip()) for line in lines)
    allowed = [row[0] for row in rows if len(row) > 2 and row[1].startswith("ALLOW")]
    return {"active": "Status: active" in lines, "allowed": allowed}


def read_listeners(proc: Path) -> list[Listener]:
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
            entries = list((process / "fd").iterdir())
        except OSError:  # the process ended in the meantime
            continue
        for entry in entries:
            try:
                match = _SOCKET.fullmatch(str(entry.readlink()))
            except OSError:  # K3s opens and closes files all the time
                continue
            if match and match["inode"] in inodes:
                owners[match["inode"]] = read_text(process / "comm") or process.name
    return owners


def read_orphans(proc: Path, netns: Path, run: Run) -> list[Orphan]:
    """Return the named network namespaces without a process, with the links that remain in them."""
    used = set()
    for namespace in proc.glob("[0-9]*/ns/net"):
        try:
            used.add(namespace.stat().st_ino)
        except OSError:  # the process ended in the meantime
            continue
    orphans: list[Orphan] = []
    for path in sorted(netns.glob("*")):
        try:
            inode = path.stat().st_ino
        except OSError:  # a pod ended in the meantime
            continue
        if inode not in used:
            links = _links(run(["ip", "-n", path.name, "-d", "-j", "link", "show"]).output)
            orphans.append({"namespace": path.name, "links": links})
    return orphans


def _links(text: str) -> list[Link]:
    return [
        {"name": link["ifname"], "alias": link.get("ifalias", ""), "mac": link.get("address", "")}
        for link in _parsed(text)
        if link.get("ifname") not in (None, "lo")
    ]


def _parsed(text: str) -> list[Mapping[str, Any]]:
    try:
        links = json.loads(text or "[]")
    except ValueError:
        return []
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []
