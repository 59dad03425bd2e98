# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a rule of preflight, and the host to which it is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from .._common.findings import Finding, Severity
from .._common.terms import DEFAULT_MTU, RdmaMode
from .facts import Facts

SEVERITIES = ("error", "warning", "info", "off")


@dataclass(frozen=True)
class Settings:
    """Requirements for hosts. Space in GiB, rates in Gb/s; ``rdma_mode`` is how pods get RDMA (gb10_rdma_mode)."""

    min_free_gib: float = 100
    min_rate_gbps: float = 200
    min_pcie_gbps: float = 100
    rdma_mode: RdmaMode = "privileged"


@dataclass(frozen=True)
class Host:
    """A host's facts (None: not read), and the role that it will have.

    ``pfs`` and ``vfs`` (``{netdev: MAC}``) come from the fabric plan; a host without PFs is not a GPU node.
    ``version`` is the wanted K3s release, empty if it is unknown.
    """

    name: str
    facts: Facts | None
    server: bool = False
    embedded_etcd: bool = False
    version: str = ""
    upgrading: bool = False
    kubelet_args: tuple[str, ...] = ()
    api_host: str = ""
    management_interface: str | None = None
    pfs: tuple[str, ...] = ()
    vfs: Mapping[str, str] = field(default_factory=dict)
    mtu: int = DEFAULT_MTU
    settings: Settings = field(default_factory=Settings)

    @property
    def known(self) -> Facts:
        """Return the facts of a host; the host must have been read."""
        if self.facts is None:
            raise ValueError(f"{self.name}: no facts were read")
        return self.facts

    @property
    def role(self) -> str:
        """Return K3s's name for the role of the host."""
        return "server" if self.server else "agent"


Fault = Mapping[str, Any]
"""``value`` of the finding, ``key`` if it differs from the rule's, and the values for the braces in its sentences."""


@dataclass(frozen=True)
class Rule:
    """A rule: name, usual severity, the sentences of its finding, and a function that yields a fault per finding.

    The second part of the name is the layer, which tells what is broken: firmware, pcie, link, rdma …
    """

    name: str
    severity: Severity
    key: str
    reason: str
    remedy: str
    find: Callable[[Host], Iterable[Fault]] = lambda host: ()

    def finding(self, where: str, fault: Fault) -> Finding:
        """Return the finding for one fault; the fault may carry another ``severity``."""
        severity = fault.get("severity", self.severity)
        reason, remedy = self.reason.format(**fault), self.remedy.format(**fault)
        return Finding(
            severity, self.name, fault.get("key", self.key), fault["value"], reason, remedy, where, "preflight"
        )


def apply_rules(rules: Iterable[Rule], host: Host) -> list[Finding]:
    """Return the findings of all rules about a host that was read."""
    return [rule.finding(host.name, fault) for rule in rules for fault in rule.find(host)]


def weigh_findings(findings: Iterable[Finding], severities: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings with the severities that the user set for their rules, and omit those that are ``off``."""
    for one in findings:
        severity = severities.get(one.rule, one.severity)
        if severity in ("error", "warning", "info"):
            yield replace(one, severity=cast(Severity, severity))
        elif severity != "off":
            yield one


def fault_if(condition: object, value: object, **names: object) -> Sequence[Fault]:
    """Return one fault if the condition is true."""
    return [{"value": value, **names}] if condition else []
