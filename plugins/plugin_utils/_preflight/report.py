# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Join the findings of all hosts into one report. Private to the collection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    Severity,
    format_findings,
    sort_findings,
)

from .rules import RULES, Settings, Subject, finding, judge_host

SEVERITIES = ("error", "warning", "info", "off")


def judge(subjects: Sequence[Subject], settings: Settings, others: Iterable[Finding] = ()) -> list[Finding]:
    """Return the findings of all hosts, between them, and ``others`` (the plan's), as the settings weigh them."""
    found = [*others, *_compare(subjects)]
    for subject in subjects:
        found += judge_host(subject, settings)
    return sort_findings([*_unknown_rules(settings), *_weigh(found, settings.severities)])


def _weigh(findings: Iterable[Finding], severities: Mapping[str, str]) -> Iterator[Finding]:
    for one in findings:
        severity = severities.get(one.rule, one.severity)
        if severity in ("error", "warning", "info"):
            yield replace(one, severity=cast(Severity, severity))
        elif severity != "off":
            yield one


def _unknown_rules(settings: Settings) -> Iterator[Finding]:
    rule = "preflight.settings.unknown_rule"
    for name, severity in settings.severities.items():
        if name not in RULES:
            reason, remedy = "no such rule of preflight", "Correct it; docs/fabric.md lists the rules."
            yield finding(rule, "preflight_severities", name, reason, remedy, "")
        elif severity not in SEVERITIES:
            remedy = f"Use one of {', '.join(SEVERITIES)}."
            yield finding(rule, f"preflight_severities.{name}", severity, "no such severity", remedy, "")


def _compare(subjects: Sequence[Subject]) -> Iterator[Finding]:
    """Find what should be the same on all hosts and isn't: ranks on unlike hosts hang in ways that are hard to read."""
    nodes = [subject for subject in subjects if subject.pfs and subject.facts is not None]
    kernels: dict[str, list[str]] = defaultdict(list)
    drivers: dict[str, list[str]] = defaultdict(list)
    firmware: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        facts = node.facts or {}
        kernels[str(facts["kernel"])].append(node.name)
        drivers[str(facts["gpu_driver"])].append(node.name)
        for pf in facts["pfs"]:
            if pf["name"] in node.pfs and pf["firmware"]:
                firmware[pf["firmware"]].append(f"{node.name} {pf['name']}")
    for rule, key, values in (
        ("preflight.os.kernel_differs", "kernel", kernels),
        ("preflight.gpu.driver_differs", "NVIDIA driver", drivers),
        ("preflight.firmware.differs", "NIC firmware", firmware),
    ):
        if len(values) > 1:
            shown = "; ".join(f"{value} on {', '.join(names)}" for value, names in sorted(values.items()))
            yield finding(rule, key, shown, "not the same everywhere", "Bring all hosts to one version.", "")


def format_report(subjects: Sequence[Subject], findings: Sequence[Finding]) -> str:
    """Return the report: a line a host with what its planned ports are, then all findings, worst first."""
    lines = []
    for subject in subjects:
        mine = [one for one in findings if one.where == subject.name]
        counts = [_counted(mine, word) for word in ("error", "warning") if any(one.severity == word for one in mine)]
        lines.append(f"{subject.name}: {_system(subject.facts)}; {', '.join(counts) or 'nothing to complain of'}")
        lines += [f"  {_port(pf)}" for pf in (subject.facts or {}).get("pfs", []) if pf["name"] in subject.pfs]
    lines.append(f"{len(subjects)} hosts: {_counted(findings, 'error')}, {_counted(findings, 'warning')}")
    if findings:
        lines.append(format_findings(_joined(findings)))
    return "\n".join(lines)


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield one finding for those that say the same of several hosts."""
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


def _system(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "not read"
    return f"{facts['os']['name'] or 'unknown system'}, kernel {facts['kernel']}"


def _port(pf: Mapping[str, Any]) -> str:
    link = f"{pf['rate_gbps'] or 0:g} Gb/s" if pf["carrier"] else "no link"
    pcie = f"PCIe {pf['pcie_gts']:g} GT/s x{pf['pcie_width']}" if pf["pcie_gts"] else "PCIe unknown"
    rest = f"{pf['total_vfs']} VFs, MTU {pf['mtu'] or 'unknown'}, firmware {pf['firmware'] or 'unknown'}"
    driver = " ".join(filter(None, (pf["driver"] or "no driver", pf["driver_version"])))
    return f"{pf['name']} ({pf['rdma_device'] or 'no RDMA device'}, {driver}): {link}, {pcie}, {rest}"
