# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the findings of all hosts in one report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.model import Facts

from .._combinations.known import load_combinations
from .._screen.screen import render_in_order
from .compare import compare_hosts
from .host import Host
from .node_rules import PRIVILEGES
from .port_rules import compare_rates
from .rules import RULES, SEVERITIES, check_host, make_finding, weigh_findings


def check_hosts(hosts: Sequence[Host], severities: Mapping[str, str], others: Iterable[Finding] = ()) -> list[Finding]:
    """Return the findings about each host, about differences between hosts, and ``others`` (the plan's).

    The severities are those that the user set. Missing privileges on a host come first, because they make all other
    facts of that host unknown.
    """
    between = [*_between(hosts), *_find_twins(hosts)]
    found = [*others, *between, *(one for host in hosts for one in check_host(host))]
    found = sort_findings([*_check_severities(severities), *weigh_findings(found, severities)])
    return sorted(found, key=lambda one: one.rule not in PRIVILEGES)


def _check_severities(severities: Mapping[str, str]) -> Iterator[Finding]:
    known = {*RULES.all, *(entry.id for entry in load_combinations())}
    for name, severity in severities.items():
        if name not in known:
            fault = {
                "value": name,
                "what": "rule",
                "known": "the rules in docs/troubleshooting.md and docs/combinations.md",
            }
        elif severity not in SEVERITIES:
            words = ", ".join(SEVERITIES)
            fault = {"key": f"preflight_severities.{name}", "value": severity, "what": "severity", "known": words}
        else:
            continue
        yield make_finding("preflight.settings.unknown_rule", "", fault)


def _find_twins(hosts: Iterable[Host]) -> Iterator[Finding]:
    """Yield an error for hosts that are one machine: started at once, with the same addresses."""
    machines: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        if host.facts is not None and host.facts["boot_id"] is not None:
            machines[f"{host.facts['boot_id']} {sorted(host.facts['addresses'].items())}"].append(host.name)
    for names in machines.values():
        if len(names) > 1:
            yield make_finding("preflight.host.twins", ", ".join(names), {"value": None})


def _between(hosts: Sequence[Host]) -> Iterator[Finding]:
    return (make_finding(rule, "", fault) for rule, fault in (*compare_hosts(hosts), *compare_rates(hosts)))


def format_report(hosts: Sequence[Host], findings: Sequence[Finding], width: int) -> str:
    """Return the report: one line per host and per planned port, then all findings, worst first.

    The findings are wrapped at ``width`` columns.
    """
    lines = []
    for host in hosts:
        mine = [one for one in findings if one.where == host.name]
        counts = [_counted(mine, word) for word in ("error", "warning") if any(one.severity == word for one in mine)]
        lines.append(f"{host.name}: {_system(host.facts)}; {', '.join(counts) or 'no errors or warnings'}")
        lines += [f"  {_port(pf)}" for pf in (host.facts["pfs"] if host.facts else ()) if pf["name"] in host.pfs]
    lines.append(f"{len(hosts)} hosts: {_counted(findings, 'error')}, {_counted(findings, 'warning')}")
    if findings:
        lines.append(render_in_order(_joined(findings), width))
    return "\n".join(lines)


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield one finding for several that report the same fault on different hosts."""
    alike: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for one in findings:
        alike[one.severity, one.rule, one.key, one.reason, one.remedy].append(one)
    for group in alike.values():
        values = list(dict.fromkeys(str(one.value) for one in group))
        value = group[0].value if len(values) == 1 else ", ".join(values)
        yield replace(group[0], where=", ".join(dict.fromkeys(one.where for one in group if one.where)), value=value)


def _counted(findings: Iterable[Finding], severity: str) -> str:
    number = sum(one.severity == severity for one in findings)
    return f"{number} {severity}" if number == 1 else f"{number} {severity}s"


def _system(facts: Facts | None) -> str:
    if facts is None:
        return "not read"
    return f"{facts['os']['name'] or 'unknown system'}, kernel {facts['kernel']}"


def _port(pf: Mapping[str, Any]) -> str:
    link = f"{pf['rate_gbps'] or 0:g} Gb/s" if pf["carrier"] else "no link"
    pcie = f"PCIe {pf['pcie_gts']:g} GT/s x{pf['pcie_width']}" if pf["pcie_gts"] else "PCIe unknown"
    rest = f"{pf['total_vfs']} VFs, MTU {pf['mtu'] or 'unknown'}, firmware {pf['firmware'] or 'unknown'}"
    driver = " ".join(filter(None, (pf["driver"] or "no driver", pf["driver_version"])))
    return f"{pf['name']} ({pf['rdma_device'] or 'no RDMA device'}, {driver}): {link}, {pcie}, {rest}"
