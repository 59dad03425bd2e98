# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a host's netplan files so that the host can undo the change itself.

Steps: validate in a temporary root → write new files beside the targets → arm the undo → rename → activate → check.
A failed check undoes the change at once. If the controller or the link fails, the host's own timer undoes it. Each file
has either its old or its new content at any time.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._host import netns, system
from . import files, renderer
from .files import Attributes
from .interfaces import Interface
from .record import LinkState, Manifest, State
from .undo import PROC_SYS, SETTLE_S, abandon, arm, link_differences, link_state, restore_runtime, undo


@dataclass(frozen=True)
class Change:
    """The files to write (None removes one), and the run-time state that netplan itself would not restore.

    ``attributes`` are those of files that a restore brings back; other files have the usual ones.
    """

    what: str
    files: Mapping[Path, str | None]
    sysctls: Mapping[str, int]
    links: Collection[str]
    restore_links: Mapping[str, LinkState]
    restore_sysctls: Mapping[str, str]
    timeout: int
    networkd: bool
    forget: bool = False
    attributes: Mapping[Path, Attributes] = field(default_factory=dict)

    def wanted(self) -> Iterator[tuple[Path, str | None, Attributes | None]]:
        """Yield each path with its new content and attributes; both are None where the change removes it."""
        for path, content in self.files.items():
            usual = None if content is None else Attributes(files.default_mode(path))
            yield path, content, self.attributes.get(path, usual)


def validate(files: Mapping[Path, str | None]) -> None:
    """Run ``netplan generate`` on the host's present files, then with the new ones; raise HostError if it fails."""
    try:
        with renderer.generated({}):
            pass
    except system.HostError as error:
        raise _refusal(
            error,
            f"netplan already refuses the files that this host has now: {error}. A boot would leave the network "
            "unconfigured. Correct or remove the named file, check with `netplan generate`, and run this again.",
        ) from error
    if not files:
        return
    try:
        with renderer.generated(files):
            pass
    except system.HostError as error:
        raise _refusal(error, f"netplan refuses this host's files together with the fabric's: {error}") from error


def _refusal(error: system.HostError, why: str) -> system.HostError:
    if isinstance(error, system.NoAnswer):
        why = (
            f"{error}, so it is unknown whether netplan accepts the files. Find out with `uptime` and `dmesg` what "
            "slows the host, and run this again."
        )
    return system.HostError(f"Nothing was changed. {why}")


def held_vfs(desired: Iterable[Interface], links: Mapping[str, Any]) -> dict[str, str]:
    """Return the planned VFs that are in another network namespace, each with its holder."""
    absent = [interface for interface in desired if interface.is_vf and interface.name not in links]
    spaces = netns.holders() if absent else []
    found = {}
    for interface in absent:
        holder = netns.holder_of(interface.name, interface.mac, "", spaces)
        if holder:
            found[interface.name] = str(holder)
    return found


def outdated(change: Change) -> list[Path]:
    """Return the files that the change would write or remove."""
    return [path for path, content, attributes in change.wanted() if not files.holds(path, content, attributes)]


def wrong_sysctls(wanted: Mapping[str, int]) -> list[str]:
    """Return the sysctls whose value differs, of interfaces that exist."""
    found = []
    for key, value in wanted.items():
        now = system.read_text(PROC_SYS / key)
        if now is not None and now != str(value):
            found.append(f"sysctl: {key} is {now}, planned {value}")
    return found


def execute(state: State, change: Change, differences: Callable[[], list[str]], settle: float) -> str:
    """Make the change and check it; return the id for confirm(). On failure restore the old state, raise HostError.

    The caller holds the lock of the state and has seen, since then, that no change is pending.
    """
    answering = files.answering_gateways()
    manifest = record(change)
    staged = stage_all(change)
    try:
        arm(state, manifest)
    except (system.HostError, OSError) as error:
        abandon(state, manifest)
        raise system.HostError(
            f"The undo could not be prepared, so nothing was changed: {system.explain(error)}"
        ) from error
    try:
        trouble = switch(change, staged)
        if not trouble:

            def wrong() -> list[str]:
                return differences() + files.differences(manifest.others, files.observe(manifest.links))

            system.wait_for(lambda: not wrong(), settle)
            silent = sorted(set(answering) - set(files.answering_gateways()))
            trouble = wrong() + [f"gateway {gateway} answered before and does not answer now" for gateway in silent]
        if not trouble:
            state.mark_applied(manifest)
    except (system.HostError, OSError) as error:
        trouble = [system.explain(error)]
    if trouble:
        said = "After the change:\n- " + "\n- ".join(trouble) + "\n"
        try:
            said += undo(state, "a check failed")
        except (system.HostError, OSError) as error:
            raise system.HostError(said + system.explain(error)) from error
        raise system.HostError(said)
    return manifest.id


def record(change: Change) -> Manifest:
    """Return a manifest of the host's present state."""
    links = system.links()
    states = {name: link_state(links[name]) for name in change.links if name in links}
    keys = {*change.sysctls, *change.restore_sysctls}
    sysctls = {key: text for key in sorted(keys) if (text := system.read_text(PROC_SYS / key)) is not None}
    present = {str(path): files.read(path) for path in change.files}
    identity = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}"
    return Manifest(
        identity,
        change.what,
        change.timeout,
        {name: content for name, (content, _attributes) in present.items()},
        states,
        sysctls,
        change.forget,
        others=files.observe(change.links),
        networkd=system.is_active(renderer.NETWORKD),
        attributes={name: attributes for name, (_content, attributes) in present.items() if attributes},
    )


def stage_all(change: Change) -> dict[Path, Path]:
    """Write all new files beside their targets; on failure (for example a full disk) remove them again."""
    staged: dict[Path, Path] = {}
    try:
        for path, content, attributes in change.wanted():
            if attributes is not None:
                staged[path] = files.stage(path, content, attributes)
    except system.HostError as error:
        with contextlib.suppress(OSError):
            for path in staged.values():
                path.unlink(missing_ok=True)
        raise system.HostError(f"Nothing was changed, the old state holds: {system.explain(error)}") from error
    return staged


def switch(change: Change, staged: Mapping[Path, Path]) -> list[str]:
    """Rename the new files into place and activate them."""
    for path in change.files:
        if path in staged:
            staged[path].replace(path)
        else:
            path.unlink(missing_ok=True)
        if path.parent.is_dir():
            system.sync_directory(path.parent)
    trouble = renderer.activate(list(change.links), change.networkd)
    for key, value in change.sysctls.items():
        if (PROC_SYS / key).exists():
            (PROC_SYS / key).write_text(str(value), encoding="ascii")
    system.wait_for(lambda: not link_differences(change.restore_links), SETTLE_S)
    return trouble + restore_runtime(change.restore_links, change.restore_sysctls)
