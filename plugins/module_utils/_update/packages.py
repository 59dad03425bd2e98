# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what APT would install and what GRUB can boot, and choose what has to stay. Pure functions.

Names and versions come from repositories. A line with another form than Debian's policy allows is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

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
