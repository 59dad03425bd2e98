# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the next steps of a host's update from what was observed. Pure functions.

The phases of an update, which a file on the host keeps: ``installing``, ``installed``, ``trial`` (the new kernel was
chosen for one boot), and at its end ``settled`` (the checks passed) or ``returned`` (the kernel from before is the
default). ``open`` stays true until the node was given back to the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

# Read what APT would install and what GRUB can boot, and choose what has to stay.
#
# Names and versions come from repositories. A line with another form than Debian's policy allows is refused.

_NAME = r"[a-z0-9][a-z0-9+.-]{1,99}(?::[a-z0-9-]{1,20})?"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9.+:~-]{0,99}"
# "Inst linux-firmware [20240318-1] (20240318-2 Ubuntu:24.04/noble-updates [arm64])" of apt-get --simulate (apt-get(8))
_INSTALLED = re.compile(rf"Inst ({_NAME})(?: \[({_VERSION})\])? \(({_VERSION})[ )].*")
_REMOVED = re.compile(rf"(?:Remv|Purg) ({_NAME}) \[({_VERSION})\].*")
LINES = 20_000  # a whole release has fewer packages

KERNEL = re.compile(r"[0-9]{1,3}\.[0-9]{1,4}[A-Za-z0-9.+~_-]{0,60}")
_IMAGE = re.compile(rf"linux-image-(?:unsigned-)?({KERNEL.pattern})")
# Metapackages: their next version may depend on a kernel of another line. linux-nvidia-hwe-24.04, linux-image-arm64 …
_META = re.compile(
    r"linux-(?:[a-z0-9-]+-)?hwe-[0-9]{2}\.[0-9]{2}(?:-edge)?"
    r"|linux-(?:(?:image|headers|tools)-)?(?:amd64|arm64|generic|lowlatency|nvidia)(?:-64k)?(?:-edge)?"
)
# The driver that runs is the one that was loaded at boot, and nvidia-smi of another release refuses to talk to it.
_DRIVER = re.compile(r"(?:linux-modules-nvidia|nvidia-(?:dkms|driver|firmware|kernel)|libnvidia-compute)-.*")
_LINE = re.compile(r"(\d+)\.(\d+)")
_FLAVOUR = re.compile(r"[\d.]+(?:-\d+)?(?:[+~][\w.]+)?-?(.*)")

# menuentry 'Ubuntu, with Linux 6.17.0-1014-nvidia' … $menuentry_id_option 'gnulinux-6.17.0-1014-nvidia-advanced-UUID' {
_ENTRY = re.compile(rf"'(gnulinux-(?:({KERNEL.pattern}?)-)?advanced-[A-Za-z0-9./:_-]{{1,80}})'\s*\{{")


@dataclass(frozen=True)
class Change:
    """A package with its versions; ``before`` is empty if it is new, ``after`` if it is removed."""

    name: str
    before: str
    after: str


def parse_simulation(text: str) -> list[Change]:
    """Return what ``apt-get -qq --simulate`` would change. Raise ValueError for a line that it does not print."""
    changes = []
    lines = text.splitlines()
    if len(lines) > LINES:
        raise ValueError(f"{len(lines)} lines")
    for line in lines:
        if line.startswith("Inst "):
            match = _INSTALLED.fullmatch(line)
            found = match and Change(match[1], match[2] or "", match[3])
        elif line.startswith(("Remv ", "Purg ")):
            match = _REMOVED.fullmatch(line)
            found = match and Change(match[1], match[2], "")
        else:
            continue
        if not found:
            raise ValueError(ascii(line)[:120])
        changes.append(found)
    return changes


def line_of(version: str) -> str:
    """Return the line of a kernel or of its package, such as 6.17; empty if the text is no version."""
    match = _LINE.match(version)
    return f"{match[1]}.{match[2]}" if match else ""


def to_hold(changes: Iterable[Change], lines: Container[str]) -> list[str]:
    """Return the installed metapackages whose next version would bring a kernel of none of these lines."""
    return sorted(
        each.name
        for each in changes
        if each.before and each.after and _META.fullmatch(each.name) and line_of(each.after) not in lines
    )


def held_status(status: str, names: Iterable[str]) -> str:
    """Return dpkg's status file as it is after ``apt-mark hold`` of packages."""
    wanted = {f"Package: {name}" for name in names}
    entries = [
        entry.replace("\nStatus: install ok ", "\nStatus: hold ok ", 1) if entry.partition("\n")[0] in wanted else entry
        for entry in status.split("\n\n")
    ]
    return "\n\n".join(entries)


def images(changes: Iterable[Change]) -> list[str]:
    """Return the kernels that the changes install."""
    matches = (_IMAGE.fullmatch(each.name) for each in changes if each.after)
    return [match[1] for match in matches if match]


def entries(grub: str) -> dict[str, str]:
    """Return ``{kernel: name of its entry}`` of the file grub.cfg, as grub-reboot takes it (``submenu>entry``)."""
    submenu, found = "", dict[str, str]()
    for match in _ENTRY.finditer(grub):
        if not match[2]:
            submenu = f"{match[1]}>"
        else:
            found.setdefault(match[2], submenu + match[1])
    return found


def next_kernel(kernels: Iterable[str], running: str, lines: Container[str]) -> str:
    """Return the newest kernel of the flavour that runs and of one of the lines; empty if none is newer."""
    alike = [each for each in kernels if _flavour(each) == _flavour(running) and line_of(each) in lines]
    newest = max(alike, key=_numbers, default="")
    return newest if newest and _numbers(newest) > _numbers(running) else ""


def _numbers(kernel: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", kernel)]


def _flavour(kernel: str) -> str:
    match = _FLAVOUR.fullmatch(kernel)
    return match[1] if match else ""


def needs_reboot(changes: Iterable[Change]) -> bool:
    """Tell whether the changes replace a part of the driver that is loaded."""
    return any(each.before and _DRIVER.fullmatch(each.name) for each in changes)


def versions(changes: Iterable[Change], side: str) -> Mapping[str, str]:
    """Return ``{package: version}`` ``before`` or ``after`` the changes, without those that have none."""
    return {each.name: version for each in changes if (version := getattr(each, side))}


Want = Literal["planned", "installing", "installed", "booted", "running", "settled", "returned", "closed"]
Phase = Literal["", "installing", "installed", "trial", "settled", "returned"]


@dataclass(frozen=True)
class State:
    """What an update has done on this host; ``boot_id`` is that of the boot in which it did the last step."""

    phase: Phase = ""
    open: bool = False
    begun: str = ""  # UTC
    kernel_before: str = ""
    kernel_after: str = ""
    boot_id: str = ""
    reboot: bool = False
    before: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """A host: what APT would change with the packages in ``hold`` held, the kernels that GRUB can boot, and the state.

    ``grub_writes`` is false where GRUB can read its variables and cannot change them.
    ``lines`` are those of the kernels that the update may bring.
    ``busy`` tells that the unit which installs the packages runs; ``unfinished`` that dpkg was interrupted.
    """

    kernel: str
    boot_id: str
    lines: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    hold: tuple[str, ...] = ()
    kernels: Mapping[str, str] = field(default_factory=dict)
    grub_writes: bool = True
    busy: bool = False
    unfinished: bool = False
    reboot_required: bool = False
    retry: bool = False
    back: bool = False
    now: str = ""
    boot_free_mib: int | None = None
    state: State = State()

    @property
    def next_kernel(self) -> str:
        """Return the kernel that this update would boot; empty if it would boot none."""
        newest = next_kernel({*self.kernels, *images(self.changes)}, self.kernel, self.lines)
        if self.back:
            return ""
        failed = newest == self.state.kernel_after and (self.state.phase == "returned" or self.fell_back)
        return "" if failed and not self.retry else newest

    @property
    def due(self) -> bool:
        """Tell whether there is anything to do on this host; to go ``back`` is all there is to do then."""
        if self.back:
            return self.state.kernel_after == self.kernel != self.state.kernel_before
        return bool(self.changes or self.next_kernel or self.unfinished or self.busy or self.state.open)

    @property
    def fell_back(self) -> bool:
        """Tell whether the host was to start with the new kernel, and has started with another one."""
        state = self.state
        started = state.phase == "trial" and state.boot_id != self.boot_id
        return started and state.kernel_after not in ("", self.kernel)

    @property
    def failure(self) -> str:
        """Return why the host does not run what this update wants it to run; empty if it does."""
        state = self.state
        if self.fell_back:
            return f"it runs kernel {self.kernel} instead of {state.kernel_after}"
        if state.phase == "returned" and state.kernel_after and self.kernel != state.kernel_before:
            return f"it runs kernel {self.kernel} instead of {state.kernel_before}"
        waits = state.phase == "trial" and state.boot_id == self.boot_id and (state.kernel_after or state.reboot)
        return "it was not rebooted" if waits and self.kernel != state.kernel_after else ""


@dataclass(frozen=True)
class Step:
    """One step: ``default``, ``once`` (boot a kernel so), ``hold``, ``install``, ``reboot`` or ``record`` a state."""

    action: Literal["default", "once", "hold", "install", "reboot", "record"]
    value: str = ""
    state: State = State()

    def __str__(self) -> str:
        return {
            "default": f"GRUB boots {self.value} by default",
            "once": f"GRUB boots {self.value} once",
            "hold": f"hold {self.value}",
            "install": "install the packages",
            "reboot": "reboot",
            "record": f"update is {self.state.phase}" if self.state.open else "update has ended",
        }[self.action]


def steps(want: Want, seen: Observed) -> list[Step]:
    """Return the steps that bring a host to what is wanted; an empty list if it is there."""
    return {
        "planned": lambda _seen: [],
        "installing": _install,
        "installed": _installed,
        "booted": _boot,
        "running": lambda _seen: [],
        "settled": _settle,
        "returned": _go_back,
        "closed": _close,
    }[want](seen)


def _install(seen: Observed) -> list[Step]:
    """Make the kernel that runs the default before a newer one is installed, so that no power cut boots that one."""
    lost = seen.fell_back and not seen.retry
    if seen.busy or lost or not (seen.changes or seen.next_kernel or seen.unfinished):
        return []
    old = seen.state if seen.state.phase in ("installing", "installed", "trial") else State()
    state = State(
        phase="installing",
        open=True,
        begun=old.begun or seen.now,
        kernel_before=old.kernel_before or seen.kernel,
        kernel_after=seen.next_kernel or old.kernel_after,
        boot_id=seen.boot_id,
        reboot=old.reboot or needs_reboot(seen.changes),
        before={**versions(seen.changes, "before"), **old.before},
        after={**old.after, **versions(seen.changes, "after")},
        held=tuple(sorted({*old.held, *seen.hold})),
    )
    keep = [Step("default", state.kernel_before)] if state.kernel_after else []
    holds = [Step("hold", name) for name in seen.hold]
    install = [Step("install")] if seen.changes or seen.unfinished else []
    return [Step("record", state=state), *keep, *holds, *install]


def _installed(seen: Observed) -> list[Step]:
    if seen.busy or seen.changes or seen.unfinished or seen.state.phase != "installing":
        return []
    return [Step("record", state=replace(seen.state, phase="installed"))]


def _boot(seen: Observed) -> list[Step]:
    """A host that was told to boot the new kernel and is still in the boot before did not reboot yet."""
    state = seen.state
    same_boot = state.boot_id == seen.boot_id
    if state.phase not in ("installed", "trial") or (state.phase == "trial" and not same_boot):
        return []
    trial = Step("record", state=replace(state, phase="trial", boot_id=seen.boot_id))
    if state.kernel_after and state.kernel_after != seen.kernel:
        return [trial, Step("once", state.kernel_after), Step("reboot")]
    if same_boot and (state.reboot or seen.reboot_required):
        return [trial, Step("reboot")]
    return [trial] if state.phase == "installed" else []


def _settle(seen: Observed) -> list[Step]:
    if seen.state.phase not in ("installed", "trial"):
        return []
    settled = Step("record", state=replace(seen.state, phase="settled"))
    return [Step("default", seen.kernel), settled] if seen.state.kernel_after == seen.kernel else [settled]


def _go_back(seen: Observed) -> list[Step]:
    state = seen.state
    if not state.phase:
        return []
    record = [] if state.phase == "returned" else [Step("record", state=replace(state, phase="returned", open=True))]
    if not state.kernel_after:
        return record
    running = seen.kernel == state.kernel_before
    return [*record, Step("default", state.kernel_before), *([] if running else [Step("reboot")])]


def _close(seen: Observed) -> list[Step]:
    return [Step("record", state=replace(seen.state, open=False))] if seen.state.open else []
