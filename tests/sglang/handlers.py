# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run an unpacked SGLang release's own argument handling as on a GB10, without torch or a GPU.

``python handlers.py DIRECTORY`` reads questions from standard input, one JSON object per line (``argv``,
``arch``, ``draft_arch``, ``multimodal``, ``hybrid``, ``extra_buffer``, ``no_prefill_graph``), and answers each with
``{"accepted": …, "message": …, "values": {…}}``. It runs the release's code for speculation, the prefill graph, the
Mamba cache and the final checks on arguments that the release's own parser read. It works for releases up to 0.5.18,
whose arguments are a data class; the model's configuration is derived from its architecture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import logging
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from _sglang_release import build_parser

MACHINE: dict[str, bool] = {
    "is_cuda": True,
    "is_flashinfer_available": True,
    "is_blackwell_supported": True,
    "is_sm120_supported": True,
    "is_sm100_supported": False,
    "is_sm90_supported": False,
    "is_hip": False,
    "is_npu": False,
    "is_cpu": False,
    "is_mps": False,
    "is_musa": False,
    "is_xpu": False,
    "check_gguf_file": False,
}
"""The answers to the release's questions about the machine: a GB10 is SM121, which the release counts as SM120."""

RENAMED = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "expert_parallel_size",
    "dp_size": "data_parallel_size",
}
"""Fields whose flags have another destination (ServerArgs.from_cli_args)."""

SHOWN = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "max_running_requests", "disable_piecewise_cuda_graph", "enable_mixed_chunk", "disable_overlap_schedule",
)  # fmt: skip


def _constant(value: bool) -> Callable[..., bool]:
    def answer(*_args: Any, **_kwargs: Any) -> bool:
        return value

    return answer


def _arguments(module: Any, parser: Any, question: Mapping[str, Any]) -> Any:
    """Return the release's arguments object, filled by its parser but not yet handled."""
    model = types.SimpleNamespace(
        hf_config=types.SimpleNamespace(architectures=[question["arch"]]),
        is_multimodal=question.get("multimodal", False),
        is_piecewise_cuda_graph_disabled_model=question.get("no_prefill_graph", False),
        quantization=None,
    )
    # Attributes that __post_init__ would have added to the fields stay unset.
    members: dict[str, Any] = {
        "get_model_config": lambda _self: model,
        "mamba_cache_chunk_size": 64,
        "__getattr__": lambda _self, _name: None,
    }
    arguments: Any = object.__new__(type("Arguments", (module.ServerArgs,), members))
    for field in dataclasses.fields(module.ServerArgs):
        value = None
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        arguments.__dict__[field.name] = value
    given = vars(parser.parse_args(question["argv"]))
    arguments.__dict__.update(given)
    arguments.__dict__.update({new: given[old] for new, old in RENAMED.items() if old in given})
    arguments.device = "cuda"
    if arguments.mamba_scheduler_strategy == "auto" and arguments.mamba_radix_cache_strategy is None:
        # __post_init__ sets this before any other code reads it.
        arguments.mamba_scheduler_strategy = "no_buffer"
    return arguments


def _handle(module: Any, arguments: Any, question: Mapping[str, Any]) -> None:
    """Let the release change and check its arguments in its own order; raise what it raises."""
    if question.get("hybrid"):
        wanted = {
            "model_arch": question["arch"],
            "support_mamba_cache_extra_buffer": question.get("extra_buffer", True),
        }
        known = inspect.signature(arguments._handle_mamba_radix_cache).parameters
        arguments._handle_mamba_radix_cache(**{key: value for key, value in wanted.items() if key in known})
    arguments.page_size = arguments.page_size or 1
    arguments.chunked_prefill_size = arguments.chunked_prefill_size or 8192
    utils = importlib.import_module("sglang.srt.utils.hf_transformers_utils")
    draft = types.SimpleNamespace(architectures=[question.get("draft_arch") or "LlamaForCausalLM"])
    utils.get_config = lambda *_args, **_kwargs: draft  # type: ignore[attr-defined]
    if hasattr(module.ServerArgs, "_handle_speculative_decoding"):
        arguments._handle_speculative_decoding()
    else:
        importlib.import_module("sglang.srt.arg_groups.speculative_hook").handle_speculative_decoding(arguments)
    if hasattr(module.ServerArgs, "_handle_piecewise_cuda_graph"):
        arguments._handle_piecewise_cuda_graph()
    arguments.served_model_name = arguments.served_model_name or arguments.model_path
    # Pipeline parallelism excludes the overlap schedule, which the release disables beforehand.
    arguments.disable_overlap_schedule = arguments.disable_overlap_schedule or arguments.pp_size > 1
    arguments.check_server_args()


def judge(module: Any, parser: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one question."""
    try:
        arguments = _arguments(module, parser, question)
        _handle(module, arguments, question)
    except SystemExit:
        return {"accepted": False, "message": "refused by the parser", "values": {}}
    except Exception as problem:  # whatever ends the start of the server is an answer
        return {"accepted": False, "message": f"{type(problem).__name__}: {problem}", "values": {}}
    return {
        "accepted": True,
        "message": "",
        "values": {name: arguments.__dict__[name] for name in SHOWN if name in arguments.__dict__},
    }


def main(argv: Sequence[str]) -> int:
    """Answer every line of standard input."""
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        parser = build_parser(Path(argv[0]))
        module: Any = importlib.import_module("sglang.srt.server_args")
    cuda: Any = importlib.import_module("torch.cuda")
    cuda.get_device_capability = lambda *_args: (12, 1)
    parts = [module]
    with contextlib.suppress(ImportError):
        parts.append(importlib.import_module("sglang.srt.arg_groups.speculative_hook"))
    for part in parts:
        for name in MACHINE.keys() & vars(part).keys():
            setattr(part, name, _constant(MACHINE[name]))
    for line in sys.stdin:
        print(json.dumps(judge(module, parser, json.loads(line)), default=str))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
