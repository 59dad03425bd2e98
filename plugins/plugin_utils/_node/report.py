# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules of preflight to all hosts, compare them, and combine the findings in one report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    Severity,
    clip,
    sort_findings,
)
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts

from .._controller.data import Rules
from .._controller.screen import render_in_order
from .combinations import find_known, find_matching, load_combinations, values_of
from .gpu_rules import GPU_NODE_RULES
from .host import Fault, Find, Host, explain
from .node_rules import NODE_RULES, PORT_RULES, PRIVILEGES, SHAPE, compare_rates

# Compare what should be the same on all GPU nodes.
#
# Ranks on different kernels, drivers or firmware hang in ways that are hard to diagnose. What a host did not tell is
# not compared: another rule reports it.

# Arguments that name a host's own disk, its image or its console
_OWN = ("BOOT_IMAGE=", "console=", "crashkernel=", "cryptdevice=", "initrd=", "resume=", "resume_offset=", "root=")
_MOST = 60  # characters of a value that are shown


def _swap(host: Host) -> str | None:
    areas = host.known["swap"]
    return None if areas is None else f"{sum(area['kib'] for area in areas) / 2**20:.0f} GiB"


def _of_gpus(name: str, unit: str) -> Callable[[Host], str | None]:
    def read(host: Host) -> str | None:
        gpus: Sequence[Mapping[str, Any]] = host.known["gpus"] or ()
        found = sorted({f"{gpu[name]:g} {unit}" for gpu in gpus if gpu[name] is not None})
        return ", ".join(found) or None

    return read


# {rule: (what differs, how it is read)}
COMPARED: Mapping[str, tuple[str, Callable[[Host], str | None]]] = {
    "preflight.os.kernel_differs": ("kernel", lambda host: host.known["kernel"]),
    "preflight.os.dgx_differs": ("release of DGX OS", lambda host: host.known["dgx_os"]),
    "preflight.os.bios_differs": ("BIOS", lambda host: host.known["bios"]),
    "preflight.gpu.driver_differs": ("NVIDIA driver", lambda host: host.known["gpu_driver"]),
    "preflight.gpu.module_differs": ("kind of NVIDIA's kernel module", lambda host: host.known["gpu_module"]),
    "preflight.gpu.toolkit_differs": (
        "NVIDIA container toolkit",
        lambda host: host.known["packages"].get("nvidia-container-toolkit"),
    ),
    "preflight.gpu.clock_differs": ("largest clock of the GPU", _of_gpus("max_clock_mhz", "MHz")),
    "preflight.gpu.power_differs": ("power limit of the GPU", _of_gpus("power_limit_w", "W")),
    "preflight.memory.swap_differs": ("swap", _swap),
}
ARGUMENTS, FIRMWARE = "preflight.os.arguments_differ", "preflight.firmware.differs"
MEMORY = "preflight.memory.size_differs"


def compare_hosts(hosts: Sequence[Host]) -> Iterator[tuple[str, Fault]]:
    """Yield the rule and the fault of each value that differs between GPU nodes which were read."""
    nodes = [host for host in hosts if host.facts is not None and host.pfs]
    for rule, (what, read) in COMPARED.items():
        yield from _differ(rule, what, [(read(host), host.name) for host in nodes])
    yield from _memory(nodes)
    yield from _differ(ARGUMENTS, "kernel arguments", _arguments(nodes))
    planned = [(host, pf) for host in nodes for pf in host.known["pfs"] if pf["name"] in host.pfs]
    ports = [(pf["firmware"], f"{host.name} {pf['name']}") for host, pf in planned]
    yield from _differ(FIRMWARE, "NIC firmware", ports)


def _arguments(nodes: Sequence[Host]) -> list[tuple[str, str]]:
    """Return the arguments of each host that not all hosts have."""
    lines = {host.name: host.known["command_line"] for host in nodes}
    given = {name: {word for word in line.split() if not word.startswith(_OWN)} for name, line in lines.items() if line}
    common = set.intersection(*given.values()) if given else set()
    return [(" ".join(sorted(words - common)) or "none of these", name) for name, words in given.items()]


def _memory(nodes: Sequence[Host]) -> Iterator[tuple[str, Fault]]:
    """Yield a fault if a host has less than nine tenths of the memory of another; a kernel may keep some GiB."""
    sizes = {host.name: host.known["memory_kib"] or 0 for host in nodes}
    known = {name: kib for name, kib in sizes.items() if kib > 0}
    if known and min(known.values()) < 0.9 * max(known.values()):
        shown = "; ".join(
            f"{kib / 2**20:.0f} GiB on {name}" for name, kib in sorted(known.items(), key=lambda one: one[1])
        )
        yield MEMORY, {"value": shown, "what": "memory"}


def _differ(rule: str, what: str, told: Sequence[tuple[str | None, str]]) -> Iterator[tuple[str, Fault]]:
    places: dict[str, list[str]] = defaultdict(list)
    for value, place in told:
        if value:
            places[value].append(place)
    if len(places) > 1:
        shown = "; ".join(f"{clip(value, _MOST)} on {', '.join(names)}" for value, names in sorted(places.items()))
        yield rule, {"value": shown, "what": what}


# Apply the rules of preflight to one host. Their sentences are data: rules.yml.
#
# An unknown fact never counts as good.

SEVERITIES = ("error", "warning", "info", "off")
RULES = Rules("_node", "preflight")


def severities_for(provider: str, severities: Mapping[str, str]) -> dict[str, str]:
    """Return the user's severities, and ``off`` for all rules that are only about other providers of Kubernetes."""
    others = {name: "off" for name, rule in RULES.all.items() if rule.provider not in ("", provider)}
    return {**others, **severities}


def make_finding(name: str, where: str, fault: Fault) -> Finding:
    return RULES.finding(name, fault["value"], where, **fault)


def _apply(rules: Mapping[str, Find], host: Host) -> list[Finding]:
    return [make_finding(name, host.name, fault) for name, find in rules.items() for fault in find(host)]


def check_node(host: Host) -> list[Finding]:
    """Return the findings of the rules for every node about a host that was read.

    If an unprivileged user read the host, the facts are incomplete. The only finding is then the missing privilege.
    """
    return [*_apply(SHAPE, host), *(_apply(PRIVILEGES, host) or _apply(NODE_RULES, host))]


def check_host(host: Host) -> list[Finding]:
    if host.facts is None:
        rule, fault = explain(host.unread)
        return [make_finding(rule, host.name, fault)]
    found = check_node(host)
    unprivileged = any(one.rule in PRIVILEGES for one in found)
    if unprivileged or not host.pfs:
        return found
    known = find_known("preflight", host.readable, host.name)
    return [*found, *_apply({**GPU_NODE_RULES, **PORT_RULES}, host), *known]


def weigh_findings(findings: Iterable[Finding], severities: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings with the severities that the user set for their rules, and omit those that are ``off``."""
    for one in findings:
        severity = severities.get(one.rule, one.severity)
        if severity in ("error", "warning", "info"):
            yield replace(one, severity=cast(Severity, severity))
        elif severity != "off":
            yield one


# Write what was read of all hosts without anything that identifies them, in the form of ``meta/combinations.yml``.
#
# Hosts send what they want. So a value leaves the machine only if its fact is in these lists, and only the part of it
# that has the form of this fact. Names, addresses, serial numbers and the values of findings are never copied.

HEADER = """\
# One entry for all hosts that are alike, in the form of meta/combinations.yml of gb10.cluster, without names, addresses
# and serial numbers.
# To propose an entry, keep the conditions that matter, write what happens and what helps, and add a source.
"""
_END = r"(?![.\d])"  # so that no number is a part of a longer one, or of an address
_FLAVOURS = "64k|amd64|arm64|cloud|generic|hwe|lowlatency|nvidia|oem|rt"
# The form of each fact. What follows the form in a value is left out.
_TEXTS = {
    "kernel": rf"\d{{1,2}}\.\d{{1,3}}\.\d{{1,3}}(?:-\d{{1,4}})?{_END}(?:-(?:{_FLAVOURS})(?![\w.]))*",
    "arch": "(?:aarch64|x86_64)$",
    "os.id": "(?:debian|ubuntu)$",
    "os.version": rf"\d\d(?:\.\d\d)?{_END}",
    "dgx_os": rf"\d{{1,2}}\.\d{{1,2}}(?:\.\d{{1,2}})?{_END}",
    "bios": rf"\d{{1,2}}\.\d{{1,3}}{_END}",
    "gpu_driver": rf"[3-9]\d\d\.\d{{1,3}}(?:\.\d{{1,2}})?{_END}",
    "gpu_module": "(?:open|proprietary)$",
    "gpus.name": r"NVIDIA [A-Z]{1,3}\d{1,4}(?!\w)",
    "pfs.driver": "mlx5_core$",
    "pfs.firmware": rf"\d\d\.\d\d\.\d{{4}}{_END}",
}
_PACKAGES = (
    *("containerd", "containerd.io", "docker-ce", "docker.io", "libnccl2", "netplan.io", "nvidia-container-toolkit"),
    *("nvidia-spark-grub-kho", "rdma-core"),
)
_PACKAGE = rf"(?:\d:)?\d{{1,4}}(?:\.\d{{1,3}}){{0,2}}{_END}"
_MODULES = (
    *("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "nouveau", "nvidia", "nvidia_drm", "nvidia_modeset"),
    *("nvidia_peermem", "nvidia_uvm", "rdma_cm", "rdma_rxe", "siw"),
)
_ARGUMENT = re.compile(
    r"(?:cma|hugepages|hugepagesz|init_on_alloc|iommu|iommu\.passthrough|iommu\.strict|kho|mitigations|numa_balancing|pci"
    r"|pcie_aspm|pcie_port_pm|transparent_hugepage)=(?:[01]|auto|always|madvise|never|no|off|on|performance|pt|y|n|\d{1,4}[KMG])"
)
# Sizes in KiB, with the unit to which they are rounded down: the size of a disk or of a memory can tell hosts apart.
_SIZES = {"memory_kib": 2**20, "cma_kib": 2**10, "cma_free_kib": 2**10, "swap.kib": 2**20}
_NUMBERS = ("gpus.max_clock_mhz", "gpus.power_limit_w", "pfs.rate_gbps", "pfs.pcie_gts", "pfs.pcie_width", "pfs.mtu")
_LARGEST = 100_000


def describe_hosts(hosts: Sequence[Host], findings: Sequence[Finding]) -> str:
    """Return the report: one entry for all hosts that are alike."""
    between = sorted({one.rule for one in findings if not one.where})
    alike: dict[str, list[dict[str, Any]]] = {}
    for host in hosts:
        rules = sorted({one.rule for one in findings if one.where == host.name})
        entry = _entry(host, rules)
        alike.setdefault(repr(entry), []).append(entry)
    entries = []
    for number, same in enumerate(alike.values(), start=1):
        share = f"{len(same)} of {len(hosts)} hosts"
        others = f"; between the hosts: {', '.join(between)}" if between else ""
        found = f"on {share} preflight found: {same[0]['happens'] or 'nothing'}{others}"
        entries.append({"id": f"preflight.observed.kind{number}", **same[0], "happens": found})
    return HEADER + yaml.safe_dump(entries, sort_keys=False, width=120)


def _entry(host: Host, rules: Sequence[str]) -> dict[str, Any]:
    facts = {} if host.facts is None else host.readable
    known = [entry.id for entry in find_matching(facts) if entry.severity == "sound"]
    return {
        "severity": "note",
        "about": "observed combination",
        "shows": ["kernel"],
        "when": [*_conditions(facts)] or [{"fact": "kernel", "present": False}],
        "happens": ", ".join([*rules, *known]),
        "remedy": "Write what helped.",
        "evidence": "single",
        "sources": ["report of playbook doctor"],
    }


def _conditions(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, form in (*_TEXTS.items(), *((f"packages.{package}", _PACKAGE) for package in _PACKAGES)):
        yield from _formed(name, form, values_of(facts, name))
    for name, allowed in (("modules", set(_MODULES).__contains__), ("arguments", _ARGUMENT.fullmatch)):
        shown = sorted({value for value in values_of(facts, name) if isinstance(value, str) and allowed(value)})
        yield from ({"fact": name, "is": value} for value in shown)
    for name, unit in _SIZES.items():
        sizes = [value for value in values_of(facts, name) if isinstance(value, int) and 0 <= value < 2**40]
        yield from (
            {"fact": name, "at_least": size // unit * unit} if size else {"fact": name, "is": 0} for size in sizes[:4]
        )
    for name in _NUMBERS:
        numbers = sorted({round(value) for value in values_of(facts, name) if 0 <= value < _LARGEST})
        yield from [{"fact": name, "is": numbers[:8]}] if numbers else ()
    if "gpus" in facts and not facts["gpus"]:
        yield {"fact": "gpus", "present": False}


def _formed(name: str, form: str, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield a condition with the parts of a fact's values that have its form."""
    found = [
        (match[0], value) for value in values if isinstance(value, str) and (match := re.match(form, value, re.ASCII))
    ]
    if found:
        shown = sorted({part for part, _value in found})[:8]
        yield {"fact": name, "is" if all(part == value for part, value in found) else "starts": shown}


def check_hosts(hosts: Sequence[Host], severities: Mapping[str, str], others: Iterable[Finding] = ()) -> list[Finding]:
    """Return the findings about each host, about differences between hosts, and ``others`` (the plan's).

    The severities are those that the user set. Missing privileges on a host come first, because they make all other
    facts of that host unknown.
    """
    compared = (make_finding(rule, "", fault) for rule, fault in (*compare_hosts(hosts), *compare_rates(hosts)))
    between = [*compared, *_find_twins(hosts)]
    found = [*others, *between, *(one for host in hosts for one in check_host(host))]
    found = sort_findings([*_check_severities(severities), *weigh_findings(found, severities)])
    return sorted(found, key=lambda one: one.rule not in PRIVILEGES)


def _check_severities(severities: Mapping[str, str]) -> Iterator[Finding]:
    known = {
        *(name for name in RULES.all if name.startswith("preflight.")),
        *(entry.id for entry in load_combinations()),
    }
    for name, severity in severities.items():
        if name not in known:
            fault = {
                "value": name,
                "what": "rule",
                "known": "the rules that scripts/troubleshooting.py preflight prints",
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
