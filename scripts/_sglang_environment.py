# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the packages that a release's own resolver needs: torch without a GPU, and the release's transformers.

The cache has two kinds of directories, each made once: one for torch and SGLang's imports
(``sglang-environment.txt``; 0.6 GB to download, 1.6 GB installed), and a small one per transformers version that a
release pins. PyTorch's published build needs NVIDIA's libraries, which ``_nvidia_stubs.py`` replaces by stubs; nothing
is ever computed on a GPU.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import described

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "roles" / "sglang" / "files"
"""Directory of the program that also asks the image of a group."""
REQUIREMENTS = HERE / "sglang-environment.txt"
PYTHON = (3, 13)
"""The Python version for which the pinned list was made."""
PINS = re.compile(r"Requires-Dist: (transformers|tokenizers)\s*\(?([<>=!~][^;)\n]*)")
JIT_SOURCES = ("sglang/jit_kernel", "sglang/kernels/jit")
"""Kernel packages whose import searches for their source directories, which the cache leaves out."""

QUANTIZED: dict[str, dict[str, Any]] = {
    "modelopt_fp4": {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
}
"""What a config.json says of a quantization, as far as the resolver reads it."""


class SetupError(Exception):
    """The environment can't be created; the message says which part and why."""


def _install(target: Path, *words: str) -> None:
    """Install packages into a directory, completely or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "made"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        # The compiled files belong beside the sources: a virtual machine mounts the directory and cannot write them.
        own = os.environ | {"PYTHONPYCACHEPREFIX": ""}
        command += ["--target", str(made), *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=own)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
            raise SetupError(f"{' '.join(words)} can't be installed (is a package index reachable?): {last[0]}")
        if (made / "torch").is_dir():
            for name in ("include", "test", "share"):
                shutil.rmtree(made / "torch" / name, ignore_errors=True)
            subprocess.run([sys.executable, HERE / "_nvidia_stubs.py", made / "torch" / "lib"], check=True)
        made.rename(target)


def requirements(metadata: str) -> dict[str, str]:
    """Return the requirements on transformers and tokenizers in a package's metadata, in pip's format."""
    return {name: f"{name}{wanted.strip()}" for name, wanted in PINS.findall(metadata)}


def packages(cache: Path) -> Path:
    """Return the directory of torch and of what SGLang imports; create it if it is missing."""
    if sys.version_info[:2] != PYTHON:
        found = sys.version.split()[0]
        raise SetupError(f"this is Python {found}; use 3.13: .venv/bin/python, where `make venv` found it")
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    torch = cache / f"torch-{key}"
    with (cache / "environment.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not torch.exists():
            print("torch and what SGLang imports: 0.6 GB from the package index, once", file=sys.stderr, flush=True)
            _install(torch, "-r", str(REQUIREMENTS))
    return torch


def prepare(release: Path, cache: Path) -> list[Path]:
    """Return the directories that Python's path needs for a release's resolver; create the missing ones."""
    torch = packages(cache)
    for name in JIT_SOURCES:
        if (release / name).is_dir():
            for part in ("include", "csrc"):
                (release / name / part).mkdir(exist_ok=True)
    pins = requirements(next(release.glob("sglang-*.dist-info/METADATA")).read_text(encoding="utf-8"))
    overlay = cache / f"{pins['transformers'].replace('==', '-')}"
    with (cache / "environment.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not overlay.exists():
            print(f"{pins['transformers']} for {release.name}", file=sys.stderr, flush=True)
            _install_transformers(overlay, pins["transformers"])
    return [HERE, PROGRAMS, release, overlay, torch]


def _install_transformers(target: Path, wanted: str) -> None:
    """Install one version of transformers with the tokenizers that it requires."""
    first = target.with_name(f"{target.name}.first")
    shutil.rmtree(first, ignore_errors=True)
    _install(first, wanted)
    said = requirements(next(first.glob("transformers-*.dist-info/METADATA")).read_text(encoding="utf-8"))
    _install(target, wanted, said["tokenizers"])
    shutil.rmtree(first)


def question(argv: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question to the resolver about a model with the known arch, draft_arch, quantization, max_context."""
    more: dict[str, Any] = {}
    if known.get("quantization"):
        more["quantization_config"] = QUANTIZED.get(known["quantization"], {"quant_method": known["quantization"]})
    if known.get("max_context"):
        more["max_position_embeddings"] = known["max_context"]
    words = list(argv)
    if "--nnodes" in words and "--dist-init-addr" not in words and "--nccl-init-addr" not in words:
        words += ["--dist-init-addr", "127.0.0.1:20000"]
    asked = {"argv": words, "arch": known.get("arch") or "LlamaForCausalLM", "more": more}
    return asked | {"draft_arch": known.get("draft_arch")}


def ask(
    release: Path, cache: Path, questions: Sequence[Mapping[str, Any]], gpu: str = "gb10", count: int = 1
) -> list[dict[str, Any]]:
    """Resolve arguments with a release's own code; see ``_sglang_resolver.py`` for questions and answers.

    It pretends nodes with ``count`` known GPUs of the kind ``gpu``.
    """
    path = os.pathsep.join(str(entry) for entry in prepare(release, cache))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SGLANG_")}
    done = subprocess.run(
        [sys.executable, str(HERE / "_sglang_resolver.py"), json.dumps(described(gpu, count))],
        input="".join(json.dumps(dict(question)) + "\n" for question in questions),
        env=clean | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise SetupError(f"the resolver of {release.name} did not run: {last[0]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
