# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the rules with each release's own argument checks on validly typed command lines.

Random lines find rules that are missing; lines beside the limits of the rules (their own test cases with one flag less
or another value) find limits in the wrong place.

A difference is a missing rule, a rule that is stricter than the release, or a failure. A stricter rule documents under
``sglang`` what the release does later. ``GB10_FUZZ_CASES`` sets the number of lines per release, and ``GB10_FUZZ_SEED``
draws others.
"""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Iterator
from typing import Any

import _sglang_environment
import pytest
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._paths import PROFILES
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import Catalogue, Flag
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import Knowledge, Report, check
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.facts import Facts, Setting
from rule_cases.cases import CASES

KNOWLEDGE = Knowledge.load(PROFILES)
RELEASES = ["0.5.10", "0.5.13.post1", "0.5.16", "0.5.20", "0.5.23"]
COUNT = int(os.environ.get("GB10_FUZZ_CASES", "40"))
SEED = os.environ.get("GB10_FUZZ_SEED", "fuzz")

MODELS = {
    "LlamaForCausalLM": "llama",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "NemotronHForCausalLM": "nemotron_h",
    "Gemma4ForConditionalGeneration": "gemma4",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
    "Qwen3NextForCausalLM": "qwen3_next",
}
QUANTIZED: dict[str, dict[str, Any]] = {
    "modelopt_fp4": {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
}

NUMBERS: dict[str, tuple[float | str, ...]] = {
    "--chunked-prefill-size": (-1, 1000, 2048, 4096),
    "--page-size": (1, 16, 32, 64, 128),
    "--speculative-num-steps": (1, 3, 5),
    "--speculative-eagle-topk": (1, 1, 2, 4),
    "--speculative-num-draft-tokens": (2, 4, 6, 16),
    "--mem-fraction-static": (0.5, 0.8, 0.9, 1.2),
    "--context-length": (1024, 2048),
    "--swa-full-tokens-ratio": (0, 0.5, 1, 1.5),
    "--schedule-conservativeness": (-1, 0.3, 1),
    "--json-model-override-args": ("{}", '{"a": 1}', "{"),
    "--mamba-track-interval": (2, 64, 256),
    "--max-lora-rank": (8, 16),
    "--ep-size": (1, 2, 4),
    "--dp-size": (1, 2, 3, 4),
    "--max-running-requests": (0, 1, 8, 64),
    "--speculative-algorithm": ("EAGLE", "EAGLE", "NEXTN", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "EAGEL"),
    "--lora-target-modules": ("all", "q_proj"),
    "--ssl-keyfile": ("k",),
    "--ssl-certfile": ("c",),
    "--served-model-name": ("a", "a:b"),
}
"""Values of flags that the checks read; other numbers are drawn from a few small ones."""

OFTEN = (
    *NUMBERS, "--attention-backend", "--prefill-attention-backend", "--decode-attention-backend",
    "--moe-runner-backend", "--moe-a2a-backend", "--kv-cache-dtype", "--mamba-scheduler-strategy",
    "--mamba-radix-cache-strategy", "--disable-radix-cache", "--disable-overlap-schedule", "--enable-mixed-chunk",
    "--schedule-policy", "--enable-priority-scheduling", "--enable-hierarchical-cache", "--enable-lora",
    "--quantization", "--enable-eplb", "--enable-two-batch-overlap", "--enable-deterministic-inference",
    "--enable-dp-attention", "--cuda-graph-backend-prefill", "--cuda-graph-max-bs", "--cuda-graph-max-bs-decode",
    "--disable-cuda-graph", "--fp4-gemm-backend", "--fp8-gemm-backend", "--disaggregation-mode", "--load-format",
    "--sampling-backend", "--dtype", "--enable-torch-compile", "--enable-single-batch-overlap",
)  # fmt: skip

UNUSED = re.compile(
    "model|config|path|file|dir|url|host|port|addr|nnodes|rank|tp-size|pp-size|tensor-par|pipeline|device|npu|cpu|hpu"
    "|help|load-balance|custom|plugin|mm-|multimodal|encoder|dllm|ktransformers|kt-|download|api-key|tokenizer"
    "|language-only|monokernel|megakernel|weight-cache"
)
"""Flags for files, machines or other hardware. Their checks depend on the machine and not on the command line."""

UNASKED = re.compile("file|path$|context-length|json-model|mm-|port|rank|npu|device|language|multimodal|encoder|rust")
"""Flags of the rules' cases whose checks depend on files, on the size of the real model, or on the machine."""

STUBBED = re.compile(
    r"^(ImportError|ModuleNotFoundError|AttributeError|TypeError: .*(_Anything|Stub)|FileNotFoundError|OSError)"
    r"|does not know|not installed|not found: 'k'|requires the 'granian'|is not validated|exceeds SGLANG_|No module"
    r"|DSpark dense"
)
"""Answers of a release that are due to packages and files missing on this machine."""

REFUSES = re.compile(r"\w*Error\b|invalid choice|unrecognized|refused")
"""Texts in the field ``sglang`` of rules for lines that the release itself refuses."""


def value(flag: Flag, source: random.Random) -> str | None:
    """Return a valid value of a flag; None if no valid value is known."""
    if flag.name in NUMBERS:
        return str(source.choice(NUMBERS[flag.name]))
    if flag.choices:
        return str(source.choice(flag.choices))
    numbers: dict[str, tuple[float, ...]] = {"int": (1, 2, 4, 16, 64, 1000), "float": (0.1, 0.5, 1.0)}
    return str(source.choice(numbers[flag.kind])) if flag.kind in numbers else None


def random_case(catalogue: Catalogue, source: random.Random) -> dict[str, Any]:
    """Return a random command line with a model; it prefers flags that the checks read."""
    arch = source.choice([name for name in MODELS if name in catalogue.architectures])
    quantization = source.choice([None, None, *QUANTIZED])
    nodes = source.choice([1, 1, 2, 4])
    argv = ["--model-path", "m", "--tp-size", str(nodes), "--nnodes", str(nodes)]
    argv += ["--node-rank", "0", "--dist-init-addr", "127.0.0.1:20000"] if nodes > 1 else []
    often = [name for name in OFTEN if name in catalogue.options]
    others = [flag.name for flag in catalogue.flags if not UNUSED.search(flag.name) and flag.action != "Deprecated"]
    names = source.sample(often, source.randint(1, 5)) + source.sample(others, source.randint(0, 2))
    if source.random() < 0.3:
        names += ["--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk",
                  "--speculative-num-draft-tokens"]  # fmt: skip
    for name in dict.fromkeys(names):
        flag = catalogue.options[name]
        word = None if flag.is_switch else value(flag, source)
        if flag.is_switch or word is not None:
            argv += [name] if word is None else [f"{name}={word}"]
    return question(argv, arch, quantization)


def question(argv: list[str], arch: str, quantization: str | None) -> dict[str, Any]:
    """Return one question to a release; no line names a draft, so both sides judge the model alone."""
    config: dict[str, Any] = {"architectures": [arch], "model_type": MODELS[arch], "torch_dtype": "bfloat16"}
    if quantization:
        config["quantization_config"] = QUANTIZED[quantization]
    return {"argv": argv, "arch": arch, "config": config, "quantization": quantization}


def lines_beside_limits(catalogue: Catalogue, source: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the test cases of the rules, and these with one flag less or with another value, in a random order."""
    sides = [side for case in CASES for side in ((case.line, case.known), (case.other_line, case.other_known))]
    for line, facts in source.sample(sides, len(sides)):
        arch, quantization = facts.get("arch") or "LlamaForCausalLM", facts.get("quantization")
        words = [part.split() for part in re.split(r" (?=--)", " ".join(shlex.split(line))) if part]
        known = arch in MODELS and arch in catalogue.architectures and quantization in (None, *QUANTIZED)
        if not known or facts.get("gpu") or any(UNASKED.search(part[0]) for part in words):
            continue
        flags = [part for part in words if part[0] in catalogue.options]
        drawn = source.randrange(len(flags) + 1) if flags else 0
        if drawn < len(flags):
            other = value(catalogue.options[flags[drawn][0]], source)
            flags[drawn : drawn + 1] = [[flags[drawn][0], other]] if other and source.random() < 0.6 else []
        nodes = next((part[1] for part in flags if part[0] == "--nnodes"), "1")
        more = ["--node-rank", "0", "--dist-init-addr", "127.0.0.1:20000"] if nodes != "1" else []
        argv = ["--model-path", "m", *(word for part in flags for word in part), *more]
        yield question(argv, arch, quantization)


def ours(version: str, case: dict[str, Any]) -> Report:
    """Return the collection's own verdict about the release as it is published, without patches."""
    facts = Facts(arch=case["arch"], quantization=case["quantization"])
    return check(KNOWLEDGE, version, case["argv"], facts, Setting(patches=()))


def difference(version: str, case: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """Return how the two verdicts differ; None if they agree or if a stricter rule documents the difference."""
    errors = {(each.rule, each.source) for each in ours(version, case).findings if each.severity == "error"}
    if answer["verdict"] != "accepted":
        return None if errors or STUBBED.search(answer["message"]) else f"accepted, but: {answer['message']}"
    # Rules share ids, so a stricter rule documents only what itself refuses.
    documented = {
        (rule.id, rule.told_by)
        for rule in KNOWLEDGE.rules.rules
        if rule.severity == "error"
        and not REFUSES.match(rule.sglang)
        and Version.parse(version).within(rule.first, rule.last)
    }
    undocumented = sorted(rule for rule, _source in errors - documented)
    return f"refused by {', '.join(undocumented)}, but accepted" if undocumented else None


def compare(version: str, cases: list[dict[str, Any]]) -> int:
    """Fail with all differences between the rules and a release; return how many lines the release accepts."""
    answers = _sglang_environment.ask(sglang_catalogue.unpack(version), sglang_catalogue.CACHE, cases)
    told = [(difference(version, case, answer), case) for case, answer in zip(cases, answers, strict=True)]
    found = [f"{what}\n  {case['arch']} {case['quantization']} {' '.join(case['argv'])}" for what, case in told if what]
    assert not found, "\n".join(found)
    return sum(answer["verdict"] == "accepted" for answer in answers)


@pytest.mark.parametrize("version", RELEASES)
def test_rules_and_releases_agree_on_random_lines(version: str) -> None:
    catalogue = KNOWLEDGE.history.nearest(Version.parse(version))[0]
    source = random.Random(f"{SEED} {version}")
    accepted = compare(version, [random_case(catalogue, source) for _unused in range(COUNT)])
    assert 0.1 * COUNT < accepted < 0.9 * COUNT, "a sample needs accepted and refused lines"


@pytest.mark.parametrize("version", RELEASES)
def test_rules_and_releases_agree_beside_the_limits_of_the_rules(version: str) -> None:
    catalogue = KNOWLEDGE.history.nearest(Version.parse(version))[0]
    lines = lines_beside_limits(catalogue, random.Random(f"limits {SEED} {version}"))
    compare(version, [case for case, _unused in zip(lines, range(COUNT), strict=False)])
