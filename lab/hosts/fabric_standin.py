# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED SR-IOV and RDMA of a ConnectX-7, for a kernel without them. Runs on every node of the lab.

It keeps ``/run/gb10-lab/sys``, a tree in the form of /sys. A number written to a PF's ``sriov_numvfs`` creates that
many VF interfaces (veth pairs into the switch of the PF's cable) or removes them. GIDs follow the addresses of the
interfaces, in the host and in pods. It cannot refuse a write with EBUSY: it restores the old number and logs the
reason. It cannot move data by RDMA.
"""

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
AWAY_S = 0.25  # a search of every namespace in every tick would cost too much
REFRESH_S = 1.0
SWITCH_MTU = 9216
VERBS_MAJOR = 231


def log(message: str) -> None:
    """Write a line to the journal."""
    print(message, flush=True)


class Standin:
    """The NIC of one host. It reads the existing VFs from the switch's ports, so a restart loses nothing."""

    def __init__(self) -> None:
        self.host = json.loads(SETTINGS.read_text())
        self.slots = self.host["ports"]
        self.tree = Tree(ROOT)
        self.meter = Meter()
        self.own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.switch = os.open(SWITCH, os.O_RDONLY | os.O_CLOEXEC)
        self.events = netlink.subscribe(netlink.LINK_EVENTS | netlink.ADDRESS_EVENTS)
        self.switch_events = self._in(self.switch, lambda: netlink.subscribe(netlink.LINK_EVENTS))
        self.pfs = [self._function(slot, None) for slot in range(len(self.slots))]
        self.vfs: dict[str, Function] = {}
        self.ports: dict[str, Link] = {}
        # VF's port -> path of the namespace in which its interface was seen last
        self.places: dict[str, str] = {}
        DEVICES.mkdir(mode=0o755, exist_ok=True)
        self._node("rdma_cm", 255)

    def _in(self, namespace: int, work):  # type: ignore[no-untyped-def]
        os.setns(namespace, os.CLONE_NEWNET)
        try:
            return work()
        finally:
            os.setns(self.own, os.CLONE_NEWNET)

    def _function(self, slot: int, vf: int | None) -> Function:
        names = self.slots[slot]
        port, pci = f"{self.host['name']}-r{slot}", names["pci"]
        if vf is None:
            return Function(slot, None, pci, pci, names["pf"], names["rdma"], port, slot)
        # both PFs of a card come first, then the VFs of the first and of the second: 01:00.2…5, 01:00.6…01:01.1
        number = 2 + int(pci[-1]) * self.host["total_vfs"] + vf
        bdf = f"{pci[:-4]}{number // 8:02x}.{number % 8}"
        uverbs = len(self.slots) * (vf + 1) + slot
        return Function(slot, vf, bdf, pci, f"{names['vf']}{vf}", f"{names['rdma']}v{vf}", f"{port}v{vf}", uverbs)

    # ---- SR-IOV

    def _numvfs(self, slot: int) -> str:
        return f"{self.pfs[slot].directory}/sriov_numvfs"

    def _count(self, slot: int) -> int:
        return sum(1 for vf in self.vfs.values() if vf.slot == slot)

    def obey(self) -> bool:
        """Do what was written to sriov_numvfs; return True if anything was written."""
        acted = False
        for slot, pf in enumerate(self.pfs):
            now, text = self._count(slot), self.tree.read(self._numvfs(slot))
            if text.strip() == str(now) or not text:
                continue
            acted = True
            self.tree.forget(self._numvfs(slot))
            refusal = self._refusal(text.strip(), now)
            if refusal:
                log(f"refused: {text.strip()!r} written to sriov_numvfs of {pf.netdev}, which has {now}: {refusal}")
                continue
            self._resize(slot, int(text))
            log(f"{pf.netdev}: {now} -> {int(text)} VFs")
        return acted

    def _refusal(self, text: str, now: int) -> str | None:
        if not text.isdecimal():
            return "EINVAL, not a number"
        if int(text) > self.host["total_vfs"]:
            return f"ERANGE, sriov_totalvfs is {self.host['total_vfs']}"
        return "EBUSY, write 0 first" if now and int(text) else None

    def _resize(self, slot: int, count: int) -> None:
        lines, cable = [], self._cable(slot)
        for vf in list(self.vfs.values()) if count == 0 else []:
            if vf.slot == slot:
                # deleting the switch's end deletes the interface too, also in a pod
                lines.append(f"link delete {vf.port}")
        for index in range(count):
            vf = self._function(slot, index)
            mac = bytes([0x02, *random.randbytes(5)]).hex(":")
            lines.append(
                f"link add {vf.port} mtu {SWITCH_MTU} type veth peer name {vf.netdev} address {mac} mtu 1500"
                f" netns {os.getpid()}"
            )
            lines += [f"link set {vf.port} master {cable} up"] if cable else []
        argv = ["nsenter", f"--net={SWITCH}", "--", "ip", "-batch", "-"]
        done = subprocess.run(argv, input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
        if done.returncode != 0:
            log(f"could not create VFs: {done.stderr.strip()}")

    def _cable(self, slot: int) -> str:
        """Return the bridge of a PF's cable, which a test may have moved; empty without a cable."""
        argv = ["nsenter", f"--net={SWITCH}", "--", "ip", "-j", "link", "show", "dev", self.pfs[slot].port]
        shown = subprocess.run(argv, text=True, capture_output=True, check=False).stdout
        return str(json.loads(shown)[0].get("master", "")) if shown else ""

    def _follow_ports(self) -> None:
        """Read the existing VFs from the switch's ports."""
        self.ports = {link.name: link for link in self._in(self.switch, netlink.links)}
        known = {}
        for slot in range(len(self.slots)):
            for index in range(self.host["total_vfs"]):
                vf = self._function(slot, index)
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

    # ---- find interfaces

    def _find(self, vf: Function, own: list[Link]) -> tuple[Link | None, list[Address], bool]:
        """Return the VF's interface, its addresses, and whether it is in the host's namespace."""
        port = self.ports[vf.port]

        def match(links: list[Link]) -> Link | None:
            pairs = [link for link in links if link.index == port.peer and link.peer == port.index]
            # interfaces of two pods may have the same number; host-device stores the old name as alias
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
        """Update the tree from the kernel; return True if a VF is in another namespace, which sends no events."""
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
        mine = [vf for vf in self.vfs.values() if vf.slot == pf.slot]
        return {
            f"{top}/sriov_totalvfs": f"{self.host['total_vfs']}\n",
            f"{top}/sriov_numvfs": f"{len(mine)}\n",
            f"{top}/sriov_offset": f"{2 + int(pf.bdf[-1]) * (self.host['total_vfs'] - 1)}\n",
            f"{top}/sriov_stride": "1\n",
            f"{top}/sriov_drivers_autoprobe": "1\n",
            **{f"{top}/virtfn{vf.vf_index}": Symlink(f"../{vf.bdf}") for vf in mine},
        }

    def run(self) -> None:
        """Run until the service is stopped."""
        away = self.refresh()
        _notify_ready()
        log(f"simulating the NIC of {self.host['name']} at {ROOT}")
        last = time.monotonic()
        while True:
            time.sleep(TICK_S)
            wrote = self.obey()
            changed = netlink.drain(self.events) | netlink.drain(self.switch_events)
            changed |= self.meter.stale([*self.pfs, *self.vfs.values()])
            if wrote or changed or time.monotonic() - last > (AWAY_S if away else REFRESH_S):
                away, last = self.refresh(), time.monotonic()


def _namespaces() -> list[str]:
    """Return a path for every network namespace that a process of this host uses or that CNI keeps."""
    found: dict[int, str] = {}
    for path in [*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")]:
        try:
            found.setdefault(path.stat().st_ino, str(path))
        except OSError:
            continue
    return list(found.values())


def _notify_ready() -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_systemd:
            to_systemd.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            to_systemd.send(b"READY=1")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Standin().run()
