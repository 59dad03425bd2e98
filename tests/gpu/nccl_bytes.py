#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the bytes that each rank of real NCCL sends and receives in decode passes; print rows of a fixture.

    tests/gpu/nccl_bytes.py RANKS… > tests/unit/fixtures/nccl-bytes/NAME.tsv

Needs one NVIDIA GPU, PyTorch and a C compiler. Each rank has its own NCCL_HOSTID, so NCCL takes the ranks for hosts
with one GPU each and moves everything through sockets, where a library counts what libnccl sends and receives. In
table b NCCL is told that the network has 200 Gb/s, as that of a Spark. A pass is one all-reduce per block and one more,
and an all-gather of the logits; ranks that share a GPU take turns, so bytes are right and times are not.
"""

import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
static uint64_t *total;
__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("COUNTED"), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, 8)) abort();
  total = mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}
static ssize_t add(ssize_t moved, void *caller) {
  Dl_info from;
  if (moved > 0 && dladdr(caller, &from) && strstr(from.dli_fname, "libnccl"))
    __atomic_add_fetch(total, moved, __ATOMIC_RELAXED);
  return moved;
}
ssize_t send(int fd, const void *from, size_t size, int flags) {
  return add(sendto(fd, from, size, flags, 0, 0), __builtin_return_address(0));
}
ssize_t recv(int fd, void *to, size_t size, int flags) {
  ssize_t moved = recvfrom(fd, to, size, flags, 0, 0);
  return flags & MSG_PEEK ? moved : add(moved, __builtin_return_address(0));
}
"""
SHAPES = [(2048, 24, 151936), (5120, 24, 151936)]
TOKENS = (1, 4, 16)


def rank(number: int, world: int, counted: Path) -> None:
    """Reduce and gather as a decode pass does, and print the bytes of each pass."""
    torch.cuda.set_device(0)
    meet = torch.distributed.TCPStore("127.0.0.1", 20400, world, is_master=number == 0)
    torch.distributed.init_process_group("nccl", store=meet, rank=number, world_size=world)
    torch.distributed.all_reduce(torch.ones(1, device="cuda"))
    with counted.open("rb") as stream:
        total = mmap.mmap(stream.fileno(), 8, access=mmap.ACCESS_READ)
        for step, (hidden, blocks, vocabulary, tokens) in enumerate((*s, t) for s in SHAPES for t in TOKENS):
            part = torch.ones(tokens * hidden, dtype=torch.bfloat16, device="cuda")
            logits = torch.ones(tokens * vocabulary // world, dtype=torch.bfloat16, device="cuda")
            whole = torch.empty(world * logits.numel(), dtype=torch.bfloat16, device="cuda")

            def together(name: str) -> None:
                # The others' proxies may still send what this rank has.
                torch.cuda.synchronize()
                meet.add(name, 1)
                while int(meet.add(name, 0)) < world:
                    time.sleep(0.02)
                time.sleep(0.3)

            together(f"before {step}")
            before = int.from_bytes(total[:8], "little")
            for _block in range(blocks + 1):
                torch.distributed.all_reduce(part)
            torch.distributed.all_gather_into_tensor(whole, logits)
            together(f"after {step}")
            moved = int.from_bytes(total[:8], "little") - before
            print(world, number, hidden, blocks, vocabulary, tokens, moved, sep="\t", flush=True)
            together(f"said {step}")


def measure(world: int, table: str, place: Path, topology: Path) -> None:
    """Print the rows of all ranks, and as comments what NCCL says of its choices and trees."""
    ranks = []
    for number in range(world):
        own = os.environ | {
            "LD_PRELOAD": str(place / "counter.so"),
            "COUNTED": str(place / f"counted{number}"),
            "NCCL_HOSTID": f"node{number}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_RAS_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,TUNING,ENV",
            "NCCL_DEBUG_FILE": str(place / f"log{number}"),
        }
        own |= {"NCCL_TOPO_FILE": str(topology)} if table == "b" else {"NCCL_TOPO_DUMP_FILE": str(topology)}
        argv = [sys.executable, __file__, "--rank", str(number), str(world), own["COUNTED"]]
        ranks.append(subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, text=True))
    for one in ranks:
        for line in one.communicate(timeout=200)[0].splitlines():
            if line.startswith(f"{world}\t"):
                print(f"{table}\t{line}", flush=True)
    for number in range(world):
        lines = (place / f"log{number}").read_text().splitlines()
        for line in dict.fromkeys(re.sub(r"^\S+ \[0\] ", "", line) for line in lines):
            if "NCCL INFO Trees" in line or (number == 0 and " -> Algo " in line):
                print(f"# {table} {world} {number}: {line}", flush=True)


def main() -> None:
    """Measure each number of ranks without and with 200 Gb/s."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "counter.c").write_text(COUNTER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", place / "counter.so", place / "counter.c", "-ldl"], check=True)
        for world in map(int, sys.argv[1:]):
            topology = place / "topology.xml"
            measure(world, "a", place, topology)
            text = re.sub(r'(<net [^>]*speed=)"\d+"', r'\1"200000"', topology.read_text())
            topology.write_text(text)
            measure(world, "b", place, topology)
            topology.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
