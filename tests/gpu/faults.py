#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let a program fail on a real GPU, and print what the witness of a rank counts of it through NVML.

    tests/gpu/faults.py

Needs one NVIDIA GPU and PyTorch. A child process keeps the GPU busy, and another one writes to an address that has no
memory, which the driver reports as Xid 31 or 13. Prints one JSON object: the file that the sidecar reads, and the
kernel's own lines if they may be read. The exit status is 0 only if a fault was counted, and no slow second.

Seen on one H200, 2026-11-29: one Xid 31, which NVML told and the kernel logged; no slow second.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import sglang_two_ranks as two

sys.path.insert(0, str(two.ROOT / "roles" / "sglang" / "files"))

import witness

BUSY = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
until = time.monotonic() + 25
while time.monotonic() < until:
    (a @ a).sum().item()
"""
FAILS = """
import torch
torch.zeros(1, device="cuda")
nowhere = torch._C._construct_storage_from_data_pointer(0x7E0000000000, torch.device("cuda:0"), 1 << 20)
torch.empty(0, dtype=torch.uint8, device="cuda").set_(nowhere, 0, (1 << 20,)).fill_(1)
torch.cuda.synchronize()
"""


def run(program: str) -> str:
    """Run a program in a process of its own; return the last line of its errors."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    return (done.stderr.strip().splitlines() or [""])[-1]


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        kept = Path(name) / witness.GPU
        threading.Thread(target=witness.watch_gpus, args=(Path(name),), daemon=True).start()
        seen: dict[str, object] = {"busy": run(BUSY), "failed": run(FAILS)}
        time.sleep(2 * witness.GPU_EVERY + 2)
        seen["counted"] = counted = json.loads(kept.read_text()) if kept.exists() else {}
    kernel = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    seen["kernel"] = [line for line in kernel.splitlines() if "Xid" in line][-5:]
    print(json.dumps(seen, indent=1))
    return not (counted.get("xid") and not any(counted["seconds"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
