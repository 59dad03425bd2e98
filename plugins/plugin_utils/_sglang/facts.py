# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known beside the flags: the model, the GPU, and what the image carries.

Private to the collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GPUS: dict[str, tuple[int, bool, float]] = {
    "gb10": (121, True, 119.0),
    "b300": (103, False, 268.6),
    "b200": (100, False, 179.0),
    "h200": (90, False, 139.0),
    "h100": (90, False, 79.0),
    "rtx-pro-6000": (120, False, 95.0),
    "rtx-5090": (120, False, 31.4),
}
"""Known GPUs: compute capability, whether CPU and GPU share memory, and the visible GiB."""
PROCESSORS = {"gb10": 48, "b300": 148, "b200": 148, "h200": 132, "h100": 132, "rtx-pro-6000": 188, "rtx-5090": 170}
"""Streaming multiprocessors of the known GPUs, as CUDA reports them."""


def described(gpu: str, count: int) -> dict[str, object]:
    """Return a known GPU as SGLang's questions about it are answered without one; ``memory`` is in GiB."""
    capability, _unified, memory = GPUS[gpu]
    return {
        "name": f"NVIDIA {gpu.replace('-', ' ').upper()}",
        "capability": list(divmod(capability, 10)),
        "count": count,
        "memory": memory,
        "processors": PROCESSORS[gpu],
    }


@dataclass(frozen=True)
class Facts:
    """Facts about the model: a few values of its config.json; None means unknown, not absent."""

    arch: str | None = None
    draft_arch: str | None = None
    quantization: str | None = None
    moe: bool | None = None
    max_context: int | None = None
    kv_heads: int | None = None
    expert_blocks: int | None = None


@dataclass(frozen=True)
class Setting:
    """The environment of the flags: hardware, extras of the image, variables; ``patches`` is None if unknown."""

    gpu: str = "gb10"
    gpus_per_node: int = 1
    carries: tuple[str, ...] = ()
    patches: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
