# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what the processes of a rank do, when the sidecar asks. Runs beside the server in its container; stdlib only.

Only a process of the same container may see and signal the server's processes. A signal makes each process that runs
front_door.py write the stacks of its threads: names of functions, files and lines, and no values. Of a command line
only the name of the program is said, because the rest may have keys.

The sidecar reaches the socket in the directory of NCCL's files, which both containers have; no port is opened. There is
also a file with what NVML tells about the GPU since the server's start: its faults (Xid), for how long it was slowed
down, and its clock, power and temperature at the last look. NVML is only in the server's container.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET = "witness"
PROC = Path("/proc")
# Each process that runs front_door.py has a file there, named by its number.
STACKS = Path("/tmp/gb10-stacks")
SHOW_STACKS = signal.SIGUSR2
# Seconds over which the processor time is counted, and in which the stacks are written.
LOOK = 2.0
EVERY = 5.0
PROCESSES, THREADS, FRAMES = 16, 8, 8
# Bytes of an answer, and of a file of stacks that are read
MOST, READ = 1 << 15, 1 << 16
# The pipes and dumps of PyTorch's recorder (start_rank.py), the seconds in which a dump is there after its pipe was
# written to (PyTorch 2.11 took 5.8 to 7.4), the bytes that are read of it, and the groups that are told.
PIPE, DUMP, DUMPS, DUMP_MOST, GROUPS = "torch.pipe.", "torch.dump.", 7.5, 1 << 24, 24
FRAME = re.compile(r'  File "(?P<file>[^"\n]+)", line (?P<line>\d+|\?\?\?) in (?P<name>[^\n]+)')
CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.M)


# What the sidecar reads (_pod/watch.py), and the seconds between two looks at a clock
GPU, GPU_EVERY = "gpu.json", 10
# nvml.h: the event of a fault, and reasons for a lower clock: those of heat, and those of the power supply
XID, HOT, BRAKE = 0x8, 0x20 | 0x40, 0x8 | 0x80
SM, NOT_YET = 1, 10
# GPUs whose clocks are told
GPUS = 16
# A Spark with the wrong power contract stays between 500 and 850 MHz under load.
SLOW_MHZ, BUSY_PERCENT = 1000, 80


class Fault(ctypes.Structure):
    """nvmlEventData_t of nvml.h."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("code", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Use(ctypes.Structure):
    """nvmlUtilization_t of nvml.h, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpus:
    """Counts the faults of the container's GPUs, and the seconds in which one of them was slowed down."""

    def __init__(self, nvml: Any) -> None:
        self.xid: dict[int, int] = {}
        self.seconds = dict.fromkeys(("gpu_hot", "gpu_brake", "gpu_slow"), 0)
        self.now: list[dict[str, int]] = []
        self._nvml, self._events, count = nvml, ctypes.c_void_p(), ctypes.c_uint()
        self._devices: list[ctypes.c_void_p] = []
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise OSError("NVML does not answer")
        for number in range(count.value):
            device = ctypes.c_void_p()
            if not nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
                self._devices.append(device)
        made = nvml.nvmlEventSetCreate(ctypes.byref(self._events)) == 0
        # A GPU or MIG slice that tells no faults still tells its clocks.
        told = [nvml.nvmlDeviceRegisterEvents(each, ctypes.c_ulonglong(XID), self._events) for each in self._devices]
        self.tells_faults = made and 0 in told

    def look(self) -> None:
        """Wait for a fault, and then look at the clocks."""
        until = time.monotonic() + GPU_EVERY
        while self.tells_faults and (left := until - time.monotonic()) > 0:
            fault = Fault()
            status = self._nvml.nvmlEventSetWait_v2(self._events, ctypes.byref(fault), max(1, int(1000 * left)))
            if status == 0:
                self.xid[fault.code] = self.xid.get(fault.code, 0) + 1
            elif status != NOT_YET:
                self.tells_faults = False
        time.sleep(max(0.0, until - time.monotonic()))
        self.now = [self._read(device) for device in self._devices[:GPUS]]
        for name in {name for now in self.now for name in slowed(now)}:
            self.seconds[name] += GPU_EVERY

    def _read(self, device: ctypes.c_void_p) -> dict[str, int]:
        """Return what a GPU tells of itself now, without what it does not support."""
        reasons, use, told = ctypes.c_ulonglong(), Use(), [ctypes.c_uint() for _each in range(3)]
        clock, power, heat = map(ctypes.byref, told)
        found = {}
        # Its name before NVML 12.2, which later ones keep.
        if not self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, ctypes.byref(reasons)):
            found["reasons"] = reasons.value
        if not self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)):
            found["busy_percent"] = use.gpu
        if not self._nvml.nvmlDeviceGetClockInfo(device, SM, clock):
            found["mhz"] = told[0].value
        if not self._nvml.nvmlDeviceGetPowerUsage(device, power):
            found["watts"] = told[1].value // 1000
        if not self._nvml.nvmlDeviceGetTemperature(device, 0, heat):
            found["celsius"] = told[2].value
        return found


def slowed(now: dict[str, int]) -> Iterator[str]:
    """Yield why a GPU is slower than it could be."""
    reasons = now.get("reasons", 0)
    yield from ("gpu_hot",) * bool(reasons & HOT)
    yield from ("gpu_brake",) * bool(reasons & BRAKE and not reasons & HOT)
    yield from ("gpu_slow",) * (now.get("mhz", SLOW_MHZ) < SLOW_MHZ and now.get("busy_percent", 0) > BUSY_PERCENT)


def watch_gpus(base: Path, load: Callable[[str], Any] = ctypes.CDLL) -> None:
    """Keep the file of the GPUs; return if there is no NVML, as without a GPU."""
    with suppress(OSError, AttributeError):
        gpus, new = Gpus(load("libnvidia-ml.so.1")), base / f"{GPU}.new"
        while True:
            gpus.look()
            told = {"xid": gpus.xid, "tells_faults": gpus.tells_faults, "seconds": gpus.seconds, "now": gpus.now}
            new.write_text(json.dumps(told | {"at": int(time.time())}), encoding="ascii")
            # The sidecar runs as another user.
            new.chmod(0o644)
            new.replace(base / GPU)


@dataclass(frozen=True)
class Process:
    """A process: its state as in /proc (T is stopped, Z has ended), and its processor time in clock ticks."""

    pid: int
    parent: int
    started: str
    name: str
    state: str
    ticks: int


def name_of(words: list[str], short: str) -> str:
    """Return the name of a program: SGLang's own title, or the file of a script or program; ``short`` if it is gone."""
    if words[0].startswith("sglang::"):
        return words[0].split()[0][:60]
    program = words[0].rpartition("/")[2]
    script = words[1] if len(words) > 1 and program.startswith("python") else ""
    return (program if not script or script.startswith("-") else script.rpartition("/")[2])[:60] or short


def all_processes(proc: Path) -> Iterator[Process]:
    """Yield the processes of this container; one that ends meanwhile is left out."""
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                before, _end, after = (entry / "stat").read_text(errors="replace").rpartition(")")
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                own = after.split()
                name = name_of(words, before.partition("(")[2])
                yield Process(int(entry.name), int(own[1]), own[19], name, own[0], int(own[11]) + int(own[12]))


def processes(proc: Path, server: int) -> list[Process]:
    """Return the server and all that it started, without this program."""
    found = {one.pid: one for one in all_processes(proc) if one.pid != os.getpid()}
    own = {server}
    while more := {pid for pid, one in found.items() if one.parent in own} - own:
        own |= more
    return [found[pid] for pid in sorted(own & found.keys())]


def shows_stacks(proc: Path, pid: int, stacks: Path) -> bool:
    """Tell whether a process writes its stacks at the signal; the signal would end any other one."""
    with suppress(OSError):
        caught = CAUGHT.search((proc / str(pid) / "status").read_text(errors="replace"))
        return (stacks / str(pid)).exists() and bool(caught and int(caught[1], 16) >> (SHOW_STACKS - 1) & 1)
    return False


def threads(text: str) -> list[list[str]]:
    """Return the innermost frames of each thread of a file of stacks; the main thread is the last one."""
    found: list[list[str]] = []
    for line in text.splitlines():
        frame = FRAME.fullmatch(line)
        if frame and found:
            found[-1].append(f"{frame['name'][:60]} ({'/'.join(frame['file'].split('/')[-2:])[:80]}:{frame['line']})")
        elif not frame and line.endswith("(most recent call first):"):
            found.append([])
    return [frames[:FRAMES] for frames in found[-THREADS:]]


class Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and mappings; anything else of a pickle would run what it names."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse the class or function."""
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def ask_torch(stacks: Path) -> list[Path]:
    """Ask each process of PyTorch for its last collectives; return the files that they will write."""
    asked = []
    for pipe in sorted(stacks.glob(f"{PIPE}*.pipe"))[:PROCESSES]:
        dump = stacks / (DUMP + pipe.name[len(PIPE) : -len(".pipe")])
        # A process that has ended reads no more.
        with suppress(OSError):
            dump.unlink(missing_ok=True)
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "wb", buffering=0) as stream:
                stream.write(b"1\n")
            asked.append(dump)
    return asked


def calls(dump: bytes) -> dict[str, tuple[int, str]]:
    """Return how many collectives a process has called in each group of PyTorch, and the last one, from a dump.

    A group has the same name on all ranks. What a CUDA graph replays is not recorded. Raises whatever a pickle can that
    is not whole.
    """
    told = Plain(io.BytesIO(dump)).load()
    last = {entry["process_group"][0]: entry["profiling_name"][:60] for entry in told["entries"]}
    return {
        name[:60]: (int(counts["last_enqueued_collective"]), last.get(name, "")[:60])
        for name, counts in told["pg_status"].items()
    }


def recorded(dumps: list[Path], until: float) -> list[dict[str, Any]]:
    """Return how many collectives that process has called which is the last one in its group, and the last of them."""
    found: dict[str, tuple[int, str]] = {}
    waits = list(dumps)
    while waits and time.monotonic() < until:
        for dump in waits[:]:
            # It is there before it is whole.
            with suppress(OSError, EOFError, LookupError, TypeError, ValueError, AttributeError, pickle.PickleError):
                with dump.open("rb") as stream:
                    told = calls(stream.read(DUMP_MOST))
                found |= {name: min(row, found.get(name, row)) for name, row in told.items()}
                waits.remove(dump)
        time.sleep(0.2)
    rows = list(found.items())[:GROUPS]
    return [{"group": name, "called": called, "last": last} for name, (called, last) in rows]


def testimony(server: int, known: set[str], proc: Path = PROC, stacks: Path = STACKS) -> dict[str, Any]:
    """Return what the server's processes do, and which of the ``known`` names none of them has any more."""
    dumps, asked = ask_torch(stacks), time.monotonic()
    before = {(one.pid, one.started): one for one in processes(proc, server)}
    for pid, _started in before:
        if shows_stacks(proc, pid, stacks):
            with suppress(OSError):
                os.truncate(stacks / str(pid), 0)
                os.kill(pid, SHOW_STACKS)
    time.sleep(LOOK)
    found = []
    hertz = os.sysconf("SC_CLK_TCK")
    now = processes(proc, server)
    for one in now:
        earlier = before.get((one.pid, one.started), one)
        busy = round((one.ticks - earlier.ticks) / hertz / LOOK, 2)
        text = ""
        with suppress(OSError), (stacks / str(one.pid)).open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(READ)
        found.append({"name": one.name, "state": one.state, "busy": busy, "threads": threads(text)})
    alive = {one.name for one in now if one.state not in "ZX"}
    gone = sorted(known - alive)
    # A server has dozens of processes that compile, or do nothing.
    found.sort(key=lambda each: (each["state"] not in "TtZX", not each["threads"], -each["busy"]))
    said = {"processes": found[:PROCESSES], "gone": gone[:PROCESSES], "torch": recorded(dumps, asked + DUMPS)}
    while len(json.dumps(said)) > MOST:
        said["processes"].pop()
    return said


def listen(base: Path) -> socket.socket:
    """Return the socket in ``base``; its path may be longer than an address of a socket can be."""
    directory = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        made = socket.socket(socket.AF_UNIX)
        made.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        # The sidecar runs as another user.
        (base / SOCKET).chmod(0o666)
        made.listen(1)
    finally:
        os.close(directory)
    return made


def main() -> None:
    """Answer until the server, which is the parent of this process, has ended."""
    server, base = os.getppid(), Path(sys.argv[1])
    known: set[str] = set()
    # A GPU that does not answer any more may block its thread for ever, and only that.
    threading.Thread(target=watch_gpus, args=(base,), daemon=True).start()
    with listen(base) as listening:
        listening.settimeout(EVERY)
        while os.getppid() == server:
            known |= {one.name for one in processes(PROC, server) if one.name.startswith("sglang::")}
            with suppress(OSError):
                connection, _address = listening.accept()
                with connection:
                    connection.settimeout(EVERY)
                    connection.sendall(json.dumps(testimony(server, known)).encode())


if __name__ == "__main__":
    main()
