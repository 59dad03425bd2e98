# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the state of a lab host that roles can change, as sorted lines.

``--compare`` reads earlier lines from standard input and prints the lines that differ (status 1). They show what
--check wrongly changed, or what a reset did not remove.
"""

import argparse
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("/etc", "/usr/local", "/var/lib", "/root", "/opt")
# these change without a role
VOLATILE = re.compile(
    r"^(/opt/gb10-lab|/root/\.ansible|/var/lib/systemd/|/var/lib/(private|dbus|NetworkManager)\b|/etc/machine-id$|/etc/\.(pwd|updated)"
    r"|/etc/(passwd|group|shadow|gshadow)-$|/etc/ld\.so\.cache$|/var/lib/(apt|dpkg)/|/var/lib/apt$)"
)
PER_INTERFACE = ("rp_filter", "arp_ignore", "arp_announce", "forwarding")


def files() -> Iterator[str]:
    """Yield path, type, mode, owner and a hash of the content."""
    for root in ROOTS:
        for directory, names, leaves in os.walk(root):
            names[:] = [name for name in names if not VOLATILE.search(f"{directory}/{name}")]
            for name in [*names, *leaves]:
                path = Path(directory, name)
                if not VOLATILE.search(str(path)):
                    yield f"{path} {_describe(path)}"


def _describe(path: Path) -> str:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return f"-> {path.readlink()}"
    content = ""
    if stat.S_ISREG(info.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return f"{stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid} {content}".rstrip()


def network() -> Iterator[str]:
    """Yield interfaces with MTU, state and addresses, routes, and the settings that a fabric needs."""
    for link in json.loads(_output("ip", "-j", "address", "show")):
        state = "up" if "UP" in link["flags"] else "down"
        # link-local addresses depend on the carrier
        found = sorted(f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] != "link")
        yield f"link {link['ifname']} {state} mtu {link['mtu']} {' '.join(found)}".rstrip()
        for name in PER_INTERFACE:
            value = Path("/proc/sys/net/ipv4/conf", link["ifname"], name).read_text().strip()
            yield f"setting {link['ifname']} {name} = {value}"
    for line in _output("ip", "-4", "route", "show", "table", "all").splitlines():
        # NetworkManager numbers its routes in the order in which it activates connections
        yield f"route {' '.join(re.sub(r' metric [0-9]+', '', line).split())}"
    for line in _output("ip", "rule", "show").splitlines():
        yield f"rule {' '.join(line.split())}"


def fabric() -> Iterator[str]:
    """Yield the VFs per PF, the RDMA devices, and the ports' classes."""
    for path in Path("/run/gb10-lab/sys/class/net").glob("*/device/sriov_numvfs"):
        yield f"vfs {path.parent.parent.name} {path.read_text().strip()}"
    for path in Path("/run/gb10-lab/sys/class/infiniband").glob("*"):
        yield f"rdma {path.name}"
    for path in Path("/run/gb10-lab/dcb").glob("*.json"):
        yield f"classes {path.stem} {path.read_text()}"


def units() -> Iterator[str]:
    """Yield running services and timers, except those that the host itself starts and stops."""
    argv = ("systemctl", "list-units", "--type=service,timer", "--state=active", "--plain", "--no-legend")
    for line in _output(*argv).splitlines():
        name = line.split()[0]
        if not name.startswith(("systemd-", "user@", "user-runtime-dir@", "ssh", "NetworkManager-dispatcher")):
            yield f"unit {name}"


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def fingerprint() -> set[str]:
    """Return all lines."""
    return {*files(), *network(), *fabric(), *units()}


def main() -> int:
    """Print or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--may-differ", default="", help="regular expression of lines that don't matter")
    parser.add_argument("--patience", type=float, default=5, help="seconds in which services may still be stopping")
    options = parser.parse_args()
    if not options.compare:
        print("\n".join(sorted(fingerprint())))
        return 0
    before, give_up = set(sys.stdin.read().splitlines()), time.monotonic() + options.patience
    while True:
        now = fingerprint()
        found = [f"- {line}" for line in before - now] + [f"+ {line}" for line in now - before]
        if options.may_differ:
            found = [line for line in found if not re.search(options.may_differ, line[2:])]
        if not found or time.monotonic() > give_up:
            print("\n".join(sorted(found, key=lambda line: line[2:])))
            return 1 if found else 0
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
