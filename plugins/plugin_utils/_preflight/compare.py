# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what should be the same on all GPU nodes.

Ranks on different kernels, drivers or firmware hang in ways that are hard to diagnose. What a host did not tell is not
compared: another rule reports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import clip

from .host import Fault, Host

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
    ports = [(pf["firmware"], f"{host.name} {pf['name']}") for host in nodes for pf in _planned(host)]
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


def _planned(host: Host) -> Iterator[Mapping[str, Any]]:
    return (pf for pf in host.known["pfs"] if pf["name"] in host.pfs)


def _differ(rule: str, what: str, told: Sequence[tuple[str | None, str]]) -> Iterator[tuple[str, Fault]]:
    places: dict[str, list[str]] = defaultdict(list)
    for value, place in told:
        if value:
            places[value].append(place)
    if len(places) > 1:
        shown = "; ".join(f"{clip(value, _MOST)} on {', '.join(names)}" for value, names in sorted(places.items()))
        yield rule, {"value": shown, "what": what}
