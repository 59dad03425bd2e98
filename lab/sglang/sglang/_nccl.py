# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide and log as NCCL 2.28.9 does with the devices of the pod. Formats: NVIDIA/nccl v2.28.9-1 and its real logs."""

import os
import socket
import sys
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ._fabric import Device, Gid, Interface

VERSION = "2.28.9+cuda13.0"
_DEFAULT_MASK = "INIT,BOOTSTRAP,ENV"
CHANNELS = 2
# The type that a socket sends first: ncclSocketTypeNetSocket or ncclSocketTypeNetIb of NCCL's socket.h.
_SOCKET_TYPES = {"Socket": 3, "IB": 4}


class NcclError(RuntimeError):
    """NCCL failed; the message is the last line of the caller's traceback."""


class Log:
    """NCCL's log with the level, subsystems and file of the environment."""

    def __init__(self, env: dict[str, str]) -> None:
        self.level = env.get("NCCL_DEBUG", "").upper()
        mask = env.get("NCCL_DEBUG_SUBSYS", _DEFAULT_MASK).upper()
        self._except = mask.startswith("^")
        self._subsystems = set(mask.lstrip("^").split(","))
        self._stream = self._open(env.get("NCCL_DEBUG_FILE", ""))
        host = socket.gethostname().partition(".")[0]
        self._prefix = f"{host}:{os.getpid()}:{threading.get_native_id()} [0]"
        self._lock = threading.Lock()

    @staticmethod
    def _open(name: str) -> TextIO:
        if not name:
            return sys.stdout
        path = name.replace("%h", socket.gethostname().partition(".")[0]).replace("%p", str(os.getpid()))
        try:
            return Path(path).open("w", buffering=1, encoding="utf-8")
        except OSError:
            return sys.stdout

    def _write(self, line: str) -> None:
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    def say(self, subsystems: str, text: str) -> None:
        wanted = set(subsystems.split(","))
        listed = bool(wanted & self._subsystems) or "ALL" in self._subsystems
        if self.level in {"INFO", "TRACE"} and listed is not self._except:
            self._write(f"{self._prefix} NCCL INFO {text}")

    def complain(self, where: str, text: str) -> None:
        if self.level in {"WARN", "INFO", "TRACE"}:
            stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
            self._write(f"\n{stamp} {self._prefix} {where} NCCL WARN {text}")

    def version(self) -> None:
        if self.level in {"VERSION", "WARN"}:
            self._write(f"NCCL version {VERSION}")
        self.say("INIT", f"NCCL version {VERSION}")


def matches(name: str, spec: str) -> bool:
    """Return whether NCCL's device list selects a name: ``^`` excludes, ``=`` is exact, else prefixes; ignore ports."""
    exclude = spec.startswith("^")
    spec = spec[1:] if exclude else spec
    exact = spec.startswith("=")
    items = [item.partition(":")[0] for item in spec.lstrip("=").split(",") if item]
    hit = any(name == item if exact else name.startswith(item) for item in items)
    return hit is not exclude if items else True


@dataclass
class Net:
    """The network that one rank chose: ``IB`` with its devices, or ``Socket`` with its interfaces."""

    name: str
    oob: Interface
    devices: list[Device] = field(default_factory=list)
    interfaces: list[Interface] = field(default_factory=list)

    @property
    def width(self) -> int:
        return len(self.devices) or len(self.interfaces)


def choose_oob(env: dict[str, str], found: list[Interface], log: Log) -> list[Interface]:
    """Return the interfaces for sockets; raise an error if a name matches none."""
    spec = env.get("NCCL_SOCKET_IFNAME", "")
    if spec:
        log.say("ENV", f"NCCL_SOCKET_IFNAME set by environment to {spec}")
        chosen = [i for i in found if matches(i.name, spec)]
    else:
        chosen = [i for i in found if not i.name.startswith(("lo", "docker"))][:1] or found[:1]
    if not chosen:
        log.complain("bootstrap.cc:126", "Bootstrap : no socket interface found")
        raise NcclError("internal error - please report this issue to the NCCL developers")
    return chosen


def _ib_devices(env: dict[str, str], found: list[Device], log: Log) -> list[Device]:
    spec = env.get("NCCL_IB_HCA", "")
    if spec:
        log.say("ENV", f"NCCL_IB_HCA set to {spec}")
    usable = []
    for device in found:
        if not matches(device.name, spec):
            continue
        if not device.openable:
            continue
        if device.active:
            usable.append(device)
    return usable


def select(env: dict[str, str], found: list[Interface], devices: list[Device], log: Log) -> Net:
    """Choose and log the network as NCCL does; raise :class:`NcclError` where NCCL aborts."""
    sockets = choose_oob(env, found, log)
    oob = sockets[0]
    log.say("INIT,BOOTSTRAP", f"Bootstrap: Using {oob.name}:{oob.address}<0>")
    log.say("INIT", "cudaDriverVersion 13000")
    log.version()
    forced = env.get("NCCL_NET")
    if forced:
        log.say("ENV", f"NCCL_NET set by environment to {forced}.")
        log.say("ENV", f"Comm config netName reset to NCCL_NET={forced}")
    log.say("INIT", "NET/Plugin: Could not find: libnccl-net.so")
    usable: list[Device] = []
    if env.get("NCCL_IB_DISABLE", "0") not in {"0", ""}:
        log.say("ENV", f"NCCL_IB_DISABLE set by environment to {env['NCCL_IB_DISABLE']}.")
        log.say("INIT", "Failed to initialize NET plugin IB")
    elif forced in {None, "IB"}:
        usable = _ib_devices(env, devices, log)
        listed = "".join(f" [{n}]{device.name}:1/RoCE" for n, device in enumerate(usable))
        if not usable:
            log.say("INIT,NET", "NET/IB : No device found.")
        log.say("INIT,NET", f"NET/IB : Using{listed} [RO]; OOB {oob.name}:{oob.address}<0>")
        if not usable:
            log.say("INIT", "Failed to initialize NET plugin IB")
    if usable:
        net = Net("IB", oob, devices=usable)
    elif forced in {None, "Socket"}:
        listed = " ".join(f"[{n}]{i.name}:{i.address}<0>" for n, i in enumerate(sockets))
        log.say("INIT,NET", f"NET/Socket : Using {listed}")
        net = Net("Socket", oob, interfaces=sockets)
    else:
        log.complain("plugin/net.cc:379", "Failed to initialize any NET plugin")
        raise NcclError("Failed to initialize any NET plugin")
    log.say("INIT,NET", f"Initialized NET plugin {net.name}")
    log.say("INIT,NET", f"Assigned NET plugin {net.name} to comm")
    log.say("INIT", f"Using network {net.name}")
    return net


class Communicator:
    """Log the lines of one communicator of a rank."""

    def __init__(self, log: Log, net: Net, rank: int, size: int, address: str) -> None:
        self.log, self.net, self.rank, self.size = log, net, rank, size
        self._comm = f"0x{zlib.crc32(f'{rank}{os.getpid()}'.encode()):08x}"
        self._id = f"0x{zlib.crc32(address.encode()):08x}{zlib.crc32(address[::-1].encode()):08x}"
        self.connected = False

    def _init(self, what: str) -> None:
        self.log.say(
            "INIT",
            f"ncclCommInitRank comm {self._comm} rank {self.rank} nranks {self.size} cudaDev 0 nvmlDev 0 busId 60"
            f" commId {self._id} - Init {what}",
        )

    def start(self) -> None:
        self._init("START")
        self.log.say("INIT", "MNNVL busId 0x60 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0")
        for number, device in enumerate(self.net.devices):
            # GB10 has no GPUDirect RDMA: this line is normal there.
            self.log.say("NET", f"NET/IB : GPU Direct RDMA Disabled for HCA {number} '{device.name}'")
        if os.environ.get("NCCL_NVLS_ENABLE") == "0":
            self.log.say("ENV", "NCCL_NVLS_ENABLE set by environment to 0.")
        self.log.say(
            "INIT",
            f"comm {self._comm} rank {self.rank} nRanks {self.size} nNodes {self.size} localRanks 1 localRank 0"
            " MNNVL 0",
        )
        order = " ".join(str(rank) for rank in range(self.size))
        for channel in range(CHANNELS):
            self.log.say("INIT", f"Channel {channel:02d}/{CHANNELS:02d} : {order}")
        self.log.say("INIT", "P2P Chunksize set to 131072")
        self._init("COMPLETE")

    def connect(self, gids: list[Gid | None], previous: str) -> None:
        """Print the channels, as the first collective makes them; raise where a queue pair can't be moved to RTR.

        ``gids`` is the RoCE v2 entry that was chosen for each device, None where only link-local ones exist.
        ``previous`` is the network of the previous rank, which connects to this one.
        """
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        for number, (device, gid) in enumerate(zip(self.net.devices, gids, strict=False)):
            if gid is None:
                self._unreachable(device)
            else:
                self._queue_pair(number, gid)
        for peer, mine, kind in ((before, self.rank, "receive"), (self.rank, after, "send")):
            for channel in range(CHANNELS):
                number = channel % self.net.width
                self.log.say(
                    "INIT,NET",
                    f"Channel {channel:02d}/0 : {peer}[0] -> {mine}[0] [{kind}] via NET/{self.net.name}/{number}",
                )
        theirs, own = _SOCKET_TYPES[previous], _SOCKET_TYPES[self.net.name]
        if theirs != own:
            # NCCL does not compare the names of the networks; the listening socket notices the difference.
            self.log.complain("misc/socket.cc:441", f"socketFinalizeAccept: wrong type {theirs} != {own}")
            raise NcclError("internal error - please report this issue to the NCCL developers")
        self.log.say("INIT", "Connected all rings, use ring PXN 0 GDR 0")
        self.log.say("INIT", "Connected all trees")
        self.connected = True

    def _queue_pair(self, number: int, gid: Gid) -> None:
        packed = int.from_bytes(b"\x00\x00\xff\xff" + socket.inet_aton(gid.address), "little")
        self.log.say(
            "NET",
            f"NET/IB: NCCL Dev {number} IbDev {number} Port 1 qpn {256 + number} mtu 5 GID {gid.index} (0/{packed:X})"
            " fifoRkey=0x1fff fifoLkey=0x1fff",
        )

    def _unreachable(self, device: Device) -> None:
        local = device.gids[0].value if device.gids else "::"
        self.log.complain(
            "misc/ibvwrap.cc:376",
            f"Call to ibv_modify_qp failed with 101 Network is unreachable, on dev {device.name}:1, curr state INIT,"
            f" next state RTR, local GID index 0, local GID {local}, remote GID {local}",
        )
        raise NcclError(f"unhandled system error, ibv_modify_qp on {device.name}: Network is unreachable")


def choose_gid(device: Device, index: str | None) -> Gid | None:
    """Return the RoCE v2 entry with an IPv4 address, as NCCL 2.21 and later choose it, or the one that was pinned."""
    usable = [gid for gid in device.gids if gid.address and gid.kind == "RoCE v2"]
    # NCCL ignores an empty number (param.cc).
    if index and index != "-1":
        usable = [gid for gid in usable if gid.index == int(index)]
    return usable[0] if usable else None
