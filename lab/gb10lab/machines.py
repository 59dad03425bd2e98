# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the hosts of a lab: their names, addresses, NIC ports and cables."""

from collections.abc import Callable
from dataclasses import dataclass

from .shell import LabError

MAX_NODES = 64
MAX_RING = 8
# The user and the management interface of the example inventories.
USER = "nvidia"
# "spark": a machine as delivered, where NetworkManager renders netplan's files; "kind": systemd-networkd renders them
HOST_KINDS = ("spark", "kind")


@dataclass(frozen=True)
class Port:
    """One PF of a host. ``switch`` is the switch that its cable leads to, or None without a cable."""

    pf: str
    rdma: str
    pci: str
    switch: str | None = None

    @property
    def vf(self) -> str:
        """Beginning of the names of its VFs, as systemd names them: enp1s0f0np0 has enp1s0f0v0."""
        return self.pf.rpartition("np")[0] + "v"


@dataclass(frozen=True)
class Host:
    """One host of the lab; ``number`` is 0 for the control host and the node id of a node."""

    name: str
    number: int
    ports: tuple[Port, ...] = ()
    management: str = "enP7s7"

    @property
    def address(self) -> str:
        """Management address: 10.99.0.10 for control, 10.99.0.(10+N) for node N."""
        return f"10.99.0.{10 + self.number}"

    @property
    def is_node(self) -> bool:
        """True for a host with PFs and a GPU."""
        return bool(self.ports)


def _spark(number: int, cages: dict[int, str]) -> Host:
    """Return a DGX Spark with its four PFs. ``cages`` maps each cabled cage to what its cable leads to."""
    ports = []
    for cage in (0, 1):
        for half, (prefix, domain) in enumerate((("enp1s0", "0000"), ("enP2p1s0", "0002"))):
            rdma = f"roce{prefix.removeprefix('en')}f{cage}"
            switch = f"{cages[cage]}{half if cages[cage] == 'rail' else 'ab'[half]}" if cage in cages else None
            ports.append(Port(f"{prefix}f{cage}np{cage}", rdma, f"{domain}:01:00.{cage}", switch))
    return Host(f"spark{number}", number, tuple(ports))


def _switch(nodes: int) -> list[Host]:
    # as in the example with four nodes, the fourth node's cable is in the other cage
    return [_spark(number, {1 if number == 4 else 0: "rail"}) for number in range(1, nodes + 1)]


def _ring(nodes: int, first: int = 1) -> list[Host]:
    if not 3 <= nodes <= MAX_RING:
        raise LabError(f"--nodes {nodes}: a ring has 3 to {MAX_RING} nodes")
    # a cable connects cage 0 of each host to cage 1 of the next one, as in the example with three nodes
    numbers = range(first, first + nodes)
    cables = [f"ring{number}{number + 1 if number < numbers[-1] else first}" for number in numbers]
    return [_spark(number, {0: cables[place], 1: cables[place - 1]}) for place, number in enumerate(numbers)]


def _rings(nodes: int) -> list[Host]:
    return [*_ring(nodes // 2), *_ring(nodes - nodes // 2, nodes // 2 + 1)]


def _switches(nodes: int) -> list[Host]:
    return [_spark(number, {0: "left" if number <= nodes // 2 else "right"}) for number in range(1, nodes + 1)]


def _b300(_nodes: int) -> list[Host]:
    first = Port("ens1f0np0", "roces1f0", "0000:1a:00.0", "rail0")
    second = Port("ens2f0np0", "roces2f0", "0000:3c:00.0", "rail1")
    return [Host("b300-1", 11, (first, second), "eno1")]


# name -> nodes of a lab
LAYOUTS: dict[str, Callable[[int], list[Host]]] = {
    "switch": _switch,
    "ring": _ring,
    "rings": _rings,
    "switches": _switches,
    "b300": _b300,
}


def hosts_of(nodes: int, layout: str = "switch") -> list[Host]:
    """Return the control host and the nodes. Raise LabError outside 1…MAX_NODES."""
    if not 1 <= nodes <= MAX_NODES:
        raise LabError(f"--nodes {nodes}: a lab has 1 to {MAX_NODES} nodes")
    return [Host("control", 0), *LAYOUTS[layout](nodes)]


def switches_of(hosts: list[Host]) -> list[str]:
    """Return the names of all switches of the fabric."""
    return sorted({port.switch for host in hosts for port in host.ports if port.switch})
