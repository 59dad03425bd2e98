# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep and restore whole files: content, mode, owner, or the place to which a link points.

A path has its old or its new content at any time, because only complete files are renamed onto it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from .._host import system

RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
# Parts of a route that count down by themselves or depend on the carrier.
VOLATILE = re.compile(r" (expires \d+sec|linkdown|dead)\b")
# Routes that the kernel creates per address and interface; only the addresses are compared.
KERNEL_ROUTE = re.compile(r"^(local|broadcast|anycast|multicast|fe80::|ff00::)")


def observe(fabric: Collection[str]) -> tuple[str, ...]:
    """Return the state of everything except the fabric's interfaces, one line per item."""
    links = system.links()
    # The host's end of a pod's veth pair has no global address and disappears with the pod, so it is skipped.
    found = [
        f"interface {name} that is up"
        for name, link in links.items()
        if name not in fabric
        and "LOWER_UP" in link.get("flags", [])
        and (system.addresses(link) or "link_netnsid" not in link)
    ]
    others = {name: link for name, link in links.items() if name not in fabric}
    found += [f"address {address} of {name}" for name, link in others.items() for address in system.addresses(link)]
    pods = {name for name, link in links.items() if "link_netnsid" in link and not system.addresses(link)}
    for family in ("-4", "-6"):
        for line in _lines(["ip", family, "route", "show", "table", "all"]):
            route = VOLATILE.sub("", line)
            device = re.search(r"\bdev (\S+)", route)
            if not KERNEL_ROUTE.match(route) and not (device and device[1] in {*fabric, *pods}):
                found.append(f"route {' '.join(route.split())}")
        found += [f"rule {' '.join(line.split())}" for line in _lines(["ip", family, "rule", "show"])]
    for path in RESOLVER_FILES:
        found += [f"DNS setting {line}" for line in (system.read_text(path) or "").splitlines() if line[:1].isalpha()]
    return tuple(dict.fromkeys(found))


def _lines(argv: list[str]) -> list[str]:
    return [line for line in system.run(argv).stdout.splitlines() if line.strip()]


def differences(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return what is missing now, and new default routes; other additions are harmless (a pod that starts)."""
    old, new = list(before), list(now)
    found = [f"other interfaces: the {line} is gone" for line in old if line not in new]
    return found + [
        f"other interfaces: a new {line}" for line in new if line not in old and line.startswith("route default")
    ]


def default_routes() -> list[dict[str, Any]]:
    """Return every default route in the form of ``ip -j route``; that of a point-to-point link has no gateway."""
    return [
        *system.run_json(["ip", "-j", "route", "show", "default"]),
        *system.run_json(["ip", "-j", "-6", "route", "show", "default"]),
    ]


def protected_interfaces(named: Iterable[str], links: Mapping[str, Any]) -> dict[str, str]:
    """Return the interfaces that the fabric must not use, each with the reason."""
    found = {}
    for route in default_routes():
        leased = (
            f", which the DHCP server {route.get('gateway', '')} gave it" if route.get("protocol") == "dhcp" else ""
        )
        found[str(route.get("dev", ""))] = f"it carries the default route of this host{leased}"
    session = session_address()
    for name, link in links.items():
        if session and any(entry.get("local") == session for entry in link.get("addr_info", [])):
            found[name] = "this Ansible session comes in through it"
    return {**found, **dict.fromkeys(named, "the inventory names it as management interface")}


def session_address(proc: Path = Path("/proc")) -> str:
    """Return this host's address in the ssh session, or an empty string.

    sudo removes SSH_CONNECTION (sudoers(5), env_reset), so the environments of parent processes are read too.
    """
    pid = str(os.getpid())
    while pid not in ("", "0"):
        text = system.read_text(proc / pid / "environ") or ""
        words = next(
            (v[len("SSH_CONNECTION=") :].split() for v in text.split("\0") if v.startswith("SSH_CONNECTION=")), []
        )
        if len(words) == 4:
            return words[2]
        pid = (re.search(r"^PPid:\s*(\d+)", system.read_text(proc / pid / "status") or "", re.M) or ["", ""])[1]
    return ""


def answering_gateways() -> tuple[str, ...]:
    """Return the default gateways that answer a ping."""

    def answers(device: str, address: str) -> bool:
        argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.2", "-W", "1", "-I", device, address]
        return system.run(argv, check=False, timeout=11).returncode == 0

    known = [(str(route["dev"]), str(route["gateway"])) for route in default_routes() if route.get("gateway")]
    return tuple(gateway for device, gateway in known if answers(device, gateway))


@dataclass(frozen=True)
class Attributes:
    """What a path has besides its content; an owner of -1 is not compared. ``target`` is that of a symbolic link."""

    mode: int
    uid: int = -1
    gid: int = -1
    target: str = ""


def kept(path: Path) -> Path:
    """Return the name under which the old file is kept."""
    return path.with_name(f".{path.name}.gb10-old")


def staged(path: Path) -> Path:
    """Return the name under which the new file waits."""
    return path.with_name(f".{path.name}.gb10-new")


def read(path: Path) -> tuple[str | None, Attributes | None]:
    """Return a path's content, None if it has none, and its attributes, None if nothing is there.

    A dangling link has attributes and no content. Raise HostError if the path is no file, OSError if it is unreadable.
    """
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    target = str(path.readlink()) if stat.S_ISLNK(info.st_mode) else ""
    attributes = Attributes(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, target)
    if target and not path.exists():
        return None, attributes
    if not path.is_file():
        raise system.HostError(f"{path} is not a file; move it away, and run this again")
    # Bytes that are not UTF-8 survive, for example those of a comment in another encoding.
    return path.read_bytes().decode("utf-8", "surrogateescape"), attributes


def holds(path: Path, content: str | None, attributes: Attributes | None) -> bool:
    """Tell whether a path has this content and these attributes."""
    try:
        now, seen = read(path)
    except (system.HostError, OSError):
        return False
    if seen is None or (content is None and attributes is None):
        return seen is None and content is None and attributes is None
    if seen.target or (attributes and attributes.target):
        # What a link points to is not part of the change.
        return attributes is not None and seen.target == attributes.target
    if attributes is None:
        return now == content
    owners = (wanted in (-1, found) for wanted, found in ((attributes.uid, seen.uid), (attributes.gid, seen.gid)))
    return now == content and seen.mode == attributes.mode and all(owners)


def stage(path: Path, content: str | None, attributes: Attributes) -> Path:
    """Write a file durably beside ``path``; renaming it to ``path`` then needs no disk space. Raise HostError."""
    new = staged(path)
    try:
        system.make_parents(path)
        new.unlink(missing_ok=True)
        if attributes.target:
            new.symlink_to(attributes.target)
            return new
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write((content or "").encode("utf-8", "surrogateescape"))
            # A change of the owner clears some bits of the mode.
            os.fchown(handle.fileno(), attributes.uid, attributes.gid)
            os.fchmod(handle.fileno(), attributes.mode)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):  # a leftover file has no effect, and the next run replaces it
            new.unlink(missing_ok=True)
        raise system.HostError(f"Cannot write {system.explain(error, path)}") from error
    return new


def keep(path: Path) -> None:
    """Keep the present file, or link, under a second name. A hard link needs no disk space when it is renamed back."""
    kept(path).unlink(missing_ok=True)
    if os.path.lexists(path):
        os.link(path, kept(path), follow_symlinks=False)
    if path.parent.is_dir():
        system.sync_directory(path.parent)


def put_back(path: Path, content: str | None, attributes: Attributes | None) -> None:
    """Restore one path; needs no disk space while the kept file exists. May be repeated. Raise HostError or OSError."""
    if not holds(path, content, attributes):
        if attributes is None and content is None:
            path.unlink(missing_ok=True)
        elif os.path.lexists(kept(path)):
            kept(path).replace(path)
        else:
            stage(path, content, attributes or Attributes(default_mode(path))).replace(path)
    if path.parent.is_dir():
        system.sync_directory(path.parent)


def default_mode(path: Path) -> int:
    """Return the mode for a file of this collection: netplan warns of files that other users can read."""
    return 0o600 if path.suffix == ".yaml" else 0o644


# Apply netplan's files to named interfaces only.
#
# ``netplan apply`` (1.1.2, cli/commands/apply.py) reconfigures every interface and restarts NetworkManager. This module
# lets ``netplan generate`` write to a temporary root and installs only the files of the named interfaces from there.
#
# Only a rule in the chain FORWARD itself can accept such packets: a packet that one nftables chain accepts is still
# dropped by the next. The rules are in a chain of their own, which is in front of the rules of others and changes none.

CHAIN = "GB10-TRANSIT"
UNIT = system.UNIT_DIRECTORY / "gb10-transit.service"
# systemd-networkd starts the unit at every boot; a file in .wants would have to be a link.
WANT = system.UNIT_DIRECTORY / "systemd-networkd.service.d" / "60-gb10-transit.conf"


def files(ports: Sequence[str]) -> dict[Path, str | None]:
    """Return the files that open the firewall for ``ports``; without ports, their removal if they exist."""
    if ports:
        return {UNIT: render(ports), WANT: f"[Unit]\nWants={UNIT.name}\n"}
    return {UNIT: None, WANT: None} if UNIT.exists() else {}


def render(ports: Sequence[str]) -> str:
    """Return the unit. A host without iptables has no such firewall."""
    close = f"iptables -w -D FORWARD -j {CHAIN}; iptables -w -F {CHAIN}; iptables -w -X {CHAIN}"
    accept = [f"iptables -w -A {CHAIN} -i {one} -o {other} -j ACCEPT" for one, other in permutations(ports, 2)]
    opened = " && ".join([f"iptables -w -N {CHAIN}", *accept, f"iptables -w -I FORWARD -j {CHAIN}"])
    return (
        "# Written by gb10.cluster from the fabric plan. Change the inventory instead: the next run overwrites this.\n"
        "[Unit]\nDescription=Accept packets that the fabric's ports forward to each other\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart=/bin/sh -c 'command -v iptables >/dev/null || exit 0; ({close}) 2>/dev/null; {opened}'\n"
        f"ExecStop=-/bin/sh -c '{close}'\n"
    )


def sync() -> None:
    """Start or stop the unit, depending on whether its file exists."""
    if not UNIT.exists():
        if not system.is_active(UNIT.name):
            return
        # systemd still has the unit in memory, with the command that removes the rules.
        system.run(["systemctl", "stop", UNIT.name])
    system.run(["systemctl", "daemon-reload"])
    if UNIT.exists():
        system.run(["systemctl", "restart", UNIT.name])


def deviations(routes: Mapping[str, Iterable[tuple[str, str]]], ports: Sequence[str]) -> list[str]:
    """Return which routes of the interfaces, and whether the rules between the ports, are missing on this host."""
    found = []
    for name, wanted in routes.items():
        shown = system.run_json(["ip", "-j", "-4", "route", "show", "dev", name]) if wanted else []
        known = {(route.get("dst"), route.get("gateway")) for route in shown}
        found += [f"route: {to} via {via} is missing" for to, via in wanted if (to, via) not in known]
    rule = ["iptables", "-w", "-C", "FORWARD", "-j", CHAIN]
    if ports and shutil.which("iptables") and system.run(rule, check=False).returncode:
        found.append(f"firewall: FORWARD lacks the chain {CHAIN}")
    return found


NETPLAN_DIRECTORIES = ("lib/netplan", "etc/netplan", "run/netplan")
# The generated files of one interface, and the udev rules by which netplan tells NetworkManager what to manage.
INTERFACE_FILES = (
    "run/systemd/network/10-netplan-{}.network",
    "run/systemd/network/10-netplan-{}.link",
    "run/NetworkManager/system-connections/netplan-{}.nmconnection",
)
UDEV_RULES = "run/udev/rules.d/90-netplan.rules"
NETWORKD = "systemd-networkd.service"
# When systemd-networkd starts beside NetworkManager, it deletes the policy rules and routes of other programs, such as
# Tailscale, unless this drop-in forbids it (networkd.conf(5)).
NETWORKD_DROP_IN = Path("/etc/systemd/networkd.conf.d/60-gb10-fabric.conf")
NETWORKD_KEEPS = "[Network]\nManageForeignRoutingPolicyRules=no\nManageForeignRoutes=no\nManageForeignNextHops=no\n"
NM_DROP_IN = system.NETWORK_MANAGER_DIRECTORY / "conf.d/60-gb10-fabric.conf"


def netplan_files(root: Path = Path("/")) -> list[Path]:
    return [path for directory in NETPLAN_DIRECTORIES for path in sorted((root / directory).glob("*.yaml"))]


@contextmanager
def generated(files: Mapping[Path, str | None], root: Path = Path("/")) -> Iterator[Path]:
    """Run ``netplan generate`` on the host's files, with ``files`` replacing some of them; yield its output directory.

    Raises HostError with netplan's own message. The directory is in /run, so a full disk does not matter.
    """
    with tempfile.TemporaryDirectory(prefix="gb10-netplan-", dir=root / "run") as temporary:
        output = Path(temporary)
        for source in netplan_files(root):
            copy = output / source.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
        for path, content in files.items():
            copy = output / path.relative_to("/")
            if content is None:
                copy.unlink(missing_ok=True)
            elif path.suffix == ".yaml":
                system.write_atomic(copy, content, 0o600)
        try:
            system.run(["netplan", "generate", "--root-dir", temporary], timeout=120)
        except system.HostError as error:
            said = str(error).replace(f" --root-dir {temporary}", "").replace(temporary, "")
            raise type(error)(said) from error
        yield output


def is_booting() -> bool:
    """Tell whether the network has not started yet; generating netplan's files is then enough."""
    return not (
        system.is_active(NETWORKD) or system.is_active(system.NETWORK_MANAGER) or system.is_active("network.target")
    )


def activate(names: Collection[str], networkd: bool, root: Path = Path("/")) -> list[str]:
    """Activate netplan's present files on these interfaces; return what went wrong.

    ``networkd`` says whether systemd-networkd must run afterwards. During boot, before the network starts, all of
    netplan's files are generated instead, and the services read them.
    """
    try:
        sync()
        if is_booting():
            system.run(["netplan", "generate"], timeout=120)
            return []
        with generated({}, root) as output:
            for name in names:
                for pattern in INTERFACE_FILES:
                    take(output, root, pattern.format(name))
                if (output / INTERFACE_FILES[2].format(name)).exists():
                    # Otherwise NetworkManager keeps the addresses as an "external" connection, not its profile.
                    system.run(["ip", "address", "flush", "dev", name], check=False)
            take(output, root, UDEV_RULES)
        present = [name for name in names if (root / "sys/class/net" / name).exists()]
        reload_udev(present)
        system.reload_network_manager()
        if system.is_active(system.NETWORK_MANAGER):
            system.run(["nmcli", "connection", "reload"])
            for name in present if not networkd else []:
                # NetworkManager reads udev's NM_UNMANAGED only when an interface appears (seen with 1.52).
                system.run(["nmcli", "device", "set", name, "managed", "yes"], check=False)
        if not networkd:
            system.run(["systemctl", "stop", "systemd-networkd.socket", NETWORKD])
        elif not system.is_active(NETWORKD):
            system.run(["systemctl", "start", NETWORKD])
        else:
            system.run(["networkctl", "reload"])
            if present:
                system.run(["networkctl", "reconfigure", *present])
    except (system.HostError, OSError) as error:
        return [str(error)]
    return []


def take(output: Path, root: Path, name: str) -> None:
    """Make one generated file of the host equal to netplan's new output, including owner and mode."""
    new, old = output / name, root / name
    if not new.exists():
        old.unlink(missing_ok=True)
    elif not old.exists() or old.read_bytes() != new.read_bytes():
        system.make_parents(old)
        staged = old.with_name(f".{old.name}.gb10-new")
        shutil.copy2(new, staged)
        info = new.stat()
        os.chown(staged, info.st_uid, info.st_gid)
        staged.replace(old)


def reload_udev(names: Collection[str]) -> None:
    """Make udev apply netplan's rules to these interfaces."""
    system.run(["udevadm", "control", "--reload"])
    if names:
        paths = [f"/sys/class/net/{name}" for name in names]
        system.run(["udevadm", "trigger", "--settle", "--action=change", *paths], check=False)
