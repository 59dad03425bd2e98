# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a rank shows: NCCL's files, its rails, and the evidence of a hang."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from .._fabric.physical_functions import read_int, read_link, read_text
from .._fabric.rdma import ERRORS, ROCE_V2, SCRIPT, delta, parse_counters, parse_state, read_devices
from .._nccl.causes import kernel_refuses_pins
from .._nccl.log import NcclLog
from .._nccl.verdict import Expectation, judge_all
from .gate import Rail

# Read the files that NCCL writes in the pod of a rank.

_BLOCK = 1 << 20
# start_rank.py names the files %h.%p: host name up to its first dot, and process number.
_NAME = re.compile(r"[\w-]+\.\d+", re.A)
Signature = tuple[tuple[str, int, int], ...]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file; raise OSError for anything else.

    The server owns the directory. Links are not followed, because they could name files that only this container has;
    nor is the directory, which the server can replace by a link at any moment.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield stream


@dataclass(frozen=True)
class Look:
    """The files at one moment.

    ``start`` is the name of the server's current start, empty if there is none. ``files`` are its regular files, oldest
    first. ``signature`` has the start, and then each file, and changes whenever one of them is written. ``changed``
    names a change to the evidence of this start that only the server can have made, empty if there is none: NCCL itself
    makes files and appends to them.
    """

    start: str
    files: tuple[Path, ...]
    signature: Signature
    changed: str


class NcclFiles:
    """The files of the server's current start, in the directory that start_rank.py made."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._offsets: dict[Path, int] = {}
        # Of each file of this start: its inode, and the largest size that was seen.
        self._known: dict[str, tuple[int, int]] = {}
        self._start = self._changed = ""

    def look(self) -> Look:
        """Return what is there now; raise OSError."""
        start, files, foreign = self._read()
        if start != self._start:
            self._start, self._known, self._changed = start, {}, ""
        gone = sorted(self._known.keys() - {path.name for path in files})
        changed = [*foreign, *(f"{name} is missing" for name in gone)]
        for path, found in files.items():
            inode, size = self._known.get(path.name, (found.st_ino, 0))
            if inode != found.st_ino:
                changed.append(f"{path.name} was replaced")
            elif found.st_size < size:
                changed.append(f"{path.name} shrank from {size} to {found.st_size} bytes")
            # What was seen first stays the evidence.
            self._known[path.name] = inode, max(size, found.st_size)
        # The time too: a file that was cut off may have its old size again.
        signature = ((start, 0, 0), *((path.name, found.st_size, found.st_mtime_ns) for path, found in files.items()))
        # What was changed once stays no evidence until the next start.
        self._changed = self._changed or "; ".join(changed)
        return Look(start, tuple(files), signature, self._changed)

    def _read(self) -> tuple[str, dict[Path, os.stat_result], list[str]]:
        """Return the name of the current start, its regular files, oldest first, and what no start makes."""
        starts = [path for path in self._base.iterdir() if path.is_dir() and not path.is_symlink()]
        # start_rank.py deletes the directory of the start before, and names the new one by its time.
        own = [path for path in starts if path.name.isascii() and path.name.isdigit()]
        foreign = [f"the directory {path.name!a} was added" for path in starts if path not in own]
        if not own:
            return "", {}, foreign
        first, *later = sorted(own, key=lambda path: int(path.name))
        foreign += [f"the directory {path.name} was added" for path in later]
        found = {path: path.lstat() for path in first.iterdir()}
        foreign += [f"{path.name!a} is no regular file" for path in found if not stat.S_ISREG(found[path].st_mode)]
        regular = [path for path in found if stat.S_ISREG(found[path].st_mode)]
        foreign += [f"the file {path.name!a} was added" for path in regular if not _NAME.fullmatch(path.name)]
        order = sorted(regular, key=lambda path: (found[path].st_mtime_ns, path.name))
        return first.name, {path: found[path] for path in order}, foreign

    def environment(self) -> bytes:
        """Return what start_rank.py wrote about the server's environment, empty if it can't be read."""
        try:
            with opened(self._base / "environment.json") as stream:
                return stream.read(_BLOCK)
        except OSError:
            return b""

    def new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were written since the last call, at most 1 MiB of each file; raise OSError."""
        _start, files, _foreign = self._read()
        self._offsets = {path: self._offsets.get(path, 0) for path in files}
        for path in files:
            # Opening thousands of files of processes that ended takes longer than reading the others.
            if self._offsets[path] == files[path].st_size:
                continue
            with opened(path) as stream:
                if self._offsets[path] > os.fstat(stream.fileno()).st_size:
                    # It was cut off.
                    self._offsets[path] = 0
                stream.seek(self._offsets[path])
                block = stream.read(_BLOCK)
                end = block.rfind(b"\n") + 1 or (len(block) if len(block) == _BLOCK else 0)
                self._offsets[path] += end
                yield block[:end]


# Read the links, addresses and counters of a rank's planned rails.


_SIOCGIFADDR = 0x8915


def _has_carrier(interface: str) -> bool:
    # The kernel refuses this read while the interface is set down.
    return read_int(Path("/sys/class/net", interface, "carrier")) == 1


def counted(sysfs_root: str) -> dict[str, Any]:
    """Return the counters of all devices and interfaces as ``parse_counters`` does; raise OSError, SubprocessError."""
    command = ["/bin/sh", "-c", SCRIPT, "sh", sysfs_root, "/sys"]
    # pylint: disable-next=ansible-bad-function
    ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return parse_counters(ran.stdout)


def link(interface: str) -> dict[str, int | None]:
    """Return the speed of a link, and how often it changed."""
    # Some drivers, veth for one, report a speed without carrier.
    return read_link("/sys", interface) | ({} if _has_carrier(interface) else {"speed": None})


def _gids(sysfs_root: str) -> list[tuple[str, str]]:
    """Return the IPv4 address of each RoCE v2 GID with its RDMA device."""
    gids = ((gid, device.name) for device in read_devices(sysfs_root) for port in device.ports for gid in port.gids)
    return [(gid.ipv4, name) for gid, name in gids if gid.type == ROCE_V2 and gid.ipv4]


def gids_and_mtus(rails: Iterable[Rail], sysfs_root: str) -> tuple[frozenset[str], dict[str, int]]:
    """Return the planned addresses that have a RoCE v2 GID, and the MTUs of the interfaces."""
    rails, gids = tuple(rails), _gids(sysfs_root)
    found = {rail.address for rail in rails if (rail.address, rail.device) in gids}
    mtus = {rail.interface: read_int(Path("/sys/class/net", rail.interface, "mtu")) for rail in rails}
    return frozenset(found), {name: mtu for name, mtu in mtus.items() if mtu is not None}


def _address(interface: str) -> str:
    """Return the IPv4 address of an interface of this pod, empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            # ifreq: a name of 16 bytes, then a sockaddr_in, whose address begins at its fifth byte.
            found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])


def completed(rails: Iterable[Rail], sysfs_root: str) -> tuple[Rail, ...]:
    """Return the rails; those of networks that others made with the address, device and MTU that the pod has."""
    rails = tuple(rails)
    if all(rail.address for rail in rails):
        return rails
    devices = dict(_gids(sysfs_root))
    found = []
    for rail in rails:
        address = rail.address or _address(rail.interface)
        mtu = rail.mtu or read_int(Path("/sys/class/net", rail.interface, "mtu")) or 0
        found.append(Rail(rail.device or devices.get(address, ""), rail.interface, address, mtu))
    return tuple(found)


def down(rails: Iterable[Rail], sysfs_root: str, rdma: bool) -> tuple[str, ...]:
    """Return what is wrong with each rail that has no link."""
    found = []
    for rail in rails:
        # An RDMA device of a VF has one port.
        state = parse_state(read_text(Path(sysfs_root, "class/infiniband", rail.device, "ports/1/state")))
        if not _has_carrier(rail.interface):
            found.append(f"{rail.interface} has no carrier")
        elif rdma and state not in (None, "ACTIVE"):
            found.append(f"{rail.device} has port state {state}")
    return tuple(found)


def sent(rails: Iterable[Rail], counted: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the bytes that the rails have sent by RDMA; None if no device counts them."""
    devices = [counted.get(rail.device, {}) for rail in rails]
    counts = [counters["xmit_bytes"] for counters in devices if "xmit_bytes" in counters]
    return sum(counts) if counts else None


# Judge the files of a rank, and read only those again that were written since.

# The node's, not the container's. Whether the server's locked memory is limited can't be seen from another container.
_MEMINFO = Path("/proc/meminfo")


class Judgement:
    """Judges the files of one rank.

    Each process of a server has a file, also after it ended, and NCCL only appends. So the logs of files that did not
    change are kept, and the number of files is not limited as the number of processes in one log is.
    ``changed`` names a file of this start whose bytes are not those that were read before.
    """

    def __init__(self, pod: str, rank: int, expect: Expectation) -> None:
        self._pod, self._places, self._expect = pod, {pod: rank}, expect
        # {start, name, size and time of a file: its log}
        self._read: dict[tuple[str, str, int, int], NcclLog] = {}
        # {name of a file: how many of its bytes were read, and their digest}
        self._digests: dict[str, tuple[int, bytes]] = {}
        self._start = self.changed = ""

    def judge(self, look: Look) -> dict[str, Any]:
        """Return the judgement of the files of a look; raise OSError."""
        if look.start != self._start:
            self._start, self._digests, self.changed = look.start, {}, ""
        written = zip(look.files, look.signature[1:], strict=True)
        keys = {(look.start, *signature): path for path, signature in written}
        self._read = {key: self._read.get(key) or self._log(path) for key, path in keys.items()}
        log = NcclLog.joined(self._read.values())
        for process in log.processes:
            # Whichever host name NCCL writes.
            process.pod = self._pod
        pins = {self._pod: "kernel"} if kernel_refuses_pins(_MEMINFO.read_text()) else {}
        return judge_all({self._pod: log}, self._expect, self._places, pins)

    def _log(self, path: Path) -> NcclLog:
        before, known = self._digests.get(path.name, (0, b""))
        digest, size = blake2b(), 0

        def hashed(limit: int) -> bytes:
            nonlocal size
            block = stream.read(limit)
            rest = max(0, before - size)
            digest.update(block[:rest])
            if size < before <= size + len(block) and digest.digest() != known:
                self.changed = self.changed or f"{path.name} was overwritten"
            digest.update(block[rest:])
            size += len(block)
            return block

        with opened(path) as stream:
            log = NcclLog(one_start=True).read(hashed)
        self._digests[path.name] = size, digest.digest()
        return log


# Collect what a rank shows while its group hangs, for the supervisor, which judges it before it restarts the group.
#
# There is no prompt in it and no environment: the counters of the rails, the last lines of NCCL's files, the names,
# states and stacks of the server's processes (roles/sglang/files/witness.py), and how many operations each rank of a
# communicator has begun, which NCCL itself knows (its RAS subsystem, ras.rst; as JSON since 2.28.7). PyTorch's recorder
# knows how many collectives each rank has called in a group, with any NCCL.

PAGE = "/hang"
_WITNESS = "witness"
# Seconds between two readings of the counters, and in which the other sources have to answer.
_COUNTS, _WAIT = 10.0, 10.0
# NCCL_RAS_ADDR of the first process of the pod; the others of the pod can't listen there.
_RAS = ("localhost", 28028)
# Seconds that the other ranks have to tell theirs
_ASK_RAS = b"TIMEOUT 3\nSET FORMAT json\nVERBOSE STATUS\n"
_NO_COMMA = re.compile(r'([^\s,{\[])(\n\s*")')
_FILES, _LINES, _WIDTH, _TAIL = 8, 3, 300, 1 << 13
# Bytes that are read of an answer; most communicators that are told
_MOST, _COMMUNICATORS = 1 << 20, 32
# The file of the witness about the GPUs, and the bytes that are read of it
GPU, GPU_MOST = "gpu.json", 1 << 12


def _everything(link: socket.socket) -> str:
    """Return all that the other side writes until it ends the connection; raise OSError."""
    until, read = time.monotonic() + _WAIT, b""
    while (part := link.recv(_MOST)) and len(read) < _MOST:
        read += part
        link.settimeout(max(0.01, until - time.monotonic()))
    return read.decode(errors="replace")


def ask_witness(base: Path) -> dict[str, Any]:
    """Return what the processes of the rank do; raise OSError or ValueError."""
    # The path of a socket may not be longer than 107 characters.
    directory = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as link:
            link.settimeout(_WAIT)
            link.connect(f"/proc/self/fd/{directory}/{_WITNESS}")
            return dict(json.loads(_everything(link)))
    finally:
        os.close(directory)


def ask_nccl(address: Any = _RAS) -> list[dict[str, Any]]:
    """Return the communicators of the group, as far as the processes of all ranks answer; raise OSError or ValueError.

    Each has ``hash`` and ``ranks`` with ``rank``, ``host`` and ``begun`` operations by name; a rank that does not
    answer NCCL has ``missing`` instead.
    """
    with socket.create_connection(address, timeout=_WAIT) as link:
        link.sendall(_ASK_RAS)
        text = _everything(link)
    # NCCL 2.28.9 forgets a comma after "nvml_dev" as soon as a rank is missing (seen 2026-11-29, tests/gpu/hang.py).
    told = json.loads(_NO_COMMA.sub(r"\1,\2", text[max(0, text.find("{")) :]))
    found = []
    for one in told["communicators"][:_COMMUNICATORS]:
        ranks = [
            {"rank": each["rank"], "host": each["host"], "begun": each["collective_counts"]} for each in one["ranks"]
        ]
        ranks += [{"rank": each["rank"], "host": each["host"], "missing": True} for each in one["missing_ranks"]]
        found.append({"hash": one["hash"], "ranks": ranks})
    return found


def last_words(base: Path) -> list[str]:
    """Return the last lines of the newest files that NCCL writes; raise OSError."""
    lines: list[str] = []
    for path in NcclFiles(base).look().files[-_FILES:]:
        with opened(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            lines += stream.read(_TAIL).decode(errors="replace").splitlines()[-_LINES:]
    return [line[:_WIDTH] for line in lines]


def of_gpus(base: Path) -> Any:
    """Return what the witness has counted of the GPUs since the server's start; raise OSError or ValueError."""
    try:
        with opened(base / GPU) as stream:
            return json.loads(stream.read(GPU_MOST))
    except FileNotFoundError:
        return {}


class Evidence:
    """Collects once at a time, because the server's processes are signalled for it."""

    def __init__(self, base: Path, planned: tuple[Rail, ...], sysfs_root: str) -> None:
        self._base, self._rails, self._sysfs = base, planned, sysfs_root
        self._lock = threading.Lock()

    def answer(self) -> tuple[int, str]:
        """Return status and text of the page."""
        if not self._lock.acquire(blocking=False):
            return HTTPStatus.TOO_MANY_REQUESTS, ""
        try:
            return HTTPStatus.OK, json.dumps(self.collect())
        finally:
            self._lock.release()

    def collect(self) -> dict[str, Any]:
        """Return everything; what can't be read is a reason in ``missing``."""
        sources: dict[str, Callable[[], Any]] = {
            "rails": self._moved,
            "witness": lambda: ask_witness(self._base),
            "communicators": ask_nccl,
            "nccl": lambda: last_words(self._base),
            "gpu": lambda: of_gpus(self._base),
        }
        found: dict[str, Any] = {"missing": {}, "at": int(time.time())}
        with ThreadPoolExecutor(len(sources)) as pool:
            for name, source in {name: pool.submit(read) for name, read in sources.items()}.items():
                try:
                    found[name] = source.result()
                except Exception as error:
                    # Any error: the other sources are worth as much.
                    found["missing"][name] = repr(error)[:_WIDTH]
        return found

    def _moved(self) -> list[dict[str, Any]]:
        before = counted(self._sysfs)["rdma"]
        time.sleep(_COUNTS)
        moved = delta(before, counted(self._sysfs)["rdma"])
        return [
            {
                "interface": rail.interface,
                "device": rail.device,
                "address": rail.address,
                "down": "; ".join(down([rail], self._sysfs, rdma=True)),
                "bytes": [moved.get(rail.device, {}).get(name) for name in ("xmit_bytes", "rcv_bytes")],
                "errors": {n: v for n, v in moved.get(rail.device, {}).items() if n in ERRORS and v},
            }
            for rail in self._rails
        ]
