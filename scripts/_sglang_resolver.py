# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run an SGLang release's complete argument resolution as on a GB10, with the real torch and transformers.

``_sglang_environment.py`` starts it with the release, its transformers and torch on the path. It reads questions from
standard input, one JSON object per line (``argv``, ``arch``, ``draft_arch``, ``config``, ``draft_config``), and answers
each with ``{"accepted": …, "message": …, "changes": {key: [given, becomes]}, "engine": …}``; two answers with the same
``engine`` are one engine. The model is a directory with only a ``config.json``: that of the question, otherwise the
defaults of transformers for the architecture.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _sglang_release import VALUES, Stub

GIB = 2**30
MEMORY = 119
"""GiB that a GB10 reports as GPU memory, out of 128 GB that CPU and GPU share."""

KERNELS = frozenset({"flashinfer", "gguf", "jsonschema", "quack", "scipy", "sgl_kernel", "soundfile", "torchaudio",
                     "torchvision", "triton", "vllm"})  # fmt: skip
"""Packages that are imported but never called. Packages whose presence SGLang tests before using must not be here."""


SAYS_NOTHING = frozenset({"model_path", "random_seed", "served_model_name", "tokenizer_path"})
"""Settings that change at every start, or that contain the name of the temporary model directory."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Returns stubs for kernels that are not installed, and modules of kernels of which SGLang reads a constant."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        wanted = fullname in VALUES if self.names is None else fullname.partition(".")[0] in self.names
        # The packages that the release's parser replaces by stubs are installed here, except kernels.
        if self.names is None and not fullname.startswith("sglang."):
            wanted = False
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = Stub(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        for name, value in VALUES.get(module.__name__, {}).items():
            setattr(module, name, value)


def pretend_gb10() -> None:
    """Answer SGLang's questions about the machine as a GB10 does."""
    torch: Any = importlib.import_module("torch")
    properties = types.SimpleNamespace(
        name="NVIDIA GB10", major=12, minor=1, total_memory=MEMORY * GIB, multi_processor_count=48, warp_size=32
    )
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (12, 1),
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "mem_get_info": (MEMORY * GIB, MEMORY * GIB),
        "empty_cache": None,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *_args, _value=value, **_kwargs: _value)
    torch.version.cuda = "13.0"


def model_type(arch: str) -> str:
    """Return transformers' name for an architecture; raise ValueError if this transformers doesn't know it."""
    modeling_auto = importlib.import_module("transformers.models.auto.modeling_auto")
    for name, mapping in vars(modeling_auto).items():
        if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES"):
            for kind, classes in mapping.items():
                if arch == classes or (isinstance(classes, tuple) and arch in classes):
                    return str(kind)
    raise ValueError(f"the transformers of this release does not know {arch}; give the model's config.json")


PARTS: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {
        "text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    }
}
"""Parts that a model type needs in its config.json, because transformers has no default for them."""


def write_model(directory: Path, arch: str, config: Mapping[str, Any] | None) -> Path:
    """Write a model directory that contains only a configuration."""
    directory.mkdir()
    kind = "" if config else model_type(arch)
    known = config or {"architectures": [arch], "model_type": kind, "torch_dtype": "bfloat16", **PARTS.get(kind, {})}
    (directory / "config.json").write_text(json.dumps(known))
    return directory


def value_after(argv: list[str], *flags: str) -> int | None:
    """Return the index of a flag's value in the words."""
    return next((place + 1 for place, word in enumerate(argv) if word in flags and place + 1 < len(argv)), None)


def resolve(server_args: Any, question: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Return every value that the release changes, and a digest of the result; raise what the release raises."""
    argv = list(question["argv"])
    place = value_after(argv, "--model-path", "--model")
    if place is None:
        raise ValueError("the command line has no --model-path")
    argv[place] = str(write_model(scratch / "model", question["arch"], question.get("config")))
    draft = value_after(argv, "--speculative-draft-model-path", "--speculative-draft-model")
    if draft is not None:
        argv[draft] = str(
            write_model(scratch / "draft", question.get("draft_arch") or question["arch"], question.get("draft_config"))
        )
    parser = argparse.ArgumentParser()
    server_args.add_cli_args(parser)
    parsed = parser.parse_args(argv)
    given = dict(vars(parsed))
    made = server_args.from_cli_args(parsed)
    if hasattr(made, "resolve_once"):
        made.resolve_once()
    made.check_server_args()
    values = made.resolved_dict() if hasattr(made, "resolved_dict") else vars(made)
    known = {key: value for key, value in values.items() if key in given and key not in SAYS_NOTHING}
    text = json.dumps(known, sort_keys=True, default=str).replace(str(scratch), "")
    return {
        "changes": {key: [given[key], value] for key, value in known.items() if given[key] != value},
        "engine": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def judge(server_args: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return {"accepted": True, "message": "", **resolve(server_args, question, Path(scratch))}
        except SystemExit:
            message = "refused by the parser"
        except Exception as problem:  # whatever ends the start of the server is an answer
            # An assertion without a message is reported by its source line.
            text = str(problem).replace(scratch + "/", "") or traceback.extract_tb(problem.__traceback__)[-1].line
            message = f"{type(problem).__name__}: {text}"
    return {"accepted": False, "message": message, "changes": {}, "engine": ""}


def main() -> int:
    """Answer every line of standard input."""
    logging.disable(logging.CRITICAL)
    os.environ.update(TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    sys.meta_path.insert(0, _Finder(None))
    sys.meta_path.append(_Finder(KERNELS))
    with contextlib.redirect_stdout(sys.stderr):
        pretend_gb10()
        server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            answer = judge(server_args, json.loads(line))
        print(json.dumps(answer, default=str), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
