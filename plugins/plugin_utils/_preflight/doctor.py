# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write what was read of all hosts without anything that identifies them, in the form of ``meta/combinations.yml``.

Hosts send what they want. So a value leaves the machine only if its fact is in these lists, and only the part of it
that has the form of this fact. Names, addresses, serial numbers and the values of findings are never copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._combinations.known import find_matching, values_of
from .host import Host

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
