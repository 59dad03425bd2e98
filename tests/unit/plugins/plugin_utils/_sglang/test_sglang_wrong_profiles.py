# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that invalid profiles are refused with the right finding, including every problem that the sources report."""

from copy import deepcopy
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, overlay, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import (
    ProfileError,
    load_profile,
    read_profile,
    schema_problems,
)
from shipped_profiles import SHIPPED, shipped

NEMOTRON, QWEN, GLM, GEMMA = "nemotron-3-super-120b", "qwen3.5-397b", "glm-4.7", "gemma-4-31b-it"
STOCK = {"image": "docker.io/lmsysorg/sglang@sha256:0"}
MISTRAL = "mistralai/Mistral-Large-3-675B-Instruct-2512-Eagle"


def args(**values: Any) -> dict[str, Any]:
    """Return an overlay of server_args."""
    return {"server_args": values}


# profile, preset, version (None: the measured one), overlay, rule, word in the remedy
WRONG: list[tuple[str, str, str | None, dict[str, Any], str, str]] = [
    # startup traps of Gemma-4 on four DGX Sparks
    (GEMMA, "mtp-4", None, STOCK, "spec.frozenkv.promote", "24436"),
    (GEMMA, "mtp-4", "0.5.10", STOCK, "spec.frozenkv.promote", "0.5.14"),
    (GEMMA, "mtp-4", "0.5.13", STOCK, "spec.frozenkv.bf16", "0.5.14"),
    (GEMMA, "baseline", "0.5.10", STOCK, "model.arch.unsupported", "0.5.11"),
    (GEMMA, "mtp-4", None, args(speculative_num_draft_tokens=6), "spec.frozenkv.nsteps", "+ 1"),
    (GEMMA, "mtp-6", None, args(speculative_num_draft_tokens=5), "spec.frozenkv.nsteps", "+ 1"),
    (GEMMA, "mtp-4", None, args(speculative_num_draft_tokens=None), "spec.frozenkv.nsteps", "+ 1"),
    (GEMMA, "baseline", None, args(attention_backend="flashinfer"), "attn.gemma4.allow", "triton"),
    (GEMMA, "baseline", "0.5.23", {**STOCK, **args(attention_backend="flashinfer")}, "attn.gemma4.allow", "triton"),
    # the change that brought Frozen-KV MTP
    (GEMMA, "mtp-4", "0.5.13", {**STOCK, **args(speculative_algorithm="EAGLE3")}, "spec.frozenkv.eagle3", "NEXTN"),
    (GEMMA, "mtp-4", "0.5.12", STOCK, "spec.frozenkv.transformers", "0.5.14"),
    ("gemma-4-e4b-it", "mtp-topk1", "0.5.12.post1", STOCK, "spec.frozenkv.transformers", "0.5.14"),
    (GEMMA, "mtp-4", None, args(speculative_draft_model_path=MISTRAL), "spec.alias.remote_fetch", "0.5.12"),
    ("gemma-4-26b-a4b-it-b300", "mtp", None, args(speculative_draft_model_path=MISTRAL),
     "spec.alias.remote_fetch", "0.5.12"),
    # startup traps of Nemotron-3-Super
    (NEMOTRON, "mtp-3-4", None, args(attention_backend="triton"), "attn.nemotron.triton", "flashinfer"),
    (NEMOTRON, "no-spec", None, args(moe_runner_backend="triton"), "moe.nvfp4.runner", "flashinfer_cutlass"),
    (NEMOTRON, "mtp-3-4", "0.5.13", STOCK, "mamba.radix.nobuffer", "disable_radix_cache"),
    (NEMOTRON, "no-spec", None, args(json_model_override_args=None), "ctx.derived", "json_model_override_args"),
    (NEMOTRON, "no-spec", "0.5.12", {**STOCK, **args(mamba_scheduler_strategy="extra_buffer")},
     "mamba.nemotron.extra", "disable_radix_cache"),
    (NEMOTRON, "ep4-mtp-3-4", None, {"topology": {"ep": 2}}, "moe.fi_cutlass.ep", "ep_size"),
    # startup traps of Qwen3.5-397B and GLM-4.7
    (QWEN, "ep4-eager", None, {}, "graph.eager_regime", "CUDA graphs"),
    (QWEN, "ep4-flashinfer-cutlass", None, {}, "moe.nvfp4.fi_cutlass", "triton"),
    (QWEN, "winner", None, {"patches": ["sm121-jit-arch"]}, "sm121.admissible_archs", "sm121-admissible-archs"),
    (QWEN, "winner", "0.5.9", {**STOCK, "patches": []}, "sm121.admissible_archs", "sm121-admissible-archs"),
    (QWEN, "ep4", None, {"patches": ["sm121-admissible-archs", "sm121-jit-arch"]},
     "moe.nvfp4.ep_patches", "cutlass-moe-mask-topk"),
    (QWEN, "ep4-cutlass-fi", "0.5.15", {**STOCK, "patches": ["sm121-jit-arch", "cutlass-moe-zero-init"]},
     "moe.nvfp4.ep_patches", "modelopt-ep-input-scale"),
    (QWEN, "winner", "0.5.16", STOCK, "moe.nvfp4.runner", "flashinfer_cutlass"),
    (GLM, "mtp-triton", "0.5.23", STOCK, "moe.nvfp4.runner", "flashinfer_cutlass"),
    (QWEN, "mtp", None, args(mamba_scheduler_strategy="no_buffer"), "mamba.radix.nobuffer", "extra_buffer"),
    (QWEN, "mtp", None, args(disable_radix_cache=True), "mamba.extra.noradix", "no_buffer"),
    (QWEN, "mtp", None, args(speculative_eagle_topk=4), "spec.v2.topk", "SGLANG_ENABLE_SPEC_V2"),
    (GLM, "winner", "0.5.13", STOCK, "moe.nvfp4.runner", "flashinfer_cutlass"),
    (GLM, "piecewise", None, {}, "graph.piecewise.nvfp4", "disable_piecewise_cuda_graph"),
    (GLM, "mtp-triton", None, args(speculative_eagle_topk=None), "spec.topk.required", "speculative_eagle_topk"),
    # parallel sizes
    (GEMMA, "baseline", None, {"topology": {"nodes": 3}}, "par.nnodes", "multiple of nnodes"),
    (GEMMA, "baseline", None, {"topology": {"tp": 8}}, "par.nnodes", "nnodes"),
    (QWEN, "winner", None, {"topology": {"ep": 3}}, "moe.ep_divides", "divides"),
    ("gemma-4-e4b-it", "baseline", "0.5.23", {**STOCK, **args(dp_size=4)}, "par.dp", "second group"),
    # flags of another release
    (QWEN, "winner", "0.5.16", {**STOCK, **args(fp4_gemm_backend="cutlass")}, "flag.choice", "flashinfer_cutlass"),
    (GEMMA, "baseline", "0.5.21", {**STOCK, **args(kv_cache_dtype="fp4_e2m1")}, "flag.choice", "fp8_e4m3"),
    (GEMMA, "baseline", None, args(kv_cache_dtype="nvfp4"), "flag.choice", "fp8_e4m3"),
    (GEMMA, "baseline", "0.5.23", {**STOCK, **args(cuda_graph_backend_prefill="tc_piecewise")}, "flag.type", "value"),
    (GEMMA, "baseline", "0.5.13", {**STOCK, **args(cuda_graph_backend_prefill="full")}, "translate.refused", "run"),
    (GEMMA, "baseline", None, args(enable_linear_replayssm=True), "translate.refused", "run"),
    (GEMMA, "baseline", "0.5.23", {**STOCK, **args(enable_double_sparsity=True)}, "translate.refused", "Remove"),
    # spelling mistakes
    (GEMMA, "baseline", None, args(mem_fraction_statc=0.6), "flag.unknown", "--mem-fraction-static"),
    (GEMMA, "baseline", None, args(kv_cache_dtyp="fp8_e4m3"), "argparse.abbrev", "--kv-cache-dtype"),
    (GEMMA, "baseline", None, args(kv_cache_dtype="fp8_e4m"), "flag.choice", "fp8_e4m3"),
    (GEMMA, "baseline", None, args(mem_fraction_static="sixty"), "flag.type", "float"),
    (GEMMA, "baseline", None, args(context_length="256K"), "flag.type", "value"),
    (GEMMA, "baseline", None, args(max_running_requests=True), "flag.missing_value", "value"),
    (GEMMA, "baseline", None, args(disable_cuda_graph="yes"), "flag.unexpected_value", "true or false"),
    (GEMMA, "baseline", None, args(speculative_num="4"), "flag.ambiguous", "in full"),
    (GEMMA, "baseline", None, args(cuda_graph_bs=["x"]), "flag.type", "int"),
    (GEMMA, "baseline", "0.5.23", {**STOCK, **args(cuda_graph_config={"decode": {"max": 8}})}, "flag.type", "value"),
    (GEMMA, "baseline", None, args(mem_fraction_static=80), "value.range", "between 0 and 1"),
    (GEMMA, "baseline", None, args(mem_fraction_static=1.5), "value.range", "between 0 and 1"),
    (GEMMA, "baseline", None, args(context_length=-5), "value.range", "1 or more"),
    (GEMMA, "baseline", None, args(max_running_requests=0), "value.range", "1 or more"),
    (GEMMA, "mtp-4", None, args(speculative_num_steps=-2), "value.range", "1 or more"),
    (GEMMA, "baseline", None, args(nccl_port=99999999), "value.range", "65535"),
    (GEMMA, "baseline", None, {"topology": {"tp": 0}}, "value.range", "1 or more"),
    (GEMMA, "baseline", None, args(nccl_transport="roce"), "flag.unknown", "--nccl-port"),
    (GEMMA, "baseline", None, args(tp_size=4), "profile.key.owned", "topology.tp"),
    (GEMMA, "baseline", None, args(nnodes=4), "profile.key.owned", "topology.nodes"),
    (GEMMA, "baseline", None, args(model_path="x"), "profile.key.owned", "model.repo"),
    (GEMMA, "baseline", None, {"patches": ["sm121-jit-arc"]}, "patch.unknown", "sm121-jit-arch"),
    (GEMMA, "baseline", "0.5.22", {}, "profile.image.missing", "images"),
    (GEMMA, "baseline", "0.5.3", STOCK, "version.unsupported", "0.5.9"),
]  # fmt: skip


# the same for settings that SGLang accepts and then changes
SILENT: list[tuple[str, str, str | None, dict[str, Any], str, str]] = [
    (NEMOTRON, "no-spec", "0.5.13", {**STOCK, **args(max_mamba_cache_size=96, max_running_requests=48)},
     "mamba.slots", "to 32"),
    (NEMOTRON, "mtp-3-4", "0.5.14", {**STOCK, **args(max_mamba_cache_size=96, max_running_requests=32)},
     "mamba.slots", "to 19"),
    (NEMOTRON, "mtp-3-4", None, args(max_mamba_cache_size=96, max_running_requests=32), "mamba.slots", "to 19"),
    (NEMOTRON, "mtp-5-5", None, {}, "spec.topk1.autoadjust", "Write 6"),
    (NEMOTRON, "mtp-3-4", "0.5.15", STOCK, "spec.nemotron.loader", "0.5.16"),
    (GEMMA, "mtp-4", "0.5.14", {**STOCK, "sglang_version": "0.5.14", "env": {"SGLANG_ENABLE_SPEC_V2": "1"}},
     "spec.v2env", "Remove"),
    (QWEN, "ep4", None, args(max_running_requests=None), "graph.eager_regime", "max_running_requests"),
    (QWEN, "winner", None, args(max_running_requests=32), "graph.eager_regime", "max_running_requests"),
    (NEMOTRON, "no-spec", None, args(fp4_gemm_backend="flashinfer_cudnn"), "fp4gemm.cudnn", "flashinfer_cutlass"),
    (QWEN, "winner", None, args(moe_runner_backend="triton"), "moe.nvfp4.runner", "cutlass"),
]  # fmt: skip


def expect(case: tuple[Any, ...], *severities: str) -> None:
    """Check that the findings on the profile have the case's rule, with the word in its remedy."""
    name, preset, version, wrong, rule, word = case
    findings = resolve(SHIPPED[name], preset, version, wrong).findings
    found = [finding for finding in findings if finding.rule == rule and finding.severity in severities]
    assert found, [str(finding) for finding in findings]
    assert any(word in finding.remedy for finding in found), found


@pytest.mark.parametrize("case", WRONG, ids=[f"{case[0]}-{case[1]}-{case[4]}" for case in WRONG])
def test_a_wrong_profile_is_refused_with_the_right_finding(case: tuple[Any, ...]) -> None:
    expect(case, "error")


@pytest.mark.parametrize("case", SILENT, ids=[f"{case[0]}-{case[1]}-{case[2] or 'own'}-{case[4]}" for case in SILENT])
def test_settings_that_sglang_changes_are_reported(case: tuple[Any, ...]) -> None:
    expect(case, "warning", "info")


@pytest.mark.parametrize("name", [QWEN, GLM])
def test_the_patches_that_a_refusal_asks_for_lift_it(name: str) -> None:
    """On the oldest release too, where the profiles have them."""
    findings = resolve(SHIPPED[name], "winner", "0.5.9", STOCK).findings
    assert [str(finding) for finding in findings if finding.rule.startswith("sm121.")] == []


def test_a_draft_of_mistral_is_left_to_the_releases_that_read_it() -> None:
    wrong = {**STOCK, **args(speculative_draft_model_path=MISTRAL)}
    findings = resolve(SHIPPED[GEMMA], "mtp-4", "0.5.13", wrong).findings
    assert "spec.alias.remote_fetch" not in {finding.rule for finding in findings}


@pytest.mark.parametrize(
    "wrong",
    [args(api_key="sk-1"), {"env": {"HF_TOKEN": "hf_1"}}, {"env": {"MY_PASSWORD": "x"}}],
)
def test_a_secret_in_a_profile_is_refused(wrong: dict[str, Any]) -> None:
    findings = [found for found in resolve(SHIPPED[GEMMA], None, None, wrong).findings if "secret" in found.rule]
    assert [(found.severity, found.value) for found in findings] == [("error", None)]


def test_a_variable_with_tokens_in_its_name_is_no_secret() -> None:
    findings = resolve(SHIPPED[GEMMA], None, None, {"env": {"SGLANG_B12X_MAX_TOKENS": "8192"}}).findings
    assert "profile.secret" not in {found.rule for found in findings}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("presets", {"default": 5}),
        ("presets", {1: {"description": "x"}}),
        ("image", "https://registry/x"),
        ("images", [{"sglang": "0.5.21", "image": "x:1@md5:12"}]),
        ("model", {"repo": "a/b", "revision": "two words"}),
        ("model", {"repo": "a/b", "quantization": "NVFP4"}),
        ("images", [{"sglang": "0.5.21", "image": "x@sha256:12"}]),
        ("images", [{"sglang": "0.5.21", "image": "x/Y:1"}]),
        ("presets", {"a": {"based_on": ["b"]}}),
        ("default_preset", ["baseline"]),
        ("sampling", {"temperature": -1}),
        ("sampling", {"top_p": 0}),
        ("sampling", {"top_p": 1.5}),
        ("sampling", {"top_k": 0}),
        ("sampling", {"min_p": 2}),
        ("sampling", {"repetition_penalty": 3}),
        ("sampling", {"presence_penalty": -3}),
        ("sampling", {"max_new_tokens": -5}),
    ],
)
def test_a_profile_of_the_wrong_form_is_named(key: str, value: Any) -> None:
    assert list(schema_problems({**SHIPPED[GEMMA], key: value}))


def test_a_wrong_architecture_is_refused_with_a_suggestion() -> None:
    wrong = {"model": {"arch": "Gemma4ForConditionalGenration"}}
    errors = [f for f in resolve(SHIPPED[GEMMA], "baseline", None, wrong).findings if f.severity == "error"]
    assert [f.rule for f in errors] == ["model.arch.unsupported"]
    assert "(did you mean Gemma4ForConditionalGeneration?)" in errors[0].remedy


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"modle": {}}, "unknown key 'modle' (did you mean model?)"),
        ({"topology": {"nodes": 0}}, "topology.nodes"),
        ({"topology": {"gpus": 4}}, "unknown key 'gpus'"),
        ({"status": "fast"}, "status"),
        ({"name": "Gemma 4"}, "name"),
        ({"env": {"nccl_debug": "INFO"}}, "env"),
        ({"env": {"OMP_NUM_THREADS": 8}}, "env.OMP_NUM_THREADS"),
        ({"sglang_version": "latest"}, "sglang_version"),
        ({"server_args": {"--tp-size": 4}}, "server_args"),
        ({"server_args": {"page-size": 4}}, "without its dashes and with underscores, such as context_length"),
        ({"presets": {"Fast One": {}}}, "presets"),
        ({"presets": {"a": {"server_arg": {}}}}, "unknown key 'server_arg' (did you mean server_args?)"),
        ({"expected": {"results": [{"concurrency": 1}]}}, "expected"),
        ({"expected": {"source": "s", "results": [{"tokens_per_second": 1}]}}, "concurrency"),
        ({"patches": "sm121-jit-arch"}, "patches"),
        ({"hardware": "a100"}, "hardware"),
        ({"hardware": "h100"}, "hardware: 'h100' is not one of gb10, b300"),
        ({"default_preset": "basline"}, "has no preset 'basline' (did you mean baseline?)"),
        ({"presets": {"mine": {"based_on": "basline"}}}, "presets.mine.based_on: the profile has no preset 'basline'"),
        ({"model": {"repo": "https://huggingface.co/google/gemma-4-31B-it"}}, "not a URL"),
        ({"sampling": {"temprature": 1}}, "unknown key 'temprature' (did you mean temperature?)"),
        ({"presets": {"a": {"sampling": {"max_tokens": 1}}}}, "unknown key 'max_tokens'"),
        ({"images": [{"sglang": "0.5.11"}]}, "image"),
    ],
)
def test_the_schema_refuses_with_the_place(wrong: dict[str, Any], problem: str) -> None:
    profile = overlay(deepcopy(SHIPPED[GEMMA]), wrong)
    assert any(problem in line for line in schema_problems(profile)), list(schema_problems(profile))


@pytest.mark.parametrize(
    ("missing", "status", "problem"),
    [
        ({"source"}, {"status": "measured"}, "profile: 'source' is a required property"),
        ({"source"}, {"status": "broken"}, "profile: 'source' is a required property"),
        ({"images"}, {"status": "measured"}, "profile: 'images' is a required property"),
        (
            {"source"},
            {"status": "untested", "presets": {"mine": {"status": "measured"}}},
            "presets.mine: 'source' is a required property",
        ),
    ],
)
def test_a_measured_or_broken_preset_needs_a_source_and_an_image(
    missing: set[str], status: dict[str, Any], problem: str
) -> None:
    profile = {key: value for key, value in SHIPPED[GEMMA].items() if key not in missing}
    assert problem in list(schema_problems(overlay(profile, status)))


@pytest.mark.parametrize(
    "change", [{"status": "untested"}, {"source": "s", "image": "i"}, {"source": "s", "image": "i", "status": "broken"}]
)
def test_the_image_may_be_named_in_either_way(change: dict[str, Any]) -> None:
    profile = {key: value for key, value in SHIPPED[GEMMA].items() if key not in {"source", "images"}}
    assert list(schema_problems({**profile, **change})) == []


@pytest.mark.parametrize("key", ["name", "model", "sglang_version", "topology", "server_args", "status"])
def test_the_schema_requires_the_keys_that_every_profile_needs(key: str) -> None:
    profile = {name: value for name, value in SHIPPED[GEMMA].items() if name != key}
    assert any(f"'{key}' is a required property" in line for line in schema_problems(profile))


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"Did you mean glm-4\.7\?"):
        load_profile("glm-47")


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean throughput"):
        shipped(GEMMA, "troughput")


def test_presets_that_are_based_on_each_other_are_refused() -> None:
    profile = overlay(load_profile(GEMMA), {"presets": {"a": {"based_on": "b"}, "b": {"based_on": "a"}}})
    with pytest.raises(ValueError, match="a -> b"):
        resolve(profile, "a")


def test_an_invalid_version_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a version"):
        resolve(SHIPPED[GEMMA], "baseline", "latest")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: a\nname: b\n", "duplicate key"),
        ("name: [a\n", "not readable as YAML"),
        ("- a\n", "is not of type 'object'"),
        ("", "there is nothing in it"),
        ("name: b\n", "must be the file's name"),
        ("name: a\nmodel: &model {repo: *model}\n", "recursive"),
        ("? [a]\n: b\n", "a key is a list"),
        ("name: a\nmodel: {repo: " + "a" * 30000 + "}\n", "a value of 30000 characters, of which 20000 are allowed"),
        ('name: a\nsglang_version: "0.5.23\\n"\n', "does not match"),
        ("name: a\ntopology: {nodes: 4.0}\n", "4.0 is not of type 'integer'"),
        ("name: a\nserver_args: {1: 2}\n", "server_args: '1' does not match"),
        ("name: a\nenv: {1: x}\n", "env: '1' does not match"),
        ("x: !!python/object:os.system {}\n", "not readable as YAML"),
        *(
            (text, "nested too deeply")
            for text in ("[" * 2000 + "]" * 2000, "[" * 500_000, "{" * 500_000, "- " * 500_000, "? " * 500_000)
        ),
    ],
    ids=lambda value: value[:40],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Any, text: str, problem: str) -> None:
    path = tmp_path / "a.yml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=problem):
        read_profile(path)


@pytest.mark.parametrize(
    ("wrong", "preset"),
    [
        ("patches: [[]]", ""),
        ("patches: [1.5]", ""),
        ("server_args: {1: 2}", ""),
        ("presets: {1: {patches: [{}]}}", "1"),
        ("presets: {1: 2}", ""),
        ("presets: {v0.5: {patches: [[]]}}", ""),
    ],
)
def test_what_is_left_of_a_file_with_a_value_of_the_wrong_type_is_checked(
    tmp_path: Any, wrong: str, preset: str
) -> None:
    lines = BOTH.splitlines()
    kept = [line for line in lines if line.partition(":")[0] != wrong.partition(":")[0]]
    (tmp_path / "a.yml").write_text("\n".join([*kept, wrong]))
    with pytest.raises(ProfileError) as caught:
        load_profile("a", [tmp_path])
    assert resolve(caught.value.usable, preset or None).name == "a"


def test_every_flag_may_have_any_value_and_keys_may_be_numbers() -> None:
    """The resolver ends with findings, not with a Python error."""
    for flag in Library.load().knowledge.history.catalogues[-1].flags:
        for value in (7, [1]):
            key = flag.name.removeprefix("--").replace("-", "_")
            assert resolve(SHIPPED[GEMMA], "baseline", "0.5.23", args(**{key: value})).findings, key
    assert "flag.unknown" in {f.rule for f in resolve(SHIPPED[GEMMA], None, None, {"server_args": {1: 2}}).findings}


BOTH = """
name: a
model: {repo: "https://hub.example/google/gemma-4-31B-it", arch: Gemma4ForConditionalGeneration}
sglang_version: "0.5.23"
hardware: h100
topology: {nodes: 4, tp: 4}
server_args: {attention_backend: flashinfer, mem_fraction_statc: 0.6}
status: untested
default_preset: basline
images: [{sglang: "0.5.23"}]
presets: {baseline: {surprise: 1}, other: {topology: {tp: "four"}, server_args: [1]}}
"""


def test_the_valid_part_of_a_wrong_profile_is_checked_in_the_same_run(tmp_path: Any) -> None:
    (tmp_path / "a.yml").write_text(BOTH)
    with pytest.raises(ProfileError, match="surprise") as caught:
        load_profile("a", [tmp_path])
    for preset in (None, "baseline", "other"):
        found = {f.rule for f in resolve(caught.value.usable, preset).findings if f.severity == "error"}
        assert found >= {"attn.gemma4.allow", "flag.unknown"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("own/a.yml", r"own/a.yml is a path; name it a, and its directory in gb10_profile_dirs"),
        ("a", r"there is no profile a, and no directory /nonexistent \(gb10_profile_dirs\)"),
    ],
)
def test_a_profile_that_is_not_found_is_explained(name: str, problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        load_profile(name, ["/nonexistent"])


@pytest.mark.parametrize("text", ["", "- a\n", "name: a\n", "name: [a\n", "sglang_version: 1\n"])
def test_a_file_without_a_release_has_no_flags_to_check(tmp_path: Any, text: str) -> None:
    (tmp_path / "a.yml").write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profile("a", [tmp_path])
    assert caught.value.usable == {}


def test_the_users_own_profile_comes_first(tmp_path: Any) -> None:
    head = "name: glm-4.7\nmodel: {repo: mine/glm}\nsglang_version: '0.5.23'\n"
    (tmp_path / "glm-4.7.yml").write_text(head + "topology: {}\nserver_args: {}\nstatus: untested\n")
    assert load_profile("glm-4.7", [tmp_path])["model"]["repo"] == "mine/glm"
    assert load_profile("glm-4.7")["model"]["repo"] == "nvidia/GLM-4.7-NVFP4"
