# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create namespaces, switches and cables of a lab, outside the machine's own network namespace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .lab import CONTROLLER, RAILS, Host, Lab
from .shell import command

SWITCH_MTU = 9216
MANAGEMENT_BRIDGE = "mgmt"


def create(lab: Lab) -> None:
    """Make the lab's namespace with its bridges and the controller's address."""
    command(["ip", "netns", "add", lab.name])
    command(
        ["nsenter", f"--net=/run/netns/{lab.name}", "sysctl", "-qw", "net.ipv4.ip_forward=0",
         "net.ipv6.conf.default.disable_ipv6=1"]
    )  # fmt: skip
    _batch(lab.name, _switches())


def connect(lab: Lab, hosts: Sequence[Host], kind: str) -> None:
    """Make the hosts' namespaces with their interfaces, cabled to the lab's bridges."""
    for host in hosts:
        # not by `ip -batch`: after `netns add` the rest of a batch would run in the new namespace
        command(["ip", "netns", "add", lab.netns(host)])
    _batch(lab.name, [line for host in hosts for line in _cables(lab, host)])
    for host in hosts:
        _batch(lab.netns(host), _interfaces(host, kind))


def _switches() -> list[str]:
    lines = ["link set lo up"]
    bridges = [(MANAGEMENT_BRIDGE, 1500), *((f"rail{index}", SWITCH_MTU) for index in range(len(RAILS)))]
    for name, mtu in bridges:
        lines += [
            f"link add {name} type bridge forward_delay 0 mcast_snooping 0",
            f"link set {name} mtu {mtu} up",
        ]
    return [*lines, f"address add {CONTROLLER}/24 dev {MANAGEMENT_BRIDGE}"]


def _cables(lab: Lab, host: Host) -> list[str]:
    ports = [("m", "mgmt0", MANAGEMENT_BRIDGE, 1500, f"48:b0:2d:00:{host.number:02x}:ff")]
    if host.is_node:
        ports += [
            (f"r{index}", rail["pf"], f"rail{index}", SWITCH_MTU, f"48:b0:2d:00:{host.number:02x}:{index:02x}")
            for index, rail in enumerate(RAILS)
        ]
    lines = []
    for port, interface, bridge, mtu, mac in ports:
        name = f"{host.name}-{port}"
        lines += [
            f"link add {name} mtu {mtu} type veth peer name {interface} address {mac} mtu 1500 netns {lab.netns(host)}",
            f"link set {name} master {bridge} up",
        ]
    return lines


def _interfaces(host: Host, kind: str) -> list[str]:
    lines = ["link set lo up", "link set mgmt0 up"]
    if kind == "kind":
        # K3s wants a default route; the controller's namespace forwards nothing
        lines += [f"address add {host.address}/24 dev mgmt0", f"route add default via {CONTROLLER} dev mgmt0"]
    return lines + ([f"link set {rail['pf']} up" for rail in RAILS] if host.is_node else [])


def _batch(netns: str, lines: Sequence[str]) -> None:
    command(["ip", "-n", netns, "-batch", "-"], stdin="\n".join(lines) + "\n")


def namespaces(lab: Lab) -> list[Path]:
    """Files in /run/netns that belong to the lab."""
    directory = Path("/run/netns")
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.name == lab.name or p.name.startswith(f"{lab.name}-"))
