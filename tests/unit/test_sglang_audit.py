# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every class of command line on which an audit found the rules and the releases to differ."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile
from sglang_cases import KNOWLEDGE, ask, rules_of

R10, R13, R16, R20, R23 = AUDITED = ("0.5.10", "0.5.13.post1", "0.5.16", "0.5.20", "0.5.23")
LATE = (R16, R20, R23)

QWEN = {"arch": "Qwen3_5MoeForConditionalGeneration", "quantization": "modelopt_fp4"}
GLM = {"arch": "Glm4MoeForCausalLM", "quantization": "modelopt_fp4"}
NEMOTRON = {"arch": "NemotronHForCausalLM", "quantization": "modelopt_fp4"}
GEMMA = {"arch": "Gemma4ForConditionalGeneration"}
ASSISTED = {**GEMMA, "draft_arch": "Gemma4AssistantForCausalLM"}
INKLING = {"arch": "InklingForConditionalGeneration"}
DSA = {"arch": "GlmMoeDsaForCausalLM"}
FOUR = "--tp-size 4 --nnodes 4"
DEPTH = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
EAGLE = f"--speculative-algorithm EAGLE {DEPTH}"
DRAFT = f"{EAGLE} --speculative-draft-model-path /models/draft"
EAGER = "--disable-cuda-graph --moe-runner-backend triton"

# description, releases, flags, facts, rule, expected severity (None: no finding)
CLASSES: list[tuple[str, tuple[str, ...], str, dict[str, Any], str, str | None]] = [
    ("eager at EP 4 does not work", (R10,), f"{FOUR} --ep-size 4 {EAGER}", QWEN, "graph.eager_regime", "error"),
    ("cuDNN depends on the image", AUDITED, "--fp4-gemm-backend flashinfer_cudnn", GLM, "fp4gemm.cudnn", "info"),
    ("an abbreviation on a command line", AUDITED, "--tp 1", {}, "argparse.abbrev", "info"),
    ("extra_buffer of Nemotron works on 0.5.13", (R13,), "--mamba-scheduler-strategy extra_buffer", NEMOTRON,
     "mamba.nemotron.extra", None),
    ("flashinfer_trtllm experts", (R10, R13, R16), "--moe-runner-backend flashinfer_trtllm", QWEN, "moe.sm12x.runner",
     "error"),
    ("flashinfer_cutedsl experts", (R10, R13, R16), "--moe-runner-backend flashinfer_cutedsl", QWEN, "moe.sm12x.runner",
     "error"),
    ("runner cutlass with NVFP4 ends", ("0.5.12", R13, R16, R20, R23), "--moe-runner-backend cutlass", QWEN,
     "moe.nvfp4.runner", "error"),
    ("DSA without kernels for SM12x", (R16,), "--attention-backend dsa", DSA, "attn.dsa_sm12x", "warning"),
    ("AWQ experts", AUDITED, "--quantization awq", {"arch": "Qwen3MoeForCausalLM"}, "moe.awq", "error"),
    ("attention of Inkling", (R20, R23), "--attention-backend flashinfer", INKLING, "attn.inkling.allow", "warning"),
    ("BF16 Gemma MTP on 0.5.13", ("0.5.13",), DRAFT, ASSISTED, "spec.frozenkv.bf16", "warning"),
    ("a draft inherits the quantization", AUDITED, f"{DRAFT} --quantization modelopt_fp4", GLM,
     "spec.draft.quantization", "warning"),
    # names
    ("EAGEL", ("0.5.12", R13, *LATE), f"--speculative-algorithm EAGEL {DEPTH}", {}, "spec.algorithm.name", "error"),
    ("MTP", ("0.5.12", R13, *LATE), f"--speculative-algorithm MTP {DEPTH}", {}, "spec.algorithm.name", "error"),
    ("EAGEL before 0.5.12", (R10,), f"--speculative-algorithm EAGEL {DEPTH}", {}, "flag.choice", "error"),
    ("nvfp4 as a quantization", AUDITED, "--quantization nvfp4", {}, "name.quantization", "error"),
    *((f"vLLM's {flag}", AUDITED, f"{flag} 1", {}, "name.vllm", "error") for flag in
      ("--gpu-memory-utilization", "--max-model-len", "--max-num-seqs", "--block-size", "--max-num-batched-tokens")),
    ("fa3 on SM12x", AUDITED, "--attention-backend fa3", {}, "attn.fa3_sm12x", "error"),
    ("a tree with more tokens than candidates", AUDITED,
     "--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 2"
     " --speculative-num-draft-tokens 8", {}, "spec.tree.size", "error"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "line", "known", "rule", "severity"),
    [
        pytest.param(version, line, known, rule, severity, id=f"{name}, {version}")
        for name, versions, line, known, rule, severity in CLASSES
        for version in versions
    ],
)
def test_a_class_of_the_audit_has_its_finding(
    version: str, line: str, known: dict[str, Any], rule: str, severity: str | None
) -> None:
    told = {finding.severity for finding in ask(version, line, **known).findings if finding.rule == rule}
    wanted = {severity} if severity else told - {"error", "warning"}
    assert told == wanted


def test_an_abbreviation_is_an_error_in_a_profile() -> None:
    findings = resolve(load_profile("glm-4.7"), overrides={"server_args": {"context_len": 4096}}).findings
    assert {f.severity for f in findings if f.rule == "argparse.abbrev"} == {"error"}


@pytest.mark.parametrize("backend", ["flashinfer", "triton"])
def test_remedies_for_nemotron_are_not_circular(backend: str) -> None:
    """Follow every remedy that names a backend; the end must be a line without errors."""
    line = f"--attention-backend {backend} --moe-runner-backend flashinfer_cutlass"
    found = ask(R10, f"{FOUR} {line}", **NEMOTRON)
    told = {f.rule: f.remedy for f in found.findings if f.severity == "error"}
    assert backend == "flashinfer" or "flashinfer" in told.pop("attn.nemotron.triton")
    assert not told


@pytest.mark.parametrize(
    ("version", "line", "word"),
    [
        (R16, "--quantization nvfp4", "modelopt_fp4"),
        (R10, "--speculative-algorithm EAGEL", "EAGLE?"),
        (R23, "--speculative-algorithm EAGEL", "EAGLE"),
        (R23, "--speculative-algorithm MTP", "NEXTN"),
        (R10, "--speculative-algorithm MTP", "NEXTN"),
        (R16, "--max-num-seqs 4", "--max-running-requests"),
        (R16, "--gpu-memory-utilization 0.8", "--mem-fraction-static"),
        (R16, "--max-model-len 4096", "--context-length"),
    ],
)
def test_the_remedy_names_what_works(version: str, line: str, word: str) -> None:
    errors = [finding for finding in ask(version, line).findings if finding.severity == "error"]
    assert [word in finding.remedy for finding in errors] == [True], errors
    assert "petit" not in errors[0].remedy.partition("Choose")[0]


def test_every_release_of_the_audit_has_a_catalogue() -> None:
    assert set(AUDITED) <= {str(catalogue.version) for catalogue in KNOWLEDGE.history.catalogues}
    assert not rules_of(ask(R23, f"{FOUR} --mem-fraction-static 0.8", arch="LlamaForCausalLM"), "error")
