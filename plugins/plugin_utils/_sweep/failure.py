# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say why a cell failed, from what its ranks logged. Private to the collection.

The signatures are those of the published matrices (GB10, SGLang 0.5.10-0.5.13) and of the messages that
SGLang, PyTorch and Kubernetes print themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """The class of a failure, the line that it rests on, and what to do."""

    kind: str
    line: str
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Signature:
    """A failure class and the text that gives it away; earlier signatures win, since later errors follow from them."""

    kind: str
    pattern: re.Pattern[str]
    remedy: str


def _signature(kind: str, pattern: str, remedy: str) -> Signature:
    return Signature(kind, re.compile(pattern, re.IGNORECASE), remedy)


SIGNATURES = (
    _signature(
        "rejected_argument",
        r"launch_server.*: error: |unrecognized arguments|invalid choice|ambiguous option|"
        r"error: argument \S+: |error: the following arguments are required|"
        r"is not compatible with radix cache",
        "Check the profile with scripts/sglang_check.py against the image's SGLang version.",
    ),
    _signature(
        "fake_tensor",
        r"Cannot access data pointer of FakeTensor|fp4_quantize.*fake",
        "Turn piecewise CUDA graphs off for NVFP4 models (disable_piecewise_cuda_graph).",
    ),
    _signature(
        "illegal_instruction",
        r"cudaErrorIllegalInstruction|an illegal instruction was encountered",
        "Choose another MoE runner or attention backend: this kernel was not built for SM121.",
    ),
    _signature(
        "invalid_configuration",
        r"FlashInfer Internal Error: Invalid configuration",
        "Use attention_backend triton: FlashInfer has no kernel for this head dimension.",
    ),
    _signature(
        "kernel_missing",
        r"cuDNN is not available|mismatch in expected n\b|no kernel image is available",
        "Choose a backend that the image carries (fp4_gemm_backend and moe_runner_backend flashinfer_cutlass).",
    ),
    _signature(
        "out_of_memory",
        r"CUDA out of memory|OutOfMemoryError|OOMKilled|Not enough memory|std::bad_alloc|Out of memory: Killed|"
        r"(?:CUDA error|cudaErrorMemoryAllocation): out of memory|Cuda failure .*out of memory|"
        r"(?:can't|cannot) allocate memory",
        "Lower mem_fraction_static or context_length; on GB10 the page cache shares the memory.",
    ),
    _signature(
        "nan",
        r"NaN (?:in|logits|detected|values)|logits contain nan|probability tensor contains either .?inf.?, .?nan",
        "Compare with the same cell without speculation; keep the last logs for a report upstream.",
    ),
    _signature(
        "draft_loader",
        r"No module or parameter named 'model\.language_model'|Unrecognized model in .*model_type key",
        "The image lacks support for this draft model: use an SGLang version that has it.",
    ),
    _signature(
        "assertion",
        r"^\s*AssertionError|AssertionError:",
        "SGLang refuses this combination: read the line, then change the profile.",
    ),
    _signature(
        "nccl",
        r"NCCL WARN (?!Missing .?iommu)|NCCL error|ncclSystemError|ncclInternalError|"
        r"ncclUnhandledCudaError|ncclRemoteError|ibv_modify_qp failed",
        "Run the verify playbook: it names the rank and the cause.",
    ),
    _signature(
        "infrastructure",
        r"Connection refused|Name or service not known|Temporary failure in name resolution|ImagePullBackOff|"
        r"ErrImagePull|Back-off pulling image|FailedScheduling|no space left on device|i/o timeout|"
        r"Connection reset by peer|no route to host|: not scheduled: |"
        r"can't start in namespace \S+; nothing was changed|\[serving\.vf\.taken\]",
        "Nothing is known of the model: mend the cluster and run the cell again.",
    ),
    _signature(
        "timeout",
        r"watchdog timeout|collective operation timeout|timed out|TimeoutError|is not ready after",
        "Look at the ranks' last logs; the group may hang in a collective.",
    ),
)

FOLLOWS = frozenset({"nccl", "infrastructure", "timeout"})
"""What the ranks that are left say when one of them has died, whatever it died of."""

CRASH = re.compile(
    r"CUDA error: |Segmentation fault|core dumped|Fatal Python error|"
    r"(?:^|\]:?)\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)"
)
"""How a process says what it dies of: a signal, the CUDA runtime, or the last line of a traceback."""

ECHO = re.compile(r"scheduler (?:is dead|died)|Initialization failed|EOFError|BrokenPipeError")
"""SGLang's other processes about the one that died (engine.py, http_server.py): they quote no cause."""


def crash_line(lines: Iterable[str]) -> str:
    """Return the first line with which a process says what it dies of, if no signature knows it; else nothing."""
    return next((n for n in lines if CRASH.search(n) and not ECHO.search(n) and classify([n]) is None), "")


def classify(lines: Iterable[str]) -> Failure | None:
    """Return the most telling failure that the lines show, or None when they show none.

    The order of SIGNATURES decides, not the order of the lines: a rejected argument explains the broken
    connection of the other ranks, never the other way round.
    """
    best: tuple[int, Failure] | None = None
    for line in lines:
        if line.lstrip().startswith("raise "):
            continue  # the source line of a traceback: the message itself comes below
        for rank, signature in enumerate(SIGNATURES):
            if best is not None and rank >= best[0]:
                break
            if signature.pattern.search(line):
                best = (rank, Failure(signature.kind, line.strip()[:500], signature.remedy))
                break
    return best[1] if best else None
