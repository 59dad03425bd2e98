# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the collection's verdicts and predicted settings with how the releases handle the arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import Knowledge, Report, check
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.facts import Facts, Setting

ROOT = Path(__file__).resolve().parents[2]
HANDLERS = Path(__file__).with_name("handlers.py")
KNOWLEDGE = Knowledge.load(ROOT / "profiles")
RELEASES = ["0.5.10", "0.5.11", "0.5.12.post1", "0.5.13.post1", "0.5.14", "0.5.16", "0.5.18"]

QWEN, NEMOTRON = "Qwen3_5MoeForConditionalGeneration", "NemotronHForCausalLM"
GLM, GEMMA = "Glm4MoeForCausalLM", "Gemma4ForConditionalGeneration"
DRAFT = "Gemma4AssistantForCausalLM"
DEPTH = "--speculative-num-steps {} --speculative-num-draft-tokens {}"
CHAIN = f"--speculative-algorithm NEXTN --speculative-eagle-topk 1 {DEPTH}"
TREE = f"--speculative-algorithm EAGLE --speculative-eagle-topk 4 {DEPTH.format(3, 8)}"

# architecture, flags, draft architecture
CASES: list[tuple[str, str, str | None]] = [
    (GLM, "", None),
    (GLM, CHAIN.format(3, 4), None),
    (GLM, CHAIN.format(5, 5), None),
    (GLM, CHAIN.format(5, 7), None),
    (GLM, "--speculative-algorithm NEXTN", None),
    (GLM, "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-num-draft-tokens 4", None),
    (GLM, "--speculative-algorithm NEXTN --speculative-eagle-topk 1", None),
    (GLM, f"{CHAIN.format(3, 4)} --max-running-requests 16", None),
    (GLM, f"{CHAIN.format(3, 4)} --enable-mixed-chunk", None),
    (GLM, f"{TREE} --attention-backend trtllm_mha --decode-attention-backend trtllm_mha", None),
    (GLM, f"{TREE} --page-size 16 --attention-backend triton", None),
    (GLM, f"{TREE} --page-size 16 --attention-backend flashinfer", None),
    (GLM, f"{CHAIN.format(3, 4)} --pp-size 2 --nnodes 2", None),
    (GLM, "--pp-size 2 --nnodes 2", None),
    (GLM, "--pp-size 2 --nnodes 2 --enable-mixed-chunk", None),
    (GLM, "--speculative-algorithm NGRAM", None),
    (GLM, "--speculative-algorithm NGRAM --page-size 16 --attention-backend triton", None),
    (GLM, "--speculative-algorithm NGRAM --enable-dp-attention --dp-size 2", None),
    (GLM, "--speculative-algorithm STANDALONE --enable-dp-attention --dp-size 2", None),
    (GLM, "--disable-cuda-graph", None),
    (GLM, "--disable-cuda-graph --disable-piecewise-cuda-graph", None),
    (GLM, "--tp-size 4 --nnodes 3", None),
    (GLM, "--tp-size 4 --nnodes 4 --dp-size 2", None),
    (GLM, "--served-model-name a:b", None),
    (GLM, "--disable-piecewise-cuda-graph", None),
    (GLM, "--moe-a2a-backend deepep", None),
    (QWEN, "", None),
    (QWEN, CHAIN.format(3, 4), None),
    (QWEN, f"{CHAIN.format(3, 4)} --mamba-scheduler-strategy extra_buffer", None),
    (QWEN, f"{CHAIN.format(3, 4)} --mamba-scheduler-strategy extra_buffer --mamba-track-interval 2", None),
    (QWEN, "--mamba-scheduler-strategy extra_buffer --disable-radix-cache", None),
    (QWEN, f"{CHAIN.format(3, 4)} --disable-radix-cache", None),
    (NEMOTRON, "--mamba-scheduler-strategy extra_buffer", None),
    (NEMOTRON, "", None),
    (GEMMA, f"{CHAIN.format(4, 5)} --speculative-draft-model-path d", DRAFT),
    (GEMMA, "--speculative-algorithm EAGLE3 --speculative-num-steps 4 --speculative-eagle-topk 1"
            " --speculative-num-draft-tokens 5 --speculative-draft-model-path d", DRAFT),
]  # fmt: skip

OWN_KNOWLEDGE = {
    "model.arch.unsupported": "fails while the model loads",
    "par.nnodes": "GPUs of a node",
    "attn.gemma4.allow": "fails at the first decode, or in another handler",
    "attn.trtllm_sm12x": "in another handler",
    "spec.frozenkv.bf16": "fails later, while the server starts",
    "spec.frozenkv.promote": "fails while the draft loads",
    "spec.frozenkv.transformers": "fails where the real transformers reads the draft's config",
    "spec.nemotron.loader": "runs, but accepts no draft",
}
"""Rules whose lines these handlers accept, with the reason why the collection refuses or reports them."""


def ours(version: str, case: tuple[str, str, str | None]) -> Report:
    """Return the collection's report."""
    arch, line, draft = case
    facts = Facts(arch=arch, draft_arch=draft)
    argv = ["--model-path", "m", "--mem-fraction-static", "0.8", *line.split()]
    return check(KNOWLEDGE, version, argv, facts, Setting(patches=()))


def theirs(version: str) -> list[dict[str, Any]]:
    """Return the release's answers to all cases."""
    questions = [
        {
            "argv": ["--model-path", "m", "--mem-fraction-static", "0.8", *line.split()],
            "arch": arch,
            "draft_arch": draft,
            "multimodal": arch in (QWEN, GEMMA),
            "hybrid": arch in (QWEN, NEMOTRON),
            # nemotron_h_hook.py allows it from 0.5.13 on
            "extra_buffer": arch == QWEN or Version.parse(version) >= Version.parse("0.5.13"),
        }
        for arch, line, draft in CASES
    ]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    printed = sglang_catalogue.run_script(HANDLERS, sglang_catalogue.unpack(version), lines)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize("version", RELEASES)
def test_verdicts_and_resolved_values_agree_with_the_releases(version: str) -> None:
    for case, answer in zip(CASES, theirs(version), strict=True):
        report = ours(version, case)
        errors = {f.rule for f in report.findings if f.severity == "error"} - set(OWN_KNOWLEDGE)
        if "nnodes 3" in case[1]:
            errors.add("par.nnodes")
        if version in ("0.5.10", "0.5.11"):
            # these releases lack the draft's class, and fail only while it loads
            errors.discard("spec.frozenkv.eagle3")
        assert answer["accepted"] == (not errors), (version, case, answer, errors)
        if answer["accepted"]:
            compare(report, answer["values"], (version, case))


def compare(report: Report, values: dict[str, Any], where: object) -> None:
    """Compare the settings that will run."""
    context = report.context
    assert context["spec"] == values["speculative_algorithm"], where
    assert context["slots"] == values["max_running_requests"], where
    if "disable_piecewise_cuda_graph" in values:
        assert (not context["prefill_graph"]) == values["disable_piecewise_cuda_graph"], where
    if context["spec"] is not None:
        # from 0.5.14 on, releases compute a number of steps for n-grams, which has no effect on the rules
        assert context["spec"] == "NGRAM" or context["steps"] == values["speculative_num_steps"], where
        assert context["topk"] == values["speculative_eagle_topk"], where
        assert context["draft_tokens_run"] == values["speculative_num_draft_tokens"], where
    if context["enable_mixed_chunk"] and context["spec"]:
        assert values["enable_mixed_chunk"] is False, where
