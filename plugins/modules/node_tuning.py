#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of a host that keep it reachable and steady while it serves a model: what they are, and how each is undone.

A Spark has one memory for CPU and GPU. The kernel's OOM killer and the limits of pods do not see what CUDA takes, so a
server that takes too much freezes the host until somebody presses its power button. earlyoom watches what is available
to all and stops the server first.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_tuning
short_description: Keep a host reachable and steady while it serves a model
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
description:
  - A Spark has one memory for CPU and GPU. The kernel's OOM killer does not see what CUDA takes, so a server that takes
    too much freezes the host. With O(memory_guard), earlyoom ends the server first, and the host stays reachable.
  - CUDA takes only free memory. With O(drop_caches), a unit gives it the memory of the page cache in time.
  - Can also end the desktop at boot, change C(vm.swappiness), or limit the clock of the GPUs.
  - Records what the host had before the first change. A part that is no longer asked for is put back to that.
attributes:
  diff_mode:
    support: full
    description: Shows the files before and after.
  platform:
    support: full
    platforms: linux
    description: >-
      Needs root and systemd. O(memory_guard) needs APT unless earlyoom is installed, O(gpu_clock_mhz) needs
      C(nvidia-smi).
options:
  headless:
    description: Whether the host starts without a desktop from the next boot on.
    type: bool
    default: false
  memory_guard:
    description:
      - Whether the packaged earlyoom watches the available memory. It ends processes of SGLang first, and those of
        sshd, systemd, K3s and containerd last. The pages of services and of logins are protected from reclaim.
    type: bool
    default: false
  memory_guard_percent:
    description:
      - Percentages of available memory below which earlyoom ends and kills a process. A server with
        C(mem_fraction_static) 0.9 leaves about 5 % of a Spark's memory available.
    type: list
    elements: int
    default: [3, 2]
  drop_caches:
    description:
      - Whether a unit drops the page cache and compacts memory while less than 10 % of the memory is free and caches
        hold at least as much. It looks every second and runs without capabilities.
    type: bool
    default: false
  swappiness:
    description: Value of C(vm.swappiness), 0 to 200. The host's own value if not set.
    type: int
  gpu_clock_mhz:
    description: Highest clock of the GPUs in MHz, also after a reboot. No limit if not set.
    type: int
"""

EXAMPLES = r"""
- name: End the server before the host freezes
  gb10.cluster.node_tuning:
    memory_guard: true

- name: Restore what the host had before the first change
  gb10.cluster.node_tuning:
"""

RETURN = r"""
changes:
  description: One sentence for every change that was made, or would be made outside of check mode.
  type: list
  elements: str
  returned: always
  sample: ["earlyoom ends the server below 3 % of available memory"]
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory_guard, system

Command = tuple[str, ...]

CONSOLE = "multi-user.target"
EARLYOOM = "earlyoom"
GUARD = system.UNIT_DIRECTORY / "earlyoom.service.d" / "gb10.conf"
SERVICES = system.UNIT_DIRECTORY / "system.slice.d" / "gb10.conf"
SESSIONS = system.UNIT_DIRECTORY / "user.slice.d" / "gb10.conf"
CACHES = system.UNIT_DIRECTORY / "gb10-memory.service"
LIBRARY = system.HOST_LIBRARY
SWAPPINESS = Path("/etc/sysctl.d/90-gb10.conf")
CLOCKS = system.UNIT_DIRECTORY / "gb10-gpu-clocks.service"

# Both are matched against the name of the process, at most 15 characters. SGLang gives this name to the processes that
# hold the memory. The first process of a server is called python3, as are Ansible's modules and other programs of the
# host; start_rank.py makes it and its children the first anyway (oom_score_adj).
_FIRST = "^sglang::"
_LAST = (
    "^(systemd.*|sshd.*|dbus-.*|NetworkManager|k3s.*|rke2|k0s|kubelite|containerd.*|crio|kubelet|dockerd|multus.*"
    "|bash|sudo|earlyoom)$"
)

# earlyoom acts only when memory AND free swap are below their limits. A limit of 100 % for swap switches the second
# condition off: DGX OS has 16 GB of swap, and a Spark freezes long before that is full. A host with more has it for a
# model whose load needs it (swap_gib of the profile), and earlyoom would end each such load.
_GUARD = """\
[Service]
ExecStart=
ExecStart=/usr/bin/earlyoom -r 3600 -m {term},{kill} -s {swap} -p --prefer '{first}' --avoid '{last}'
"""
# The OOM killer already spares sshd, kubelet and containerd, but without their pages they wait for the disk. All units
# of a slice share its protection (systemd mounts cgroups with memory_recursiveprot).
_PROTECTED = """\
[Slice]
MemoryMin={size}
"""
_CACHES = """\
[Unit]
Description=Drop the page cache before it starves CUDA

[Service]
Environment=PYTHONPATH={library} PYTHONDONTWRITEBYTECODE=1
ExecStart=/usr/bin/python3 -m {package}.{program} --free {free}
Restart=always
RestartSec=5
OOMScoreAdjust=-1000
CapabilityBoundingSet=
NoNewPrivileges=yes
PrivateNetwork=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_UNIX

[Install]
WantedBy=multi-user.target
"""
# Written so that Ansible sends the program with the module.
_PROGRAM = ".".join(memory_guard.__name__.split(".")[-2:])
_CLOCKS = """\
[Unit]
Description=Highest clock of the GPUs
# Without this daemon the driver forgets the limit when nvidia-smi ends.
After=nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/env nvidia-smi --lock-gpu-clocks=0,{mhz}
ExecStop=/usr/bin/env nvidia-smi --reset-gpu-clocks

[Install]
WantedBy=multi-user.target
"""
_RELOAD: Command = ("systemctl", "daemon-reload")


@dataclass(frozen=True)
class Package:
    """A package and its service as they were before the first change."""

    installed: bool
    enabled: bool


@dataclass(frozen=True)
class Host:
    """What a host has now: its default target, its value of vm.swappiness, and earlyoom."""

    target: str
    swappiness: str
    guard: Package


@dataclass(frozen=True)
class Wanted:
    """What a host should have; None leaves a part as it was before the first change.

    ``guard`` are the percentages of available memory at which earlyoom ends and kills a process, ``swap`` those of
    free swap. ``caches`` is the percentage of free memory below which caches are dropped, ``clock_mhz`` is the highest
    clock of the GPUs.
    """

    headless: bool = False
    guard: tuple[int, int] | None = None
    swap: str = "100,100"
    caches: int | None = None
    swappiness: int | None = None
    clock_mhz: int | None = None

    def files(self) -> dict[Path, str]:
        """Return the content of every file of this collection; an empty string if the file must not exist."""
        guard, clock, unit = self.guard, self.clock_mhz, ""
        if self.caches:
            unit = _CACHES.format(library=LIBRARY, package=system.HOST_PACKAGE, program=_PROGRAM, free=self.caches)
        return {
            GUARD: _GUARD.format(term=guard[0], kill=guard[1], swap=self.swap, first=_FIRST, last=_LAST)
            if guard
            else "",
            SWAPPINESS: "" if self.swappiness is None else f"vm.swappiness = {self.swappiness}\n",
            CLOCKS: _CLOCKS.format(mhz=clock) if clock else "",
            SERVICES: _PROTECTED.format(size="1536M") if guard else "",
            SESSIONS: _PROTECTED.format(size="256M") if guard else "",
            CACHES: unit,
            **{path: source if unit else "" for path, source in system.package_files(_PROGRAM, LIBRARY).items()},
        }


@dataclass(frozen=True)
class Step:
    """One change, and a sentence about it for the user. The fields are carried out in their order."""

    what: str
    write: tuple[Path, ...] = ()
    install: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    purge: tuple[str, ...] = ()
    delete: tuple[Path, ...] = ()
    after: tuple[Command, ...] = ()


def steps(wanted: Wanted, host: Host, origin: Host, stale: frozenset[Path], present: frozenset[Path]) -> Iterator[Step]:
    """Yield the changes from ``host`` to ``wanted``.

    ``origin`` is the host before the first change. ``stale`` are the wanted files with other content, or whose unit is
    stopped; ``present`` are those of this collection that exist.
    """
    target = CONSOLE if wanted.headless else origin.target
    if target != host.target:
        yield Step(f"default target {target} from the next boot", commands=(("systemctl", "set-default", target),))
    yield from _swappiness(wanted.swappiness, host.swappiness, origin.swappiness, stale, present)
    yield from _caches(wanted.caches, stale, present)
    yield from _guard(wanted.guard, host.guard, origin.guard, stale, present)
    # Last, because a GPU may refuse it, and the host has to be guarded in any case.
    yield from _clocks(wanted.clock_mhz, stale, present)


def _caches(wanted: int | None, stale: frozenset[Path], present: frozenset[Path]) -> Iterator[Step]:
    code = tuple(system.package_files(_PROGRAM, LIBRARY))
    if wanted is None and CACHES in present:
        off = (("systemctl", "disable", "--quiet", "--now", CACHES.name),)
        yield Step("page cache no longer dropped", commands=off, delete=(CACHES, *code), after=(_RELOAD,))
    elif wanted is not None and stale & {CACHES, *code}:
        on = (_RELOAD, ("systemctl", "enable", "--quiet", CACHES.name), ("systemctl", "restart", CACHES.name))
        yield Step(f"page cache dropped below {wanted} % of free memory", write=(*code, CACHES), commands=on)


def _swappiness(
    wanted: int | None, now: str, origin: str, stale: frozenset[Path], present: frozenset[Path]
) -> Iterator[Step]:
    # The value of a host without this collection's file is never changed back, because somebody else may have set it.
    if wanted is None and SWAPPINESS not in present:
        return
    value = origin if wanted is None else str(wanted)
    commands = (("sysctl", "-q", "-w", f"vm.swappiness={value}"),) if value != now else ()
    if wanted is None:
        yield Step(f"vm.swappiness {value} again", commands=commands, delete=(SWAPPINESS,))
    elif commands or SWAPPINESS in stale:
        yield Step(f"vm.swappiness {value}", write=(SWAPPINESS,), commands=commands)


def _clocks(wanted: int | None, stale: frozenset[Path], present: frozenset[Path]) -> Iterator[Step]:
    if wanted is None and CLOCKS in present:
        off = (("systemctl", "disable", "--quiet", "--now", CLOCKS.name),)
        yield Step("clock of the GPUs no longer limited", commands=off, delete=(CLOCKS,), after=(_RELOAD,))
    elif CLOCKS in stale:
        on = (_RELOAD, ("systemctl", "enable", "--quiet", CLOCKS.name), ("systemctl", "restart", CLOCKS.name))
        yield Step(f"clock of the GPUs at most {wanted} MHz", write=(CLOCKS,), commands=on)


def _guard(
    wanted: tuple[int, int] | None, now: Package, origin: Package, stale: frozenset[Path], present: frozenset[Path]
) -> Iterator[Step]:
    if wanted is None:
        if GUARD not in present:
            return
        purge = () if origin.installed else (EARLYOOM,)
        former = ("restart",) if origin.enabled else ("disable", "--quiet", "--now")
        after = (("systemctl", *former, EARLYOOM),) if origin.installed else ()
        yield Step("earlyoom as before", purge=purge, delete=(GUARD, SERVICES, SESSIONS), after=(_RELOAD, *after))
    elif stale & {GUARD, SERVICES, SESSIONS} or not (now.installed and now.enabled):
        yield Step(
            f"earlyoom ends the server below {wanted[0]} % of available memory",
            # The file comes first, so that the package never starts with its own limit of 10 %: a healthy server on a
            # Spark leaves less than that.
            write=(GUARD, SERVICES, SESSIONS),
            install=() if now.installed else (EARLYOOM,),
            commands=(_RELOAD, ("systemctl", "enable", "--quiet", EARLYOOM), ("systemctl", "restart", EARLYOOM)),
        )


def observe() -> Host:
    """Read the host's state; raise HostError."""
    enabled = system.run(["systemctl", "is-enabled", EARLYOOM], check=False).stdout.strip()
    return Host(
        target=system.run(["systemctl", "get-default"]).stdout.strip(),
        swappiness=system.read_text(Path("/proc/sys/vm/swappiness")) or "",
        guard=Package(installed=enabled not in ("", "not-found"), enabled=enabled == "enabled"),
    )


def stopped(files: Mapping[Path, str]) -> frozenset[Path]:
    """Return the wanted files whose unit is disabled or does not run: somebody stopped it, or its start failed."""
    units = {CLOCKS: CLOCKS.name, CACHES: CACHES.name, GUARD: EARLYOOM}
    return frozenset(path for path, unit in units.items() if files[path] and not _runs(unit))


def _runs(unit: str) -> bool:
    questions = (["systemctl", question, unit] for question in ("is-enabled", "is-active"))
    return not any(system.run(question, check=False).returncode for question in questions)


def from_dict(data: Mapping[str, object]) -> Host:
    """Return what dataclasses.asdict made of a host; raise HostError if the record is damaged."""
    try:
        return plain.load(Host, data)
    except (KeyError, TypeError) as error:
        raise system.HostError(f"the record of this host's settings is damaged: {error!r}") from error


CONFIG = Path("/etc/gb10/tuning.json")
# An installation fetches a package of 25 kB, and may wait for another package manager first.
SLOW = 300
# A little more than /swap.img of DGX OS
OWN_SWAP_KIB = 17 * 2**20
# SGLang's usual share leaves 10 % of the memory, so a server that has loaded does not keep the caches empty.
FREE = 10


def spare_swap(meminfo: Path) -> str:
    """Return the percentages of free swap below which earlyoom acts."""
    found = re.search(r"^SwapTotal:\s+(\d+) kB$", system.read_text(meminfo) or "", re.M)
    return "10,5" if found and int(found[1]) > OWN_SWAP_KIB else "100,100"


def asked(params: dict[str, Any], swap: str = Wanted.swap) -> Wanted:
    """Return the settings that the options request; the check of the inventory refuses impossible ones."""
    term, kill = params["memory_guard_percent"]
    return Wanted(
        headless=params["headless"],
        guard=(term, kill) if params["memory_guard"] else None,
        swap=swap,
        caches=FREE if params["drop_caches"] else None,
        swappiness=params["swappiness"],
        clock_mhz=params["gpu_clock_mhz"],
    )


def apply(step: Step, files: dict[Path, str]) -> None:
    """Carry out one change; raise HostError."""
    for path in step.write:
        system.write_atomic(path, files[path])
    for package in step.install:
        install(package)
    for command in step.commands:
        system.run(command)
    for package in step.purge:
        apt("purge", package)
    for path in step.delete:
        path.unlink(missing_ok=True)
        # The package of the host's units is two directories deep.
        for parent in (path.parent, path.parent.parent):
            ours = parent.name.endswith((".service.d", ".slice.d")) or LIBRARY in parent.parents
            if ours and parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
    for command in step.after:
        system.run(command)


def apt(*words: str) -> None:
    """Run apt-get without questions; raise HostError."""
    system.run(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q", *words], timeout=SLOW)


def install(package: str) -> None:
    """Install a package; fetch the package lists first if APT does not know it. Raise HostError with the remedy."""
    try:
        apt("install", package)
    except system.HostError:
        try:
            apt("update")
            apt("install", package)
        except system.HostError as error:
            raise system.HostError(
                f"{error}. Install the package {package} yourself, or set node_tuning_memory_guard: false."
            ) from error


def converge(module: AnsibleModule, result: dict[str, Any]) -> None:
    """Bring the host to the desired state and fill in the result."""
    wanted, host = asked(module.params, spare_swap(Path("/proc/meminfo"))), observe()
    record = system.read_state(CONFIG)
    origin = from_dict(record) if record else host
    files = wanted.files()
    now = {path: system.read_text(path) for path in files}
    present = frozenset(path for path, text in now.items() if text is not None)
    stale = frozenset(path for path, text in files.items() if text and system.differs(path, text, 0o644))
    stale |= stopped(files)
    todo = list(steps(wanted, host, origin, stale, present))
    # An interrupted run may have left the record of a host whose settings are its own again.
    over = wanted == Wanted() and CONFIG.exists()
    result["changes"] = [step.what for step in todo] or (["record of the former settings deleted"] if over else [])
    result["changed"] = bool(todo or over)
    result["diff"] = {
        "before": json.dumps({str(path): text or "" for path, text in now.items()}, indent=2) + "\n",
        "after": json.dumps({str(path): text.strip() for path, text in files.items()}, indent=2) + "\n",
    }
    if todo and not module.check_mode:
        # Write the record first: it has the original state, also if a later step fails.
        if not record:
            system.write_atomic(CONFIG, json.dumps(asdict(origin)) + "\n", 0o600)
        for step in todo:
            apply(step, files)
    if not module.check_mode and wanted == Wanted() and CONFIG.exists():
        CONFIG.unlink()
        if not any(CONFIG.parent.iterdir()):
            CONFIG.parent.rmdir()
    result["msg"] = "; ".join(result["changes"]) or "nothing to change"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "headless": {"type": "bool", "default": False},
            "memory_guard": {"type": "bool", "default": False},
            "memory_guard_percent": {"type": "list", "elements": "int", "default": [3, 2]},
            "drop_caches": {"type": "bool", "default": False},
            "swappiness": {"type": "int"},
            "gpu_clock_mhz": {"type": "int"},
        },
        supports_check_mode=True,
    )
    system.run_module(module, converge, changes=[])


if __name__ == "__main__":
    main()
