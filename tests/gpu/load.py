#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load a checkpoint of 7 GiB with real SGLang on a GPU, and compare what the load took with what the plan predicts.

    tests/gpu/load.py [CASE]...

Needs one NVIDIA GPU, 16 GiB of disk, and an environment in which `python3 -m sglang.launch_server --help` works. Each
case starts a server as a pod does, with start_rank.py, front_door.py and watch_load.py; the weights are random. The
GPU has a memory of its own, so only the loader's files are compared: what a load without mmap took of the host's
memory, less what the one with mmap took, against the plan's rule. `ended` and `alone` load without mmap in a cgroup
with as much memory as the load with mmap took and 3 GiB more; `alone` has no watch. `jobs-4` and `jobs-1` compile
FlashInfer's decode kernel anew with so many compilers, and what the second one takes is predicted from the first one.
`caches-30` and `caches-50` give the caches that part of the GPU, and count its memory too, as if both were one: what
the second one takes is predicted from the first one as the plan does.
Prints one JSON object per case; the exit status is the number of cases that failed.

Seen on one H200, 2026-11-29 (files of 0.41 GiB): 2.6 GiB with mmap; with no, 2, 4 and 8 threads 3.4, 4.0, 6.5 and 8.5,
predicted 3.8, 4.6, 6.3 and 9.6. In a cgroup of 5.4 GiB the watch ended the load of 8 threads, and without the watch the
kernel killed the scheduler. 2026-11-30: caches of 30 % took 50.3 GiB of 266.3, those of 50 % 77.7, predicted 77.8.
Four compilers took 1.2 GiB at once, the largest one 0.9, and all else with them 5.2; one compiler 4.6, predicted 4.9.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sglang_two_ranks as two
import torch
from safetensors.torch import save_file

FILES = two.ROOT / "roles" / "sglang" / "files"
SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
}
# Cases, by the threads of the loader
THREADS = {"mmap": None, "threads-0": 0, "threads-1": 1, "threads-2": 2, "threads-4": 4, "threads-8": 8}
CASES = (*THREADS, "ended", "alone", "caches-30", "caches-50", "jobs-4", "jobs-1")
READY_S, STOP, ROOM_GIB = 280, 10, 3.0
CGROUP = Path("/sys/fs/cgroup")


def write_model(place: Path) -> float:
    """Write the checkpoint, one file per layer; return the mean GiB of its files."""
    two.write_model(place, two.TARGET | SHAPE)
    hidden, wide, kv = SHAPE["hidden_size"], SHAPE["intermediate_size"], 1024
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }

    def made(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, device="cuda", dtype=torch.bfloat16) / 64).cpu()

    index: dict[str, str] = {}
    for layer in range(SHAPE["num_hidden_layers"] + 1):
        last = layer == SHAPE["num_hidden_layers"]
        names = {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
        if last:
            vocabulary = (SHAPE["vocab_size"], hidden)
            names = {
                "model.embed_tokens.weight": vocabulary,
                "lm_head.weight": vocabulary,
                "model.norm.weight": (hidden,),
            }
        file = f"model-{layer:05}.safetensors"
        save_file({name: made(*shape) for name, shape in names.items()}, place / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    os.sync()
    sizes = [path.stat().st_size for path in place.glob("*.safetensors")]
    return sum(sizes) / len(sizes) / 2**30


class Sizes(ctypes.Structure):
    """nvmlMemory_t of nvml.h."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpu:
    """The first GPU."""

    def __init__(self) -> None:
        self._nvml, self._device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)):
            raise OSError("NVML does not answer")

    def read(self) -> tuple[int, int, int]:
        """Return total bytes, and the free ones twice."""
        sizes = Sizes()
        self._nvml.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(sizes))
        return sizes.total, sizes.free, sizes.free


class Memory:
    """The memory that the servers have: a cgroup's or the machine's, and that of the GPU if it counts too."""

    def __init__(self, place: Path) -> None:
        self.file, self.group, self.gpu, self.unified = place / "meminfo", self._own_group(), Gpu(), False
        self._over = threading.Event()
        self._keep()
        threading.Thread(target=self._follow, daemon=True).start()

    @staticmethod
    def _own_group() -> Path | None:
        """Return a new cgroup with a limit, None if none can be made."""
        with suppress(OSError):
            if (CGROUP / "cgroup.controllers").exists():
                (CGROUP / "cgroup.subtree_control").write_text("+memory")
            top = CGROUP if (CGROUP / "cgroup.controllers").exists() else CGROUP / "memory"
            made = top / "gb10-load"
            made.mkdir(exist_ok=True)
            return made if any((made / name).exists() for name in ("memory.max", "memory.limit_in_bytes")) else None
        return None

    def limit(self, gib: float | None) -> None:
        """Limit the cgroup."""
        if self.group:
            new = (self.group / "memory.max").exists()
            text = str(int(gib * 2**30)) if gib else "max" if new else "-1"
            (self.group / ("memory.max" if new else "memory.limit_in_bytes")).write_text(text)

    def read(self) -> tuple[int, int, int]:
        """Return total, free and available bytes."""
        total, free, left = self._of_host()
        more = self.gpu.read() if self.unified else (0, 0, 0)
        return total + more[0], free + more[1], left + more[2]

    def _of_host(self) -> tuple[int, int, int]:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
        whole = found["MemTotal"], found["MemFree"], found["MemAvailable"]
        places = [self.group, CGROUP] if self.group else [CGROUP, CGROUP / "memory"]
        for place in places:
            for maximum, current in (
                ("memory.max", "memory.current"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            ):
                with suppress(OSError, ValueError, KeyError):
                    most, now = int((place / maximum).read_text()), int((place / current).read_text())
                    stat = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                    cached = int(stat["inactive_file"]) + int(stat["active_file"])
                    if most < whole[0]:
                        return most, max(0, most - now), max(0, most - now + cached)
        return whole

    def _keep(self) -> None:
        sizes = zip(("MemTotal", "MemFree", "MemAvailable"), self.read(), strict=True)
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{name}: {size // 1024} kB\n" for name, size in sizes))
        new.replace(self.file)

    def _follow(self) -> None:
        while not self._over.wait(0.05):
            self._keep()


class Trial:
    """A server's load, and what was seen meanwhile."""

    def __init__(self, place: Path, model: Path, memory: Memory) -> None:
        self.place, self.model, self.memory = place, model, memory
        self.programs = place / "programs"
        shutil.copytree(FILES, self.programs)
        # The phases of servers that run one after the other, and the memory of the cgroup.
        for program in ("watch_load.py", "start_rank.py", "front_door.py"):
            file = self.programs / program
            text = file.read_text().replace("/tmp/gb10-stacks", str(place / "stacks"))
            file.write_text(
                text.replace('MEMINFO, PROC = Path("/proc/meminfo")', f'MEMINFO, PROC = Path("{memory.file}")')
            )

    def run(self, name: str, words: list[str], stop: float, own: dict[str, str]) -> dict[str, Any]:
        """Start a server, wait until it is ready or has ended, and return what watch_load.py wrote."""
        logs = self.place / name
        logs.mkdir()
        shutil.rmtree(self.place / "stacks", ignore_errors=True)
        watched = (
            [] if stop < 0 else [f"--watch-load=--port {two.PORT} --stop {stop} --key k --kept {logs / 'kept.json'}"]
        )
        argv = [
            sys.executable, str(self.programs / "start_rank.py"), "--nccl-logs", str(logs), *watched,
            "--model", str(self.model), "--", sys.executable, str(self.programs / "front_door.py"),
            "sglang.launch_server", "--model-path", str(self.model), "--skip-tokenizer-init",
            "--host", "127.0.0.1", "--port", str(two.PORT), "--sampling-backend", "pytorch",
            "--grammar-backend", "none", "--skip-server-warmup", *words,
        ]  # fmt: skip
        env = os.environ | {"GB10_POD_IPS": "127.0.0.1", "PYTHONUNBUFFERED": "1"} | own
        kept, log = logs / "kept.json", self.place / f"{name}.log"
        seen: dict[str, Any] = {"answers": []}
        before = self.memory.read()
        if self.memory.group:
            argv = ["/bin/sh", "-c", f'echo $$ > {self.memory.group}/cgroup.procs; exec "$@"', "sh", *argv]
        begun, peak, server = time.monotonic(), 0.0, two.start(argv, env, log)
        try:
            while time.monotonic() - begun < READY_S and server.poll() is None and not kept.exists():
                asked = time.monotonic()
                subprocess.run(["/bin/true"], check=False)
                seen["answers"].append(time.monotonic() - asked)
                peak = max(peak, (before[2] - self.memory.read()[2]) / 2**30)
                time.sleep(0.1)
            time.sleep(4)
            told = json.loads(kept.read_text()) if kept.exists() else {}
        finally:
            two.stop([server])
            time.sleep(3)
        seen |= {"seconds": round(time.monotonic() - begun), "slowest_s": round(max(seen.pop("answers")), 2)}
        seen |= {"taken_gib": round(peak, 2), "status": server.returncode, "told": told}
        lines = log.read_text(errors="replace").splitlines()
        seen["said"] = [line for line in lines if "ended in its phase" in line][:1] if told else lines[-12:]
        return seen


def loader(threads: int | None) -> list[str]:
    """Return the options of SGLang for a loader without mmap, None for one with it."""
    if threads is None:
        return []
    given = {"enable_multithread_load": bool(threads)} | ({"num_threads": threads} if threads else {})
    return ["--weight-loader-disable-mmap", "--model-loader-extra-config", json.dumps(given)]


def files_beside(threads: int, files: int) -> int:
    """Return the plan's rule (plugin_utils/_serving/options.py), which this machine cannot import without Ansible."""
    return min(2 * threads + 1 if threads else 3, 2 * files)


class Comparison:
    """Runs the cases, and compares what they took with what was predicted."""

    def __init__(self, place: Path, size: float) -> None:
        self.memory = Memory(place)
        self.trial, self.size = Trial(place, place / "model", self.memory), size
        self.files = len(list((place / "model").glob("*.safetensors")))
        self.base = 0.0
        self.caches: dict[str, float] = {}
        self.compiled: dict[str, Any] = {}
        self.place = place

    def run(self, case: str) -> dict[str, Any]:
        """Run a case; the result has what was seen, and in ``failed`` whether that is not what was expected."""
        own: dict[str, str] = {}
        words, stop, room = ["--attention-backend", "triton"], 0.0, None
        self.memory.unified = case.startswith("caches-")
        if self.memory.unified:
            words += ["--cuda-graph-max-bs-decode", "128", "--mem-fraction-static", f"0.{case[7:]}"]
        else:
            words += ["--cuda-graph-max-bs-decode", "8", "--mem-fraction-static", "0.3", "--max-total-tokens", "8192"]
        if case in THREADS:
            words += loader(THREADS[case])
        elif case in ("ended", "alone"):
            words, stop, room = words + loader(8), float(STOP) if case == "ended" else -1.0, self.base + ROOM_GIB
        elif case.startswith("jobs-"):
            words[:2] = ["--prefill-attention-backend", "triton", "--decode-attention-backend", "flashinfer"]
            fresh = self.place / f"{case}-caches"
            own = {"MAX_JOBS": case[5:], "FLASHINFER_WORKSPACE_BASE": str(fresh), "TVM_FFI_CACHE_DIR": str(fresh)}
            # The kernel for tensor cores takes the compilers more than ten minutes.
            own["SGLANG_FLASHINFER_USE_TENSOR_CORE"] = "false"
            fresh.mkdir()
        if room and not (self.memory.group and self.base):
            return {"failed": True, "why": "no cgroup can be made, or case mmap was not run before"}
        self.memory.limit(room)
        seen = self.trial.run(case, words, stop, own)
        self.memory.limit(None)
        state = seen["told"].get("state")
        if state == "ready":
            self._compare(case, seen)
        return seen | {"failed": state != ("ended" if case == "ended" else "ready") and case != "alone"}

    def _compare(self, case: str, seen: dict[str, Any]) -> None:
        taken = {phase: peak["taken_gib"] for phase, peak in seen["told"]["phases"].items()}
        if case in THREADS:
            threads = THREADS[case]
            # It was looked at more often than watch_load.py looks.
            seen["counted_gib"] = seen["taken_gib"]
            self.base = seen["counted_gib"] if threads is None else self.base
            seen["predicted_gib"] = self.base + (
                0 if threads is None else files_beside(threads, self.files) * self.size
            )
        elif self.memory.unified:
            share, before = float(f"0.{case[7:]}"), self.caches
            seen["counted_gib"] = max(taken.values())
            seen["graphs_gib"] = round(taken["graphs"] - taken["caches"], 2)
            if before:
                # The plan's rule: SGLang's share of what was left after the start, and what came after the caches.
                bigger = before["start"] + share * self.memory.gpu.read()[1] / 2**30
                seen["predicted_gib"] = bigger + max(before.values()) - before["caches"]
            self.caches = taken
        elif case.startswith("jobs-"):
            told, before, jobs = seen["told"], self.compiled, int(case[5:])
            seen["counted_gib"] = taken["compile"]
            if before:
                # The plan's rule for fewer compilers (plugin_utils/_serving/options.py).
                less = before["compilers_gib"] - jobs * before["compiler_gib"]
                seen["predicted_gib"] = before["phases"]["compile"]["taken_gib"] - max(0.0, less)
            self.compiled = told
        if "predicted_gib" in seen:
            seen["error_percent"] = round(100 * (seen["predicted_gib"] / seen["counted_gib"] - 1), 1)


def main() -> int:
    """Run the cases; return how many failed."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        compared = Comparison(place, write_model(place / "model"))
        about = {"mean_gib": round(compared.size, 3), "files": compared.files}
        about |= {"cgroup": str(compared.memory.group), "total_gib": round(compared.memory.read()[0] / 2**30, 1)}
        print(json.dumps(about), flush=True)
        failed = 0
        for case in sys.argv[1:] or CASES:
            seen = compared.run(case)
            failed += seen["failed"]
            print(json.dumps({case: seen}), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
