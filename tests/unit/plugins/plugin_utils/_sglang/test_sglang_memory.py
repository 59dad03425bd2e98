# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the memory estimate with SGLang's logs and the profiles' sources, and test its arithmetic."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.memory import (
    GIB,
    Estimate,
    Share,
    estimate,
    state_size,
    token_size,
    two_digits,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Model, facts_of, find, load_models
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import ResolvedProfile, overlay, resolve
from sglang_cases import PROFILES
from shipped_profiles import PRESETS, SHIPPED, shipped

MODELS = load_models(PROFILES / "models")
ANY = {"image": "any@sha256:0"}
POOL = {"server_args": {"max_mamba_cache_size": 96, "max_running_requests": 32}}
PLAIN = Model("r", "a", "s", weights_gb=10, layers=10, kv_heads=8, head_dim=128)
GIVEN = {"tp_size": 1, "pp_size": 1, "mem_fraction_static": 0.8}


def known(repo: str) -> Model:
    """Return the shipped facts of a model."""
    model = find(MODELS, repo)
    assert model is not None
    return model


def lines(name: str, preset: str, version: str | None = None, over: Mapping[str, Any] | None = None) -> list[str]:
    """Return the arithmetic of a shipped preset."""
    found: list[str] = resolve(SHIPPED[name], preset, version, over).memory["lines"]
    return found


def rules(found: ResolvedProfile | Estimate) -> set[str]:
    """Return the ids of the findings."""
    return {finding.rule for finding in found.findings}


@pytest.mark.parametrize(("repo", "gigabytes"), [("nvidia/GLM-4.7-NVFP4", 54), ("nvidia/Qwen3.5-397B-A17B-NVFP4", 59)])
def test_weights_of_a_gpu_are_what_the_sources_report(repo: str, gigabytes: int) -> None:
    weights = estimate(known(repo), {**GIVEN, "tp_size": 4}, None, "gb10").weights_gib
    assert weights is not None
    assert weights * GIB / 1e9 == pytest.approx(gigabytes, abs=0.5)


def test_caches_of_qwen_are_what_sglang_logs() -> None:
    # kvcache-ai/ktransformers#1870, two GPUs: "max_mamba_cache_size: 82, conv_state size: 0.13GB, ssm_state size:
    # 7.29GB" (one more is allocated, as padding); "#tokens: 580364, K size: 4.15 GB, V size: 4.15 GB"
    model = known("nvidia/Qwen3.5-397B-A17B-NVFP4")
    state, token = state_size(model, Share(2), 4), token_size(model, "auto", Share(2), 1.0)
    assert state is not None
    assert token is not None
    assert 83 * state.size / GIB == pytest.approx(0.13 + 7.29, abs=0.01)
    assert 580364 * token.size / GIB == pytest.approx(2 * 4.15, abs=0.01)


def test_mamba_states_become_the_requests_that_the_source_reports() -> None:
    plain = resolve(SHIPPED["nemotron-3-super-120b"], "no-spec", None, POOL)
    assert "Mamba states: 96 // 3 per request = 32 requests at once" in plain.memory["lines"]
    assert "mamba.slots" not in rules(plain)
    for version in (None, "0.5.14"):
        drafting = resolve(SHIPPED["nemotron-3-super-120b"], "mtp-3-4", version, {**POOL, **(ANY if version else {})})
        assert "Mamba states: 96 // 5 per request = 19 requests at once" in drafting.memory["lines"]
        assert drafting.memory["requests"] == 19
        assert "mamba.slots" in rules(drafting)


def test_without_a_pool_sglang_makes_one() -> None:
    shown = lines("nemotron-3-super-120b", "mtp-3-4")
    assert "one Mamba state: 40 layers x (128 x 64 x 128 x 4 + 10240 x 3 x 2) bytes / tp 4 = 40.6 MiB" in shown
    states = "Mamba states: 61.4 GiB x 0.9 / 1.9 = 29.1 GiB; / (40.6 MiB x (1 + 4 draft tokens / 5)) = 407 states"
    assert states in shown
    assert "Mamba states: 407 // 5 per request = 81 requests at once" in shown
    assert "Mamba pool: (407 states + 8 requests x 4 draft tokens) x 40.6 MiB = 17.4 GiB" in shown
    ahead = "Mamba states: (22.8 - 1.4 of draft tokens) GiB x 0.9 / 1.9 = 10.1 GiB; / 45.8 MiB = 226 states"
    assert ahead in lines("qwen3.5-397b", "mtp")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"max_running_requests": 32}, set()),
        ({"max_running_requests": 64}, {("warning", "memory.mamba")}),
        ({"max_mamba_cache_size": 4000}, {("error", "memory.mamba")}),
        ({"max_running_requests": 64, "disable_radix_cache": True, "mamba_scheduler_strategy": "no_buffer"}, set()),
    ],
)
def test_requests_that_the_states_do_not_allow_are_said(asked: dict[str, Any], found: set[tuple[str, str]]) -> None:
    findings = resolve(SHIPPED["qwen3.5-397b"], "mtp", None, {"server_args": asked}).findings
    assert {(f.severity, f.rule) for f in findings if f.rule.startswith("memory.")} == found


def test_sliding_layers_have_heads_and_room_of_their_own() -> None:
    shown = lines("gemma-4-31b-it", "throughput")
    full, window = "2 x 10 layers x 1 of 4 heads x 512 x 1 bytes", "2 x 50 layers x 4 of 16 heads x 256 x 1 bytes"
    assert f"one token: {full} + 0.8 x {window} = 90.0 KiB" in shown
    assert "tokens: 47.5 GiB / 90.0 KiB = about 0.55 M" in shown
    assert "sliding layers: about 0.44 M tokens, of which a request needs its last 1024" in shown


def test_a_draft_is_paid_from_what_is_free_until_0_5_13_and_from_the_cache_afterwards() -> None:
    before, after = lines("glm-4.7", "mtp-triton"), lines("glm-4.7", "mtp-triton", "0.5.14", ANY)
    own = "draft: 2.3 GB / tp 4 = 0.5 GiB (built into the checkpoint; estimated: as large as its other layers)"
    assert own in before
    assert own in after
    assert "left for caches: 11.5 GiB" in before
    assert "draft's cache: 0.26 M tokens x 0.5 KiB = 0.1 GiB" in before
    assert any(
        line.startswith("left free: 103.0 - 61.8 - 0.7 of the draft = 40.5 GiB for CUDA graphs") for line in before
    )
    assert "left for caches: 11.0 GiB" in after
    token = "one token: 2 x 92 layers x 2 of 8 heads x 128 x 1 bytes + 0.5 KiB of the draft = 46.5 KiB"
    assert token in after
    assert any(line.startswith("left free: 103.0 - 61.8 = 41.2 GiB") for line in after)


def test_an_assistant_uses_the_cache_of_its_target() -> None:
    shown = lines("gemma-4-31b-it", "mtp-4")
    assert "draft: 0.9 GB / tp 4 = 0.2 GiB (0.47 B parameters x 2 bytes (BF16))" in shown
    assert not any(line.startswith("draft's cache") for line in shown)


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=[f"{name}-{preset}" for name, preset in PRESETS])
def test_every_shipped_preset_is_estimated_to_the_end(name: str, preset: str) -> None:
    resolved = shipped(name, preset)
    starts = [line.partition(":")[0] for line in resolved.memory["lines"]]
    facts, draft = known(resolved.model["repo"]), find(MODELS, resolved.model["draft"])
    assert {"weights", "left for caches", "left free"} <= set(starts)
    tight = resolved.memory["cache_gib"] <= 0
    sized = facts.kv_heads is not None or facts.latent_dim is not None
    assert ({"one token", "tokens"} <= set(starts)) == (sized and not tight)
    assert ("draft" in starts) == bool(resolved.server_args.get("speculative_algorithm"))
    assert ({"one Mamba state", "Mamba pool"} <= set(starts)) == (facts.mamba_heads is not None and not tight)
    unknown = [line.partition(":")[0] for line in resolved.memory["lines"] if "not known" in line]
    built_in = resolved.server_args.get("speculative_algorithm") == "DSPARK" and facts.draft_gb is None
    assert ("draft" in unknown) == (built_in if resolved.model["draft"] is None else draft is None)
    unmet = rules(resolved) & {"memory.weights", "memory.mamba", "memory.context", "memory.system"}
    assert unmet == ({"memory.weights"} if tight else set())
    assert "error" not in {one.severity for one in resolved.findings if one.rule in unmet}


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=[f"{name}-{preset}" for name, preset in PRESETS])
def test_the_bytes_of_a_token_are_what_is_printed(name: str, preset: str) -> None:
    shown = next((line for line in lines(name, preset) if line.startswith("one token: ")), "one token: 0 = 0 KiB")
    terms, total = shown.removeprefix("one token: ").removesuffix(" KiB").split(" = ")
    terms = re.sub(r"(\d+)(?: of \d+)? layers", r"\1", terms)
    terms = re.sub(r"(\d+) of \d+ heads", r"\1", terms).replace(" bytes", "").replace(" x ", " * ")
    terms = re.sub(r"([\d.]+) KiB of the draft", r"\1 * 1024", terms)
    counted = 0.0
    for term in terms.split(" + "):
        product = 1.0
        for factor in term.split(" * "):
            product *= float(factor)
        counted += product
    assert counted / 1024 == pytest.approx(float(total), abs=0.1)


def test_pipeline_stages_share_the_layers() -> None:
    whole, half = lines("glm-4.7", "winner"), lines("glm-4.7", "winner", None, {"topology": {"tp": 2, "pp": 2}})
    assert "one token: 2 x 92 layers x 2 of 8 heads x 128 x 1 bytes = 46.0 KiB" in whole
    assert "one token: 2 x 46 of 92 layers x 4 of 8 heads x 128 x 1 bytes = 46.0 KiB" in half


@pytest.mark.parametrize(
    ("profile", "preset", "published"),
    [
        # test logs of vroomfondel/dgxarley on four DGX Sparks: "max_total_num_tokens" of 0.5.21 and 0.5.12
        ("nemotron-3-super-120b", "mtpv2", 20_900_000),
        ("nemotron-3-ultra-550b", "no-spec", 1_576_000),
        # sglang#37995, two DGX Sparks and one
        ("qwen3.8-flash-next", "mtp", 1_350_000),
        ("qwen3.8-flash-next", "throughput", 753_000),
        ("qwen3.8-flash-next-one-node", "mtp", 93_000),
        ("qwen3.8-flash-next-one-node", "throughput", 286_000),
    ],
)
def test_published_tokens_are_estimated_within_15_percent_or_the_plan_says_its_doubt(
    profile: str, preset: str, published: int
) -> None:
    memory = shipped(profile, preset).memory
    assert memory["tokens"] <= published <= memory["most_tokens"]
    close = abs(memory["likely_tokens"] / published - 1) <= 0.15
    assert close or "uncertain, because parts of the model are unknown (its facts are derived)" in memory["fits"]
    # One of the six: the published pool would need 107 GiB, which none of the other five had.
    assert close != ((profile, preset) == ("qwen3.8-flash-next", "mtp"))


def test_memory_that_a_host_told_replaces_the_default() -> None:
    def planned(*readings: float | None) -> list[str]:
        preset = resolve(SHIPPED["qwen3.8-flash-next"], "mtp", readings=readings)
        return [preset.memory["lines"][0], *(str(one) for one in preset.findings if one.rule == "memory.weights")]

    assert planned() == ["available before the load: 103 to 109 GiB (public logs of DGX Sparks); below for 103"]
    assert planned(119.0, None) == ["available before the load: 103 to 109 GiB (read from the hosts); below for 103"]
    # The group takes the first two nodes; the third one's memory is not its.
    assert planned(119.0, 119.0, 63.0) == planned(119.0)
    first, refused = planned(119.0, 63.0)
    assert first == "available before the load: 47 to 53 GiB (read from the hosts); below for 47"
    assert "error" in refused
    assert "weights of 63.0 GiB do not fit into 45.0 GiB per GPU" in refused


def test_an_error_for_the_least_memory_is_a_warning() -> None:
    (found,) = (one for one in shipped("glm-5.3-flash", "mtp").findings if one.rule == "memory.weights")
    assert found.severity == "warning"
    assert found.reason.startswith("if 103 GiB are available before the load, weights of 93.0 GiB do not fit into 92.7")


@pytest.mark.parametrize(
    ("gpu", "flags", "weights"),
    [
        ("gb10", {}, 118.6),
        ("gb10", {"ple_offload_embedding": True, "ple_offload_backend": "file"}, 70.9),
        ("gb10", {"ple_offload_embedding": True, "ple_offload_backend": "pinned"}, 118.6),
        ("gb10", {"ple_offload_embedding": True, "ple_offload_backend": "pinned", "tp_size": 2}, 83.1),
        ("h200", {"ple_offload_embedding": True, "ple_offload_backend": "pinned", "tp_size": 2}, 35.4),
        ("gb10", {"cpu_offload_gb": 20}, 118.6),
        ("h200", {"cpu_offload_gb": 20}, 98.6),
    ],
)
def test_flags_that_move_weights_count(gpu: str, flags: dict[str, Any], weights: float) -> None:
    found = estimate(known("RadixArk/Qwen3.8-Flash-Next-NVFP4"), {**GIVEN, **flags}, None, gpu)
    assert found.weights_gib == pytest.approx(weights, abs=0.1)


def test_a_draft_of_its_own_is_downloaded_too() -> None:
    drafts = (None, Model("d", "a", "s", weights_gb=3), Model("d", "a", "s"))
    assert [estimate(PLAIN, GIVEN, draft, "gb10").download_gb for draft in drafts] == [10, 13, 10]


def test_a_share_that_sglang_chooses_is_told() -> None:
    own, chosen = (estimate(PLAIN, context, None, "gb10").lines for context in (GIVEN, {}))
    assert any(" GiB x 0.80 = " in line for line in own)
    assert any(" GiB x 0.87 (approximately SGLang's own choice) = " in line for line in chosen)


def test_a_limit_of_tokens_counts_only_where_it_is_smaller_than_the_cache() -> None:
    found = [estimate(PLAIN, {**GIVEN, "max_total_tokens": limit}, None, "gb10") for limit in (None, 10**9, 1000)]
    assert found[0].tokens == found[1].tokens
    assert found[2].tokens == 1000 and any("max_total_tokens limits them" in line for line in found[2].lines)


def test_weights_that_do_not_fit_are_refused() -> None:
    findings = resolve(SHIPPED["qwen3.5-397b"], "winner", None, {"topology": {"nodes": 1, "tp": 1}}).findings
    assert "memory.weights" in {finding.rule for finding in findings if finding.severity == "error"}


def test_the_profiles_own_weights_count() -> None:
    model = {"model": {"repo": "mine/model", "arch": "LlamaForCausalLM", "weights_gb": 400}}
    resolved = resolve(overlay(SHIPPED["gemma-4-31b-it"], model), "baseline")
    assert "memory.weights" in rules(resolved)


@pytest.mark.parametrize(
    ("share", "context", "found"),
    [(0.8, 1000, set()), (0.97, 1000, {"memory.system"}), (0.8, 10**9, {"memory.context"})],
)
def test_what_is_left_for_system_and_context(share: float, context: int, found: set[str]) -> None:
    about = {**GIVEN, "mem_fraction_static": share, "context_length": context}
    assert rules(estimate(PLAIN, about, None, "gb10")) == found


def test_unknown_values_are_reported() -> None:
    bare = Model("r", "a", "s", weights_gb=10)
    shown = estimate(bare, {**GIVEN, "mamba_ratio": 3, "spec": "EAGLE", "eagle_family": True}, None, "gb10").lines
    assert [line.partition(":")[0] for line in shown if "not known here" in line] == [
        "draft",
        "Mamba pool",
        "tokens in the cache",
    ]
    unknown = estimate(None, GIVEN, None, "gb10")
    assert unknown.lines[-1] == "the size of the weights is not known"
    (finding,) = [one for one in unknown.findings if one.rule == "memory.unknown"]
    assert (finding.severity, finding.key) == ("warning", "model.weights_gb")
    assert "weights_gb" in finding.remedy
    assert unknown.load_gib == 0
    assert estimate(None, GIVEN, None, "b300").load_gib is None


@pytest.mark.parametrize(
    "odd",
    [
        {"mem_fraction_static": float("inf")},
        {"mem_fraction_static": float("nan")},
        {"mem_fraction_static": 5.0, "mamba_full_memory_ratio": -1.0},
        {"tp_size": -3, "pp_size": -2},
        {"max_mamba_cache_size": -7, "slots": -5},
        {"swa_full_tokens_ratio": -0.1},
    ],
)
def test_odd_numbers_are_no_traceback(odd: dict[str, Any]) -> None:
    for repo in ("google/gemma-4-31B-it", "nvidia/Qwen3.5-397B-A17B-NVFP4"):
        assert estimate(known(repo), {"tp_size": 4, "mamba_ratio": 3, **odd}, None, "gb10").lines


def test_latents_are_on_every_gpu_and_compressed_layers_keep_a_row_per_some_tokens() -> None:
    def sized(config: dict[str, Any], dtype: str, sliding: float = 0.0) -> float:
        facts = facts_of({"architectures": ["A"], "num_attention_heads": 64, "hidden_size": 4096, **config}, "r", "s")
        assert not {"kv_heads", "head_dim"} & set(facts)
        found = token_size(Model(**facts), dtype, Share(2), sliding)
        assert found is not None
        return found.size

    mla = {"num_hidden_layers": 61, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert sized(mla, "auto") == 61 * 576 * 2
    assert sized(mla, "fp8_e4m3") == 61 * 576
    # 656 bytes are the row of DeepSeek-V3.2 in FP8, 132 those of its indexer.
    assert sized(mla | {"index_head_dim": 128}, "fp8_e4m3") == 61 * (656 + 132)
    v4 = {"num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64}
    v4 |= {"index_head_dim": 128, "compress_ratios": [0, 4, 128, 4, 0]}
    assert sized(v4, "auto", 0.1) == pytest.approx(2 * (584 + 132) / 4 + 584 / 128 + 0.1 * 4 * 584)
    shared = v4 | {"compress_ratios": [0, 2, 2, 1, 0], "kv_source_layer_ids": [1, 3]}
    assert sized(shared, "auto") == (584 + 68) / 2 + (584 + 68)
    unrotated = facts_of({"architectures": ["A"], **v4, "qk_rope_head_dim": None}, "r", "s")
    assert unrotated["latent_dim"] == 512 and "rope_dim" not in unrotated


def test_cached_numbers_of_one_token() -> None:
    sizes = [token_size(PLAIN, dtype, share, 1.0) for dtype, share in (("auto", Share(4)), ("fp8_e4m3", Share(16, 3)))]
    assert [found.size for found in sizes if found is not None] == [2 * 10 * 2 * 128 * 2, 2 * 4 * 1 * 128]
    assert token_size(Model("r", "a", "s"), "auto", Share(1), 1.0) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (665312, "0.67 M"),
        (1_234_567, "1.2 M"),
        (53_211, "53,000"),
        (999, "1,000"),
        (62.3, "62"),
        (0.47, "0.47"),
        (0, "0"),
    ],
)
def test_numbers_for_people_have_two_digits(number: float, text: str) -> None:
    assert two_digits(number) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "not estimated, because the size of the weights is not known"),
        ({"cache_gib": -9.0}, "does not fit: the weights leave no room in 66 GiB"),
        ({"cache_gib": -3.0}, "fits if more than 100 GiB are available: up to 3 GiB for caches"),
        (
            {"cache_gib": -3.0, "most_tokens": 53_000},
            "fits if more than 100 GiB are available: up to 53,000 tokens in the cache",
        ),
        ({"cache_gib": 57.1}, "fits: 57 to 63 GiB for caches"),
        ({"cache_gib": 57.1, "most_gib": 0.0}, "fits: 57 GiB for caches"),
        (
            {"cache_gib": 57.1, "tokens": 665312, "likely_tokens": 680_000, "most_tokens": 733_000},
            "fits: about 0.68 M (0.67 M to 0.73 M) tokens in the cache",
        ),
        (
            {"cache_gib": 57.1, "tokens": 5311, "requests": 8, "doubt": "derived"},
            "fits: 5,300 tokens in the cache, at most 8 requests at once; uncertain, because parts of the model are"
            " unknown (its facts are derived)",
        ),
    ],
)
def test_the_memory_is_one_line_for_people(given: dict[str, Any], text: str) -> None:
    assert Estimate(119.0, 100.0, 0.6, 60.0, **{"most_gib": 110.0, **given}).as_dict()["fits"] == text
