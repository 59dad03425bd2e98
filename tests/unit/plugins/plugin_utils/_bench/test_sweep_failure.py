# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import classify

CASES = {
    "illegal_instruction": "torch.AcceleratorError: CUDA error: an illegal instruction was encountered",
    "fake_tensor": "torch._dynamo.exc.InternalTorchDynamoError: Cannot access data pointer of FakeTensor",
    "invalid_configuration": "FlashInfer Internal Error: Invalid configuration : NUM_MMA_Q=1 NUM_MMA_D_QK=32",
    "kernel_missing": "RuntimeError: cuDNN is not available",
    "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "nan": "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    "draft_loader": "ValueError: No module or parameter named 'model.language_model' in Transformers",
    "rejected_argument": "launch_server.py: error: unrecognized arguments: --disable-piecewise-cuda-graph",
    "nccl": "spark1:41:88 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer with status=12",
    "assertion": "AssertionError: the first layer might not be an attention layer",
    "infrastructure": 'Failed to pull image "x": ImagePullBackOff',
    "timeout": "Scheduler watchdog timeout (self.watchdog_timeout=300)",
}


@pytest.mark.parametrize("kind", CASES)
def test_a_known_failure_is_classified_with_its_line(kind: str) -> None:
    found = classify(["INFO server starts", CASES[kind], "INFO bye"])
    assert found is not None
    assert (found.kind, found.line) == (kind, CASES[kind])
    assert found.remedy


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("out_of_memory", "RuntimeError: CUDA error: out of memory"),
        ("out_of_memory", "torch.AcceleratorError: cudaErrorMemoryAllocation: out of memory"),
        ("out_of_memory", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        ("out_of_memory", "a:1:1 [0] init.cc:1200 NCCL WARN Cuda failure 'out of memory'"),
        ("timeout", "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout"),
        ("nan", "ValueError: logits contain nan"),
        ("nan", "NaN values found in logits"),
        ("rejected_argument", "sglang serve: error: argument --tp-size: invalid int value: 'x'"),
        ("rejected_argument", "x.py: error: the following arguments are required: --model-path"),
        ("infrastructure", "recv: Connection reset by peer"),
        ("infrastructure", "dial tcp 10.0.0.1:6443: connect: no route to host"),
        ("infrastructure", 'Back-off pulling image "docker.io/x"'),
        (
            "infrastructure",
            "rank 0: pod g-0-0 on no node yet: not scheduled: 0/5 nodes are available: 1 Insufficient x",
        ),
        ("infrastructure", "Group g can't start in namespace gb10-serving; no group was changed."),
        ("infrastructure", "error: vf_index = 0: instance one holds the VFs of this index [serving.vf.taken]"),
        ("nccl", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3500"),
    ],
)
def test_every_wording_of_a_failure_is_known(kind: str, line: str) -> None:
    found = classify(["INFO server starts", line, "INFO bye"])
    assert found is not None
    assert (found.kind, found.line) == (kind, line)


def test_a_harmless_warning_of_nccl_is_no_failure() -> None:
    assert classify(['x:1:1 [0] init.cc:1 NCCL WARN Missing "iommu=pt" from kernel command line']) is None


def test_the_cause_wins_over_what_follows_from_it() -> None:
    found = classify(["dial tcp: Connection refused", CASES["nccl"], CASES["rejected_argument"]])
    assert found is not None and found.kind == "rejected_argument"


def test_the_radix_cache_refusal_is_a_rejected_argument() -> None:
    line = (
        "ValueError: Speculative decoding for Qwen3_5MoeForConditionalGeneration is not compatible with radix cache "
        "when using --mamba-scheduler-strategy no_buffer."
    )
    found = classify([line])
    assert found is not None and found.kind == "rejected_argument"


def test_a_quiet_log_has_no_failure() -> None:
    assert classify(["INFO Decode batch, #running-req: 8", "The server is fired up and ready to roll!"]) is None
