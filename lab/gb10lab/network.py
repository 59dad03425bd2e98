# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create namespaces, switches and cables of a lab, outside the machine's own network namespace."""

from collections.abc import Sequence
from pathlib import Path

from .lab import CONTROLLER, Lab
from .machines import Host
from .shell import command

SWITCH_MTU = 9216
MANAGEMENT_BRIDGE = "mgmt"


def create(lab: Lab, switches: Sequence[str]) -> None:
    """Create the lab's namespace with its bridges and the controller's address."""
    command(["ip", "netns", "add", lab.name])
    command(
        ["nsenter", f"--net=/run/netns/{lab.name}", "sysctl", "-qw", "net.ipv4.ip_forward=0",
         "net.ipv6.conf.default.disable_ipv6=1"]
    )  # fmt: skip
    _batch(lab.name, _switches(switches))


def connect(lab: Lab, hosts: Sequence[Host], kind: str) -> None:
    """Create the hosts' namespaces with their interfaces, and connect these to the lab's bridges."""
    for host in hosts:
        # not with `ip -batch`: after `netns add` the rest of a batch runs in the new namespace
        command(["ip", "netns", "add", lab.netns(host)])
    _batch(lab.name, [line for host in hosts for line in _cables(lab, host)])
    for host in hosts:
        _batch(lab.netns(host), _interfaces(host, kind))


def _switches(names: Sequence[str]) -> list[str]:
    lines = ["link set lo up"]
    bridges = [(MANAGEMENT_BRIDGE, 1500), *((name, SWITCH_MTU) for name in names)]
    for name, mtu in bridges:
        lines += [
            f"link add {name} type bridge forward_delay 0 mcast_snooping 0",
            f"link set {name} mtu {mtu} up",
        ]
    return [*lines, f"address add {CONTROLLER}/24 dev {MANAGEMENT_BRIDGE}"]


def _cables(lab: Lab, host: Host) -> list[str]:
    mac = f"48:b0:2d:00:{host.number:02x}"
    ports: list[tuple[str, str, str | None, int, str]] = [
        (f"r{index}", port.pf, port.switch, SWITCH_MTU, f"{mac}:{index:02x}") for index, port in enumerate(host.ports)
    ]
    lines = []
    for port, interface, switch, mtu, address in [("m", host.management, MANAGEMENT_BRIDGE, 1500, f"{mac}:ff"), *ports]:
        name = f"{host.name}-{port}"
        lines.append(
            f"link add {name} mtu {mtu} type veth peer name {interface} address {address} mtu 1500"
            f" netns {lab.netns(host)}"
        )
        # the end of a port without a cable stays down, so the port has no carrier
        lines += [f"link set {name} master {switch} up"] if switch else []
    return lines


def _interfaces(host: Host, kind: str) -> list[str]:
    lines = ["link set lo up", f"link set {host.management} up"]
    if kind == "kind":
        # K3s needs a default route; the controller's namespace forwards nothing
        lines += [
            f"address add {host.address}/24 dev {host.management}",
            f"route add default via {CONTROLLER} dev {host.management}",
        ]
    return lines + [f"link set {port.pf} up" for port in host.ports]


def _batch(netns: str, lines: Sequence[str]) -> None:
    command(["ip", "-n", netns, "-batch", "-"], stdin="\n".join(lines) + "\n")


def namespaces(lab: Lab) -> list[Path]:
    """Return the files in /run/netns that belong to the lab."""
    directory = Path("/run/netns")
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.name == lab.name or p.name.startswith(f"{lab.name}-"))
