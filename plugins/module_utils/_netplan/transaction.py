# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a host's netplan files so that it finds its own way back. Private to the collection.

Validate in a temporary root → write beside the target → arm the undo → rename → apply → check. A check that fails
undoes at once; a controller or link that dies leaves it to the host's own timer. Old or new state, never between.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._host import netns, system
from .interfaces import Interface
from .undo import PROC_SYS, LinkState, Manifest, State, abandon, activate, addresses, arm, restore_runtime, undo

NETPLAN_DIRECTORIES = ("lib/netplan", "etc/netplan", "run/netplan")


@dataclass(frozen=True)
class Management:
    """What must be the same after a change: default routes, links with their addresses, gateways that answered."""

    routes: tuple[tuple[str, str], ...]
    addresses: dict[str, tuple[str, ...]]
    answering: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """What to write (None removes a file), and the run-time state that netplan itself would not bring back."""

    what: str
    files: Mapping[Path, str | None]
    sysctls: Mapping[str, int]
    links: Iterable[str]
    restore_links: Mapping[str, LinkState]
    restore_sysctls: Mapping[str, str]
    timeout: int
    forget: bool = False


def default_routes() -> tuple[tuple[str, str], ...]:
    """Return (interface, gateway) of every default route; the gateway is empty for a point-to-point link."""
    found = [
        *system.run_json(["ip", "-j", "route", "show", "default"]),
        *system.run_json(["ip", "-j", "-6", "route", "show", "default"]),
    ]
    return tuple(sorted((str(route.get("dev", "")), str(route.get("gateway", ""))) for route in found))


def protected_interfaces(named: Iterable[str], links: Mapping[str, Any]) -> dict[str, str]:
    """Return the interfaces that a fabric must not touch, with the reason."""
    found = {dev: "it carries the default route of this host" for dev, _gateway in default_routes()}
    session = os.environ.get("SSH_CONNECTION", "").split()
    for name, link in links.items():
        if len(session) == 4 and any(entry.get("local") == session[2] for entry in link.get("addr_info", [])):
            found[name] = "this Ansible session comes in through it"
    return {**found, **dict.fromkeys(named, "the inventory names it as management interface")}


def management(named: Iterable[str], ping_timeout: int = 1) -> Management:
    """Observe the management link."""
    routes = default_routes()
    links = system.links()
    names = {dev for dev, _gateway in routes} | {name for name in named if name in links}
    gateways = [gateway for dev, gateway in routes if gateway and answers(gateway, dev, ping_timeout)]
    present = {
        name: addresses(links[name]) for name in sorted(names) if "LOWER_UP" in links.get(name, {}).get("flags", [])
    }
    return Management(routes, present, tuple(gateways))


def answers(address: str, device: str, timeout: int) -> bool:
    """Tell whether an address answers a ping."""
    argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.2", "-W", str(timeout), "-I", device, address]
    return system.run(argv, check=False, timeout=timeout + 10).returncode == 0


def management_deviations(before: Management, named: Iterable[str]) -> list[str]:
    """Return what the change did to the management link."""
    after = management(named)
    found = [f"management: default route {route} is gone" for route in before.routes if route not in after.routes]
    found += [f"management: {name} is down or gone" for name in before.addresses if name not in after.addresses]
    for name, old in before.addresses.items():
        lost = sorted(set(old) - set(after.addresses.get(name, ())))
        found += [f"management: {name} lost {address}" for address in lost]
    lost_gateways = [gateway for gateway in before.answering if gateway not in after.answering]
    return found + [f"management: gateway {gateway} answered before and doesn't any more" for gateway in lost_gateways]


def validate(files: Mapping[Path, str | None]) -> None:
    """Let the real ``netplan generate`` read all of the host's files with the new ones, in a root of its own.

    Raises HostError with netplan's own words.
    """
    with tempfile.TemporaryDirectory(prefix="gb10-netplan-") as temporary:
        root = Path(temporary)
        for directory in NETPLAN_DIRECTORIES:
            for source in sorted(Path("/", directory).glob("*.yaml")):
                (root / directory).mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, root / directory / source.name)
        for path, content in files.items():
            copy = root / path.relative_to("/")
            if content is None:
                copy.unlink(missing_ok=True)
            elif path.suffix == ".yaml":
                system.write_atomic(copy, content, 0o600)
        try:
            system.run(["netplan", "generate", "--root-dir", str(root)], timeout=120)
        except system.HostError as error:
            raise system.HostError(
                f"netplan refuses the configuration, the old state holds: {str(error).replace(str(root), '')}"
            ) from error


def held_vfs(desired: Iterable[Interface], links: Mapping[str, Any]) -> dict[str, str]:
    """Return the planned VFs that are in another network namespace, with who has them."""
    absent = [interface for interface in desired if interface.addresses and interface.name not in links]
    spaces = netns.holders() if absent else []
    found = {}
    for interface in absent:
        holder = netns.holder_of(interface.name, interface.mac, "", spaces)
        if holder:
            found[interface.name] = str(holder)
    return found


def outdated(files: Mapping[Path, str | None], modes: Mapping[Path, int]) -> list[Path]:
    """Return the files that the change would write or remove."""
    return [
        path
        for path, content in files.items()
        if (path.exists() if content is None else system.differs(path, content, modes.get(path, 0o600)))
    ]


def wrong_sysctls(wanted: Mapping[str, int]) -> list[str]:
    """Return the sysctls of present interfaces that have another value."""
    found = []
    for key, value in wanted.items():
        now = system.read_text(PROC_SYS / key)
        if now is not None and now != str(value):
            found.append(f"sysctl: {key} is {now}, planned {value}")
    return found


def execute(
    state: State, change: Change, named: Iterable[str], differences: Callable[[], list[str]], settle: float
) -> str:
    """Make the change and check it; return the id that confirm() needs. Raise HostError with the old state back."""
    before = management(named)
    manifest = record(change)
    staged = stage_all(state, change, manifest)
    try:
        arm(state, manifest)
    except (system.HostError, OSError) as error:
        abandon(state, manifest)
        raise system.HostError(f"The undo could not be prepared, so nothing was changed: {error}") from error
    try:
        with state.lock(timeout=60):
            trouble = switch(change, staged)
            if not trouble:
                system.wait_for(lambda: not differences(), settle)
                trouble = differences() + management_deviations(before, named)
    except (system.HostError, OSError) as error:
        trouble = [str(error)]
    if trouble:
        raise system.HostError("After the change:\n- " + "\n- ".join(trouble) + "\n" + undo(state, "a check failed"))
    return manifest.id


def record(change: Change) -> Manifest:
    """Write down what the host has now."""
    links = system.links()
    states = {
        name: LinkState(int(links[name]["mtu"]), "UP" in links[name].get("flags", []), addresses(links[name]))
        for name in change.links
        if name in links
    }
    keys = {*change.sysctls, *change.restore_sysctls}
    sysctls = {key: text for key in sorted(keys) if (text := system.read_text(PROC_SYS / key)) is not None}
    files = {str(path): path.read_text(encoding="utf-8") if path.exists() else None for path in change.files}
    identity = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}"
    return Manifest(identity, change.what, change.timeout, files, states, sysctls, change.forget)


def stage_all(state: State, change: Change, manifest: Manifest) -> dict[Path, Path]:
    """Write all new files beside their targets; on failure (a full disk) nothing is left behind."""
    staged: dict[Path, Path] = {}
    try:
        for path, content in change.files.items():
            if content is not None:
                staged[path] = system.stage(path, content, mode_of(path))
    except (system.HostError, OSError) as error:
        for path in staged.values():
            path.unlink(missing_ok=True)
        raise system.HostError(f"Nothing was changed, the old state holds: {error}") from error
    return staged


def mode_of(path: Path) -> int:
    """Return the mode of a file: netplan warns of anything that others may read."""
    return 0o600 if path.suffix == ".yaml" else 0o644


def switch(change: Change, staged: Mapping[Path, Path]) -> list[str]:
    """Rename the new files into place and make them effective."""
    for path, content in change.files.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            staged[path].replace(path)
        if path.parent.is_dir():
            system.sync_directory(path.parent)
    trouble = activate()
    for key, value in change.sysctls.items():
        if (PROC_SYS / key).exists():
            (PROC_SYS / key).write_text(str(value), encoding="ascii")
    return trouble + restore_runtime(change.restore_links, change.restore_sysctls)
