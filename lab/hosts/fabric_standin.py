# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED SR-IOV and RDMA of a ConnectX-7, for a kernel without them. Runs on every node of the lab.

It keeps ``/run/gb10-lab/sys``, a tree in the shape of /sys. A number written into a PF's ``sriov_numvfs`` makes that
many VF interfaces (veth pairs into the rail's switch) or takes them away; GIDs follow the interfaces' addresses, in
the host and in pods. What it can't do: refuse a write with EBUSY (it restores the old number and says so in the
journal), and move data by RDMA.
"""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import netlink
from functions import Function
from netlink import Address, Link
from traffic import Meter
from tree import Symlink, Tree

SETTINGS = Path("/opt/gb10-lab/host/host.json")
SWITCH = "/opt/gb10-lab/switch.netns"
ROOT = Path("/run/gb10-lab/sys")
DEVICES = Path("/dev/infiniband")
TICK_S = 0.08
AWAY_S = 0.25  # looking into every namespace costs too much for every tick
REFRESH_S = 1.0
SWITCH_MTU = 9216
VERBS_MAJOR = 231


def log(message: str) -> None:
    """One line into the journal."""
    print(message, flush=True)


class Standin:
    """The NIC of one host. Which VFs exist is read from the switch's ports, so a restart loses nothing."""

    def __init__(self) -> None:
        self.host = json.loads(SETTINGS.read_text())
        self.rails = self.host["rails"]
        self.tree = Tree(ROOT)
        self.meter = Meter()
        self.own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.switch = os.open(SWITCH, os.O_RDONLY | os.O_CLOEXEC)
        self.events = netlink.subscribe(netlink.LINK_EVENTS | netlink.ADDRESS_EVENTS)
        self.switch_events = self._in(self.switch, lambda: netlink.subscribe(netlink.LINK_EVENTS))
        self.pfs = [self._function(rail, None) for rail in range(len(self.rails))]
        self.vfs: dict[str, Function] = {}
        self.ports: dict[str, Link] = {}
        # where the interface of a VF was seen last: path of a namespace
        self.places: dict[str, str] = {}
        DEVICES.mkdir(mode=0o755, exist_ok=True)
        self._node("rdma_cm", 255)

    def _in(self, namespace: int, work):  # type: ignore[no-untyped-def]
        os.setns(namespace, os.CLONE_NEWNET)
        try:
            return work()
        finally:
            os.setns(self.own, os.CLONE_NEWNET)

    def _function(self, rail: int, vf: int | None) -> Function:
        names = self.rails[rail]
        port = f"{self.host['name']}-r{rail}"
        if vf is None:
            return Function(rail, None, names["pci"], names["pci"], names["pf"], names["rdma"], port, rail)
        # VFs begin behind the two PFs of the card: 01:00.2, 01:00.3, …
        bdf = f"{names['pci'][:-1]}{vf + 2}"
        uverbs = 2 + len(self.rails) * vf + rail
        return Function(
            rail, vf, bdf, names["pci"], f"{names['vf']}{vf}", f"{names['vf_rdma']}{vf}", f"{port}v{vf}", uverbs
        )

    # ---- SR-IOV

    def _numvfs(self, rail: int) -> str:
        return f"{self.pfs[rail].directory}/sriov_numvfs"

    def _count(self, rail: int) -> int:
        return sum(1 for vf in self.vfs.values() if vf.rail == rail)

    def obey(self) -> bool:
        """Do what was written into sriov_numvfs; True if anything was written."""
        acted = False
        for rail, pf in enumerate(self.pfs):
            now, text = self._count(rail), self.tree.read(self._numvfs(rail))
            if text.strip() == str(now) or not text:
                continue
            acted = True
            self.tree.forget(self._numvfs(rail))
            refusal = self._refusal(text.strip(), now)
            if refusal:
                log(f"refused: {text.strip()!r} written to sriov_numvfs of {pf.netdev}, which has {now}: {refusal}")
                continue
            self._resize(rail, int(text))
            log(f"{pf.netdev}: {now} -> {int(text)} VFs")
        return acted

    def _refusal(self, text: str, now: int) -> str | None:
        if not text.isdecimal():
            return "EINVAL, not a number"
        if int(text) > self.host["total_vfs"]:
            return f"ERANGE, sriov_totalvfs is {self.host['total_vfs']}"
        return "EBUSY, write 0 first" if now and int(text) else None

    def _resize(self, rail: int, count: int) -> None:
        lines = []
        for vf in list(self.vfs.values()) if count == 0 else []:
            if vf.rail == rail:
                # the switch's end takes the interface with it, also out of a pod
                lines.append(f"link delete {vf.port}")
        for index in range(count):
            vf = self._function(rail, index)
            mac = bytes([0x02, *random.randbytes(5)]).hex(":")
            lines.append(
                f"link add {vf.port} mtu {SWITCH_MTU} type veth peer name {vf.netdev} address {mac} mtu 1500"
                f" netns {os.getpid()}"
            )
            lines.append(f"link set {vf.port} master rail{rail} up")
        argv = ["nsenter", f"--net={SWITCH}", "--", "ip", "-batch", "-"]
        done = subprocess.run(argv, input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
        if done.returncode != 0:
            log(f"could not make VFs: {done.stderr.strip()}")

    def _follow_ports(self) -> None:
        """Learn from the switch's ports which VFs there are."""
        self.ports = {link.name: link for link in self._in(self.switch, netlink.links)}
        known = {}
        for rail in range(len(self.rails)):
            for index in range(self.host["total_vfs"]):
                vf = self._function(rail, index)
                if vf.port in self.ports:
                    known[vf.port] = self.vfs.get(vf.port, vf)
        for port in set(self.vfs) - set(known):
            self._remove_nodes(self.vfs[port])
            self.places.pop(port, None)
        self.vfs = known
        for function in [*self.pfs, *self.vfs.values()]:
            self._node(f"uverbs{function.uverbs}", 192 + function.uverbs)
            self._node(f"umad{function.uverbs}", function.uverbs, mode=0o600)

    # ---- device nodes

    def _node(self, name: str, minor: int, mode: int = 0o666) -> None:
        path = DEVICES / name
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(VERBS_MAJOR, minor))
            path.chmod(mode)

    def _remove_nodes(self, function: Function) -> None:
        for name in (f"uverbs{function.uverbs}", f"umad{function.uverbs}"):
            (DEVICES / name).unlink(missing_ok=True)

    # ---- where interfaces are

    def _find(self, vf: Function, own: list[Link]) -> tuple[Link | None, list[Address], bool]:
        """The VF's interface, its addresses, and whether it is in the host."""
        port = self.ports[vf.port]

        def match(links: list[Link]) -> Link | None:
            pairs = [link for link in links if link.index == port.peer and link.peer == port.index]
            # two pods may have interfaces of equal numbers; host-device leaves the old name as alias
            return next((p for p in pairs if vf.netdev in {p.name, p.alias}), pairs[0] if len(pairs) == 1 else None)

        if link := match(own):
            return link, [a for a in netlink.addresses() if a.index == link.index], True
        for place in [self.places.get(vf.port), *_namespaces()]:
            if place is None:
                continue
            try:
                namespace = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                links, addresses = self._in(namespace, lambda: (netlink.links(), netlink.addresses()))
            except OSError:
                continue
            finally:
                os.close(namespace)
            if link := match(links):
                self.places[vf.port] = place
                return link, [a for a in addresses if a.index == link.index], False
        return None, [], False

    # ---- the tree

    def refresh(self) -> bool:
        """Bring the tree in line with the kernel; True if a VF is out of the host, where no event tells of it."""
        self._follow_ports()
        own = netlink.links()
        here_addresses = netlink.addresses()
        functions = [*self.pfs, *self.vfs.values()]
        self.meter.update(functions, self.ports)
        files: dict[str, str | Symlink] = {
            "bus/pci/drivers/mlx5_core/module": Symlink("../../../../module/mlx5_core"),
            "module/mlx5_core/version": "gb10.cluster lab stand-in\n",
        }
        away = False
        for function in functions:
            if function.vf_index is None:
                link = next((link for link in own if link.name == function.netdev), None)
                addresses = [a for a in here_addresses if link and a.index == link.index]
                files |= function.files(link, addresses, here=True)
                files |= self._sriov(function)
            else:
                link, addresses, here = self._find(function, own)
                away |= not here
                files |= function.files(link, addresses, here=here)
        for link in own:
            files.setdefault(f"class/net/{link.name}", Symlink(f"/sys/class/net/{link.name}"))
        self.tree.apply(files)
        return away

    def _sriov(self, pf: Function) -> dict[str, str | Symlink]:
        top = pf.directory
        mine = [vf for vf in self.vfs.values() if vf.rail == pf.rail]
        return {
            f"{top}/sriov_totalvfs": f"{self.host['total_vfs']}\n",
            f"{top}/sriov_numvfs": f"{len(mine)}\n",
            f"{top}/sriov_offset": "2\n",
            f"{top}/sriov_stride": "1\n",
            f"{top}/sriov_drivers_autoprobe": "1\n",
            **{f"{top}/virtfn{vf.vf_index}": Symlink(f"../{vf.bdf}") for vf in mine},
        }

    def run(self) -> None:
        """Work until stopped."""
        away = self.refresh()
        _notify("READY=1")
        log(f"playing the NIC of {self.host['name']} at {ROOT}")
        last = time.monotonic()
        while True:
            time.sleep(TICK_S)
            wrote = self.obey()
            changed = netlink.drain(self.events) | netlink.drain(self.switch_events)
            changed |= self.meter.stale([*self.pfs, *self.vfs.values()])
            if wrote or changed or time.monotonic() - last > (AWAY_S if away else REFRESH_S):
                away, last = self.refresh(), time.monotonic()


def _namespaces() -> list[str]:
    """One path for every network namespace in which a process of this host lives or that CNI keeps."""
    found: dict[int, str] = {}
    for path in [*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")]:
        try:
            found.setdefault(path.stat().st_ino, str(path))
        except OSError:
            continue
    return list(found.values())


def _notify(message: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_systemd:
            to_systemd.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            to_systemd.send(message.encode())


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Standin().run()
