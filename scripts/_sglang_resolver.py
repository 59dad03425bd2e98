# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run an SGLang release's complete argument resolution as on a GPU, with the real torch and transformers.

``_sglang_environment.py`` starts it with the release, its transformers and torch on the path, and with the GPU to
pretend as its argument. It reads questions from standard input, one JSON object per line (``argv``, ``arch``,
``draft_arch``, ``config``, ``more``, ``draft_config``), and answers each with ``{"verdict": …, "message": …,
"changes": {key: [given, becomes]}, "resolved": …, "engine": …}``, as ``ask_sglang.py`` does in a pod. The model is a
directory with only a ``config.json``: that of the question, else the defaults of transformers for the architecture.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ask_sglang


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


def write_model(
    directory: Path, arch: str, config: Mapping[str, Any] | None, more: Mapping[str, Any] | None = None
) -> Path:
    """Write a model directory that contains only a configuration, with ``more`` values than the given or known ones."""
    directory.mkdir()
    kind = "" if config else model_type(arch)
    own = {"architectures": [arch], "model_type": kind, "torch_dtype": "bfloat16", **PARTS.get(kind, {})}
    known = {**(config or own), **(more or {})}
    (directory / "config.json").write_text(json.dumps(known))
    return directory


def value_after(argv: list[str], *flags: str) -> int | None:
    """Return the index of a flag's value in the words."""
    return next((place + 1 for place, word in enumerate(argv) if word in flags and place + 1 < len(argv)), None)


def judge(module: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the release's verdict on one question.

    The defaults of transformers have short contexts, which are not those of the model: they refuse no longer one.
    """
    argv = list(question["argv"])
    known = bool(question.get("config")) or "max_position_embeddings" in (question.get("more") or {})
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "0" if known else "1"
    with tempfile.TemporaryDirectory() as scratch:
        place = value_after(argv, "--model-path", "--model")
        draft = value_after(argv, "--speculative-draft-model-path", "--speculative-draft-model")
        try:
            if place is None:
                raise ValueError("the command line has no --model-path")
            argv[place] = str(
                write_model(Path(scratch) / "model", question["arch"], question.get("config"), question.get("more"))
            )
            if draft is not None:
                arch = question.get("draft_arch") or question["arch"]
                argv[draft] = str(write_model(Path(scratch) / "draft", arch, question.get("draft_config")))
        except ValueError as problem:
            return {"verdict": "unknown", "message": str(problem), "changes": {}, "resolved": {}, "engine": ""}
        return ask_sglang.judge(module, argv, {f"{scratch}/": ""})


def main() -> int:
    """Answer every line of standard input."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    module = ask_sglang.load(json.loads(sys.argv[1]))
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            answer = judge(module, json.loads(line))
        print(json.dumps(answer, default=str), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
