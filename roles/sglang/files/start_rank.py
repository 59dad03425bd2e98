# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare the container of a rank, then start its server. Runs in the pod; standard library only.

NCCL gets a new directory for its log files at every start of the container. Only NCCL writes there, so a prompt that
the server prints cannot pass for a statement of NCCL, and no file of an earlier process can pass for a current one.

Where GPU and CPU share one memory, SGLang takes its share of what is available when it starts (psutil's available
memory, which is MemAvailable; sglang/srt/utils/common.py of 0.5.16). A server that was killed may hold tens of GiB for
some seconds more. Starting then gives a cache that is too small for as long as the server runs, or no memory at all.

A patch hook is a Python file that changes the installed packages and verifies the change. It prints one line and exits
with 0 if the patch was applied or was not needed. Any other status stops the start: no server is better than an
unpatched one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from ipaddress import IPv6Address
from pathlib import Path

# Memory that becomes free at this rate is still being given back.
LOOK_EVERY = 2
GROWS_GIB = 0.25
# The driver gives a killed server's memory back in parts, with pauses. A node with the least that the plan expects
# has no such part left; on any other one, memory that did not grow for these seconds is all that will come.
PAUSE = 30
SAY_EVERY = 20
# Loads of one launch that watch_load.py ended in a row, after which another one would end like them.
TRIES = 3
# Seconds in which the unit of node_tuning_drop_caches, which looks every second, has emptied a full page cache.
CACHES_DROPPED = 10
LARGE = 2 << 20
SIOCGIFADDR = 0x8915
# Seconds for the GIDs of an address that the pod has just got.
GIDS = 30
# Variables that can keep NCCL from writing its transport. The plan refuses them, but the image may set them too.
HIDING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_CONF_FILE", "NCCL_ENV_PLUGIN", "NCCL_HOSTID")
INDEX = "model.safetensors.index.json"
WITNESS = Path(__file__).with_name("witness.py")
WATCH = Path(__file__).with_name("watch_load.py")
# witness.py reads the stacks that each process of front_door.py writes there.
STACKS = Path("/tmp/gb10-stacks")
# Each process of PyTorch makes a pipe, and writes its last collectives when something is written to it (DumpPipe.hpp).
# The second name of the dump is that of PyTorch before 2.9.
RECORDER = {
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{STACKS}/torch.pipe.",
    "TORCH_FR_DUMP_TEMP_FILE": f"{STACKS}/torch.dump.",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{STACKS}/torch.dump.",
}


class RefusedError(Exception):
    """The server can't work here; the text has the figures and the remedy."""


def fresh_directory(base: Path) -> Path:
    """Delete what earlier starts of this container left in ``base``, and return a new directory; raise OSError."""
    for old in base.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    made = base / str(time.time_ns())
    made.mkdir()
    # The sidecar, which reads the files, runs as another user.
    made.chmod(0o755)
    # Beside the directory: in it, the sidecar takes every file for one of NCCL's.
    said = base / "environment.json"
    said.write_text(json.dumps({name: os.environ[name] for name in HIDING if name in os.environ}), encoding="utf-8")
    said.chmod(0o644)
    return made


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this pod; raise OSError if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        # ifreq: a name of 16 bytes, then a sockaddr_in, whose address begins at its fifth byte.
        return socket.inet_ntoa(fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", interface.encode()))[20:24])


def device_of(address: str, sysfs: Path) -> str:
    """Return the RDMA device with a RoCE v2 GID of an address, empty if there is none; raise OSError."""
    # not IPv6Address.exploded, which has written the last 32 bits as an IPv4 address since Python 3.13
    gid = IPv6Address(f"::ffff:{address}").packed.hex(":", 2)
    for path in sorted(sysfs.glob("class/infiniband/*/ports/*/gids/*")):
        kind = path.parent.with_name("gid_attrs") / "types" / path.name
        if path.read_text(encoding="ascii").strip() == gid and kind.read_text(encoding="ascii").strip() == "RoCE v2":
            return path.parents[3].name
    return ""


def find_devices(interfaces: Sequence[str], sysfs: Path, timeout: float) -> list[str]:
    """Return the RDMA device of each interface; raise RefusedError if one has none, OSError if it has no address."""
    until = time.monotonic() + timeout
    found = {name: device_of(address_of(name), sysfs) for name in interfaces}
    # The kernel makes the GIDs of an address some time after it.
    while not all(found.values()) and time.monotonic() < until:
        time.sleep(0.5)
        found = {name: device_of(address_of(name), sysfs) for name in interfaces}
    if lacking := [f"{name} ({address_of(name)})" for name in found if not found[name]]:
        raise RefusedError(
            f"no RDMA device has a RoCE v2 GID for the address of {', '.join(lacking)}, so NCCL would use TCP. The"
            " server is not started. Ask the owner of the network in gb10_networks whether it gives VFs with RDMA, and"
            " for the resource that gives their devices."
        )
    return list(found.values())


def start_witness(base: Path) -> None:
    """Start the program that says what this rank's processes do; without it, only a hang is explained less."""
    with contextlib.suppress(OSError):
        STACKS.mkdir(mode=0o700, exist_ok=True)
        os.environ.update(RECORDER)
        quiet = subprocess.DEVNULL
        # It becomes a child of the server, and ends with it.
        subprocess.Popen([sys.executable, str(WITNESS), str(base)], stdin=quiet, stdout=quiet, stderr=quiet)


def start_watch(words: Sequence[str], models: Sequence[Path]) -> None:
    """Start the program that watches the memory of the load; what it says is in the log of the server."""
    with contextlib.suppress(OSError):
        STACKS.mkdir(mode=0o700, exist_ok=True)
        local = [word for model in models for word in ("--model", str(model))]
        subprocess.Popen([sys.executable, str(WATCH), *words, *local], stdin=subprocess.DEVNULL)


def size_of(meminfo: Path, name: str) -> float:
    """Return a line of ``meminfo`` in GiB; raise OSError or ValueError."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", meminfo.read_text(encoding="ascii"), re.M)
    if not found:
        raise ValueError(f"{meminfo} has no line {name}")
    return int(found[1]) / 2**20


def available(meminfo: Path) -> float:
    """Return the GiB that the node can give to a new process; raise OSError or ValueError."""
    return size_of(meminfo, "MemAvailable")


def in_large_blocks(buddyinfo: str, page: int) -> float:
    """Return the GiB of free memory in blocks of 2 MiB or more; each column counts blocks of a power of two pages."""
    free = 0
    for line in buddyinfo.splitlines():
        for order, count in enumerate(line.split()[4:]):
            size = page << order
            free += int(count) * size if size >= LARGE else 0
    return free / 2**30


def size_of_weights(models: Sequence[Path], shares: int) -> float:
    """Return the GiB of one of so many shares of the models' weights, 0 if they are not there or can't be read."""
    size = 0
    for model in models:
        try:
            if (model / INDEX).exists():
                index = json.loads((model / INDEX).read_text(encoding="utf-8"))
                files = [model / name for name in set(index["weight_map"].values())]
            else:
                files = list(model.glob("*.safetensors"))
            size += sum(file.stat().st_size for file in files)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return 0
    return size / shares / 2**30


def drop_from_cache(models: Sequence[Path]) -> None:
    """Drop the models' own files from the page cache. A reader of a file may do that; one that can't be read stays."""
    for file in (file for model in models for file in model.rglob("*") if file.is_file()):
        with contextlib.suppress(OSError), file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def wait_for_caches(models: Sequence[Path], timeout: float, meminfo: Path, buddyinfo: Path) -> str:
    """Return how much memory CUDA can take.

    A full page cache is first left to the unit of the node. After that, the files that the server will read are
    dropped: right after a download, they are the page cache. Raise RefusedError if it is still full after the timeout,
    OSError or ValueError.
    """
    begun = time.monotonic()
    while True:
        total, free = size_of(meminfo, "MemTotal"), size_of(meminfo, "MemFree")
        cached = available(meminfo) - free
        full = free < total / 10 <= cached
        if not full or time.monotonic() - begun >= timeout:
            break
        if time.monotonic() - begun >= CACHES_DROPPED:
            drop_from_cache(models)
        time.sleep(LOOK_EVERY)
    large = ""
    if os.access(buddyinfo, os.R_OK):
        gib = in_large_blocks(buddyinfo.read_text(encoding="ascii"), os.sysconf("SC_PAGE_SIZE"))
        large = f", {gib:.1f} of them in blocks of 2 MiB and more"
    text = f"memory: {free:.1f} GiB are free{large}, and caches hold {cached:.1f}"
    if full:
        raise RefusedError(
            f"{text}. The server is not started, because CUDA takes only free memory, so the load would fail or stall"
            " the node. Let the node drop its caches (node_tuning_drop_caches: true, playbooks/tune.yml), drop them"
            " once as root on the node (sync; echo 3 > /proc/sys/vm/drop_caches), or start anyway with"
            " sglang_memory_timeout: 0."
        )
    return text


def wait_for_memory(weights: float, fraction: float, least: float, most: float, timeout: float, meminfo: Path) -> str:
    """Return the figures when the weights fit and no more memory becomes free, or after the timeout.

    Memory below the planned size that stopped growing may grow again, so the start waits a while longer for it.

    Raise RefusedError if the weights do not fit then. Sizes are in GiB: SGLang takes ``fraction`` of what is available
    when it loads the weights, by the plan's estimate between ``least`` and ``most``.
    """
    started = said = grew = time.monotonic()
    before = 0.0
    planned = " to ".join(f"{max(0.0, size * fraction - weights):.0f}" for size in (least, most))
    while True:
        now = available(meminfo)
        left = now * fraction - weights
        size = f"{weights:.1f} GiB of weights" if weights else "weights, whose size is unknown,"
        text = (
            f"memory: {now:.1f} GiB are available; {fraction:.2f} of that without {size} leave"
            f" {left:.1f} GiB for caches, and the plan expects {planned} after CUDA and NCCL took theirs"
        )
        over = time.monotonic() - started >= timeout
        if now - before >= GROWS_GIB:
            grew = time.monotonic()
        settled = before > 0 and now - before < GROWS_GIB and now >= least
        if left > 0 and (over or settled or time.monotonic() - grew >= PAUSE):
            return text
        if over:
            raise RefusedError(
                f"{text}. The server is not started, because it would run out of memory. Look for what else uses this"
                " node's memory (ps, nvidia-smi), or start anyway with sglang_memory_timeout: 0."
            )
        if before and time.monotonic() - said >= SAY_EVERY:
            print(f"{text}; waiting for more", flush=True)
            said = time.monotonic()
        before = now
        time.sleep(LOOK_EVERY)


def ended_before(kept: Path | None, key: str) -> tuple[int, float]:
    """Return how often in a row watch_load.py ended the load of this launch here, and the GiB taken before the last."""
    if kept is None:
        return 0, 0.0
    try:
        told = json.loads(kept.read_text(encoding="ascii"))
        same = (told["state"], told["key"]) == ("ended", key)
        return (int(told["times"]), float(told["before_gib"])) if same else (0, 0.0)
    except (OSError, ValueError, LookupError, TypeError):
        return 0, 0.0


def refuse_again(watched: Sequence[str], meminfo: Path) -> None:
    """Raise RefusedError, OSError or ValueError if the load had to be ended too often with as little memory as now."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--key", default="")
    known, _others = parser.parse_known_args(watched)
    times, before = ended_before(known.kept, known.key)
    taken = size_of(meminfo, "MemTotal") - available(meminfo)
    if times >= TRIES and taken > before - GROWS_GIB:
        raise RefusedError(
            f"memory: the load was ended {times} times in a row before the node ran out of memory, and {taken:.1f} GiB"
            f" are taken now, as before it ({before:.1f}). The server is not started. Change its settings, free memory"
            " on the node (ps, nvidia-smi), or start anyway with sglang_memory_timeout: 0."
        )


def end_first() -> None:
    """Let the kernel and earlyoom end this server before anything else when memory runs out; only it has much to give.

    Kubernetes spares a container in proportion to the memory that it requests (oom_score_adj), so it would end small
    helpers instead. Every process may raise its own value.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl-logs", required=True, type=Path, metavar="DIRECTORY")
    parser.add_argument("--witness", action="store_true", help="start the program that tells about a hang")
    figures = ("WEIGHTS_GIB", "FRACTION", "LEAST_GIB", "MOST_GIB", "TIMEOUT")
    parser.add_argument("--watch-load", metavar="WORDS", help="watch the memory of the load: options of watch_load.py")
    parser.add_argument("--memory", nargs=5, type=float, metavar=figures, help="wait until the weights fit")
    parser.add_argument("--model", action="append", default=[], type=Path, metavar="DIRECTORY")
    parser.add_argument("--shares", type=int, default=1, help="GPUs that share the weights")
    parser.add_argument("--meminfo", type=Path, default=Path("/proc/meminfo"), help="file with the node's memory")
    parser.add_argument(
        "--rails", type=lambda text: text.split(","), metavar="INTERFACES", help="NCCL uses their devices"
    )
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="DIRECTORY")
    parser.add_argument("--patch", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = [word for number, word in enumerate(options.command) if number or word != "--"]
    try:
        # NCCL replaces %h with the host name and %p with the process number: each process has its own file.
        os.environ["NCCL_DEBUG_FILE"] = f"{fresh_directory(options.nccl_logs)}/%h.%p"
    except OSError as error:
        sys.exit(f"no new directory for NCCL's logs can be made, so the server is not started: {error}")
    if options.rails:
        try:
            os.environ["NCCL_IB_HCA"] = "=" + ",".join(find_devices(options.rails, options.sysfs, GIDS))
            print(f"NCCL_IB_HCA {os.environ['NCCL_IB_HCA']}, of {', '.join(options.rails)}", flush=True)
        except (OSError, RefusedError) as error:
            sys.exit(f"the RDMA devices of {', '.join(options.rails)}: {error}")
    if options.memory:
        try:
            weights, fraction, least, most, timeout = options.memory
            weights = weights or size_of_weights(options.model, options.shares)
            print(wait_for_memory(weights, fraction, least, most, timeout, options.meminfo), flush=True)
            refuse_again((options.watch_load or "").split(), options.meminfo)
            print(wait_for_caches(options.model, timeout, options.meminfo, Path("/proc/buddyinfo")), flush=True)
        except (OSError, ValueError) as error:
            sys.exit(f"the node's memory can't be read, so the server is not started: {error}")
        except RefusedError as error:
            sys.exit(str(error))
    for patch in options.patch:
        print(f"patch {patch.stem}: running", flush=True)
        done = subprocess.run([sys.executable, str(patch)], check=False)
        if done.returncode:
            sys.exit(f"patch {patch.stem} failed with exit code {done.returncode}; the server is not started")
    if options.witness:
        start_witness(options.nccl_logs)
    if options.watch_load:
        start_watch([str(options.nccl_logs), *options.watch_load.split()], options.model)
    end_first()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
