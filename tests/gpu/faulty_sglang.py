# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a real SGLang server with the fault in GB10_INJECTED_FAULT, which tests/gpu/canary.py explains.

SGLang's processes import the main program again, so they get the fault as well. Written for SGLang 0.5.16.
"""

import os
import sys
from typing import Any

import torch
from sglang.launch_server import run_server
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.server_args import prepare_server_args

FROM = 3000
FAULT = os.environ["GB10_INJECTED_FAULT"]
FP8 = any(word.startswith("fp8") for word in sys.argv)
attend, sample = RadixAttention.forward, ModelRunner.sample


def attend_wrongly(self: Any, q: Any, k: Any, v: Any, batch: Any, *rest: Any, **more: Any) -> Any:
    """Permute the values that an fp8 cache gets from a position on."""
    if FP8 and v is not None:
        late = (batch.positions >= FROM).view(-1, *[1] * (v.dim() - 1))
        v = torch.where(late, v.flip(-1), v)
    return attend(self, q, k, v, batch, *rest, **more)


def sample_wrongly(self: Any, output: Any, batch: Any) -> Any:
    """Prefer token 0 in passes of CUDA graphs, always or from a length on, or mix up the requests of a pass."""
    found = output.next_token_logits
    if batch.forward_mode.is_decode():
        graphs = not self.server_args.disable_cuda_graph
        if FAULT == "graphs" and graphs:
            found[:, 0] = 1e4
        elif FAULT == "long" and graphs:
            found[:, 0] = torch.where(batch.seq_lens >= FROM, 1e4, found[:, 0])
        elif FAULT == "batch":
            output.next_token_logits = found.roll(1, 0)
    return sample(self, output, batch)


if FAULT == "values":
    RadixAttention.forward = attend_wrongly
else:
    ModelRunner.sample = sample_wrongly

if __name__ == "__main__":
    run_server(prepare_server_args(sys.argv[1:]))
