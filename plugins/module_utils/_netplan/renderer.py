# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply netplan's files to named interfaces only.

``netplan apply`` (1.1.2, cli/commands/apply.py) reconfigures every interface and restarts NetworkManager. This module
lets ``netplan generate`` write to a temporary root and installs only the files of the named interfaces from there.

Only a rule in the chain FORWARD itself can accept such packets: a packet that one nftables chain accepts is still
dropped by the next. The rules are in a chain of their own, which is in front of the rules of others and changes none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

from .._host import network_manager, system

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
NM_DROP_IN = network_manager.DIRECTORY / "conf.d/60-gb10-fabric.conf"


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
        system.is_active(NETWORKD) or system.is_active(network_manager.SERVICE) or system.is_active("network.target")
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
        network_manager.reload()
        if system.is_active(network_manager.SERVICE):
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
