# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a command line is read as by SGLang's parser; tests/sglang/ compares with the real parsers."""

import argparse
import contextlib
import io
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.argv import parse_flags
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import Parsed, options_of
from hypothesis import given
from hypothesis import strategies as st
from sglang_cases import KNOWLEDGE

HISTORY = KNOWLEDGE.history


def read(version: str, *words: str, model: bool = True) -> Parsed:
    """Judge words, with a model path before them unless told otherwise."""
    catalogue = HISTORY.nearest(Version.parse(version))[0]
    return parse_flags(catalogue, HISTORY, [*(["--model-path", "m"] if model else []), *words])


def found(version: str, *words: str) -> list[Finding]:
    """Return the findings on some words."""
    return read(version, *words).findings


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--tp-size", "4"], "tp_size", 4),
        (["--tp-size=4"], "tp_size", 4),
        (["--tensor-parallel-size", "4"], "tp_size", 4),
        (["--ep", "2"], "ep_size", 2),
        (["--chunked-prefill-size", "-1"], "chunked_prefill_size", -1),
        (["--chunked-prefill-size=-1"], "chunked_prefill_size", -1),
        (["--context-length", "256Ki"], "context_length", 262144),
        (["--context-length", "25.6k"], "context_length", 25600),
        (["--cuda-graph-bs-decode", "1", "2", "4"], "cuda_graph_bs_decode", [1, 2, 4]),
        (["--trust-remote-code"], "trust_remote_code", True),
        (["--no-dllm-fdfo"], "dllm_fdfo", False),
        (["--json-model-override-args", '{"a": 1}'], "json_model_override_args", '{"a": 1}'),
        (["--served-model-name", "two words"], "served_model_name", "two words"),
        (["--served-model-name", "-"], "served_model_name", "-"),
        (["--mem-fraction-static", ".6"], "mem_fraction_static", 0.6),
        (["--disable-cuda-graph"], "cuda_graph_backend_prefill", "disabled"),
        (["--tp-size", "2", "--tp-size", "4"], "tp_size", 4),
    ],
)
def test_values_are_those_that_the_parser_stores(words: list[str], key: str, value: Any) -> None:
    assert read("0.5.23", *words).values[key] == value


def test_words_become_options_of_which_the_last_counts() -> None:
    words = ["sglang", "serve", "--a", "0", "--a", "1", "2", "--b=3", "--c"]
    assert options_of(words) == {"--a": "1 2", "--b": "3", "--c": "set"}


def test_the_other_spelling_of_the_model_path_is_accepted() -> None:
    parsed = read("0.5.10", "--model", "m", model=False)
    assert parsed.findings == []
    assert parsed.values["model_path"] == "m"


def test_older_releases_give_the_same_values_under_the_newest_names() -> None:
    words = ["--disable-piecewise-cuda-graph", "--cuda-graph-max-bs", "8", "--mamba-scheduler-strategy", "no_buffer"]
    for version in ("0.5.12", "0.5.15"):
        values = read(version, *words).values
        assert values["cuda_graph_backend_prefill"] == "disabled"
        assert values["cuda_graph_max_bs_decode"] == 8
        assert values["mamba_radix_cache_strategy"] == "no_buffer"


@pytest.mark.parametrize(
    ("version", "words", "rule", "text"),
    [
        ("0.5.23", ["--mem-fraction-statc", "0.6"], "flag.unknown", "Did you mean --mem-fraction-static?"),
        ("0.5.23", ["--frobnicate"], "flag.unknown", "Look it up"),
        ("0.5.23", ["--cuda-graph-max-bs", "8"], "flag.renamed", "--cuda-graph-max-bs-decode"),
        ("0.5.23", ["--disable-piecewise-cuda-graph"], "flag.renamed", "--cuda-graph-backend-prefill=disabled"),
        ("0.5.23", ["--enable-double-sparsity"], "flag.removed", "Remove it"),
        ("0.5.18", ["--enable-expert-distribution-metrics"], "flag.removed", "Remove it"),
        ("0.5.10", ["--cuda-graph-max-bs-decode", "8"], "flag.too_new", "Use --cuda-graph-max-bs"),
        ("0.5.10", ["--attn-dp-size", "2"], "flag.too_new", "--dp-size 2 --enable-dp-attention"),
        ("0.5.10", ["--cuda-graph-max-seq-len-prefill", "2"], "flag.too_new", "0.5.21 or later"),
        ("0.5.9", ["--cuda-graph-backend-prefill", "disabled"], "flag.too_new", "always behaves that way"),
        ("0.5.14", ["--cuda-graph-max-bs", "8"], "flag.deprecated", "--cuda-graph-max-bs-decode"),
        ("0.5.23", ["--tp", "4"], "argparse.abbrev", "Write --tp-size"),
        ("0.5.23", ["--speculative-algo", "EAGLE"], "argparse.abbrev", "Write --speculative-algorithm"),
        ("0.5.23", ["--speculative-num", "4"], "flag.ambiguous", "in full"),
        ("0.5.23", ["--tp-size"], "flag.missing_value", "--tp-size VALUE"),
        ("0.5.23", ["--tp-size", "--pp-size", "1"], "flag.missing_value", "--tp-size VALUE"),
        ("0.5.23", ["--cuda-graph-bs-decode"], "flag.missing_value", "VALUE"),
        ("0.5.23", ["--trust-remote-code=true"], "flag.unexpected_value", "alone"),
        ("0.5.23", ["--trust-remote-code", "true"], "flag.positional", "takes no value"),
        ("0.5.23", ["--tp-size", "4", "5"], "flag.positional", "takes one value"),
        ("0.5.23", ["stray"], "flag.positional", "Remove it"),
        ("0.5.23", ["--", "x"], "flag.positional", "Remove it"),
        ("0.5.23", ["--tp-size", "four"], "flag.type", "type int"),
        ("0.5.23", ["--context-length", "256K"], "flag.type", "Correct"),
        ("0.5.23", ["--context-length", "1.5Ki"], "flag.type", "Correct"),
        ("0.5.23", ["--model-loader-extra-config", "{", "--forward-hooks", "{"], "flag.type", "Correct"),
        ("0.5.23", ["--cuda-graph-config", '{"decode": {"max": 8}}'], "flag.type", "Correct"),
        ("0.5.23", ["--cuda-graph-config", '{"prefill": {"backend": "tc_piecewise"}}'], "flag.type", "Correct"),
        ("0.5.23", ["--cuda-graph-backend-prefill", "tc_piecewise"], "flag.type", "Correct"),
        ("0.5.23", ["--kv-cache-dtype", "fp8"], "flag.choice", "mean fp8_e4m3? Choose one of"),
        ("0.5.23", ["--attention-backend", "flashinfr"], "flag.choice", "Did you mean flashinfer?"),
        ("0.5.23", ["--lora-paths", '{"lora_name": "a"}'], "flag.type", "Correct"),
        ("0.5.23", ["--tp-size", "1", "--tp-size", "2"], "flag.repeated", "once"),
        ("0.5.23", ["--help"], "flag.help", "Remove"),
        ("0.5.23", ["-h"], "flag.help", "Remove"),
    ],
)
def test_every_mistake_has_its_finding(version: str, words: list[str], rule: str, text: str) -> None:
    matching = [finding for finding in found(version, *words) if finding.rule == rule]
    assert matching, found(version, *words)
    assert text in matching[0].remedy


def test_all_mistakes_come_at_once() -> None:
    words = ["--tp-size", "x", "--frobnicate", "1", "2", "--kv-cache-dtype", "fp8", "--page-size"]
    rules = [finding.rule for finding in found("0.5.23", *words)]
    assert rules == ["flag.type", "flag.unknown", "flag.choice", "flag.missing_value"]


def test_a_missing_model_is_one_finding() -> None:
    assert [finding.rule for finding in read("0.5.23", model=False).findings] == ["flag.required"]


def test_a_choice_that_another_release_has_says_which() -> None:
    reason = found("0.5.16", "--fp4-gemm-backend", "cutlass")[0].reason
    assert "0.5.10 to 0.5.15.post1 do" in reason


def test_a_removed_flag_that_became_ambiguous_says_both() -> None:
    reason = found("0.5.23", "--cuda-graph-max-bs", "8")[0].reason
    assert "could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill" in reason
    assert "0.5.9…0.5.19" in reason


WORD = st.one_of(
    st.sampled_from(
        ["--", "-", "-1", "-.5", "--tp-size", "--tp", "--trust-remote-code", "--cuda-graph-bs", "-h", "=", ""]
    ),
    st.sampled_from(sorted(HISTORY.catalogues[0].options)),
    st.text(max_size=12),
    st.builds("{}={}".format, st.sampled_from(["--tp-size", "--frob", "--model"]), st.text(max_size=6)),
)


@given(st.lists(WORD, max_size=8), st.sampled_from(["0.5.9", "0.5.14", "0.5.23"]))
def test_arbitrary_words_never_raise(words: list[str], version: str) -> None:
    for finding in found(version, *words):
        assert finding.reason
        assert finding.remedy


def stand_in(version: str) -> argparse.ArgumentParser:
    """Return an argparse parser with the catalogue's flags, numbers and choices."""
    parser = argparse.ArgumentParser()
    for flag in HISTORY.nearest(Version.parse(version))[0].flags:
        options: dict[str, Any] = {"dest": flag.dest}
        if flag.is_switch:
            options["action"] = "store_true"
        else:
            options |= {"nargs": flag.nargs, "choices": flag.choices, "required": flag.required}
            options["type"] = {"int": int, "float": float}.get(flag.kind or "", str)
        parser.add_argument(*flag.names, **options)
    return parser


PARSER = stand_in("0.5.9")
PLAIN = ("flag.type", "argparse.abbrev")


@given(st.lists(st.one_of(WORD, st.sampled_from(["4", "auto", "triton"])), max_size=6))
def test_structure_is_that_of_argparse(words: list[str]) -> None:
    errors = [f for f in found("0.5.9", *words) if f.severity == "error" and f.rule not in PLAIN]
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            PARSER.parse_args(["--model-path", "m", *words])
        accepted = True
    except SystemExit:
        accepted = False
    if errors:
        assert all("reads as" in error.reason for error in errors) or not accepted
    if accepted:
        assert all("reads as" in error.reason or error.rule == "flag.removed" for error in errors)
