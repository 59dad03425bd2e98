# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host to which the rules of preflight are applied, and the faults that they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU, RdmaMode
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.model import Facts


@dataclass(frozen=True)
class Settings:
    """Requirements for hosts. Space in GiB, rates in Gb/s; ``rdma_mode`` is how pods get RDMA (gb10_rdma_mode).

    A negative ``min_free_gib`` means what the plan needs.
    """

    min_free_gib: float = -1
    min_rate_gbps: float = 200
    min_pcie_gbps: float = 100
    rdma_mode: RdmaMode = "privileged"


@dataclass(frozen=True)
class Needs:
    """What a group needs on each of its ``nodes``, in GiB.

    ``images`` has the size of each image, ``models`` that of the weights by the names of their directories in
    ``models_dir``. Without ``models_dir`` each pod downloads them.
    """

    nodes: tuple[str, ...] = ()
    profile: str = ""
    images: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    models_dir: str = ""
    swap_gib: float = 0


@dataclass(frozen=True)
class Host:
    """A host's facts (None: not read), and the role that it will have.

    ``pfs``, ``rails`` (``{PF: rail}``), ``networks`` (``{rail: network}``) and ``vfs`` (``{netdev: MAC}``) come from
    the fabric plan; a host without PFs is not a GPU node.
    ``version`` is the wanted K3s release, empty if it is unknown; ``k3s`` has other wanted settings by K3s's names.
    ``needs`` is what the group that is planned needs on its nodes; None if it is not known.
    ``unread`` is what action preflight_info returns about a host that it could not read; ``misread`` has the names of
    the facts that were absent or had another type (shapes.py).
    """

    name: str
    facts: Facts | None
    server: bool = False
    embedded_etcd: bool = False
    embedded_registry: bool = False
    version: str = ""
    upgrading: bool = False
    kubelet_args: tuple[str, ...] = ()
    api_host: str = ""
    k3s: Mapping[str, Any] = field(default_factory=dict)
    management_interface: str | None = None
    pfs: tuple[str, ...] = ()
    rails: Mapping[str, str] = field(default_factory=dict)
    vfs: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, str] = field(default_factory=dict)
    mtu: int = DEFAULT_MTU
    settings: Settings = field(default_factory=Settings)
    needs: Needs | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    misread: Sequence[str] = ()

    @property
    def known(self) -> Facts:
        """Return the facts of a host; the host must have been read."""
        if self.facts is None:
            raise ValueError(f"{self.name}: no facts were read")
        return self.facts

    @property
    def readable(self) -> Mapping[str, Any]:
        """Return the facts with which the known combinations are compared."""
        return {**self.known, "arguments": (self.known["command_line"] or "").split()}

    @property
    def swap_gib(self) -> float:
        """Return the swap that the host needs while its group loads the weights."""
        return self.needs.swap_gib if self.needs and self.name in self.needs.nodes else 0.0

    @property
    def role(self) -> str:
        """Return K3s's name for the role of the host."""
        return "server" if self.server else "agent"


# Facts of which an empty value is an answer: no swap, no container runtime yet
MAY_BE_EMPTY = ("swap", "runtime_memlock")
Fault = Mapping[str, Any]
"""``value`` of the finding, ``key`` or ``severity`` if other than the rule's, and the values for its sentences."""
Find = Callable[[Host], Iterable[Fault]]


def fault_if(condition: object, value: object, **names: object) -> Sequence[Fault]:
    return [{"value": value, **names}] if condition else []


def find_unknown(host: Host, needed: Mapping[str, str]) -> Sequence[Fault]:
    """Return one fault for all facts among ``{fact: what depends on it}`` that a host did not tell."""
    facts: Mapping[str, Any] = host.known
    unknown = {
        name: what
        for name, what in needed.items()
        if facts[name] is None or (name not in MAY_BE_EMPTY and facts[name] in ("", [], {}))
    }
    return fault_if(unknown, ", ".join(unknown), what=", ".join(unknown.values()))
