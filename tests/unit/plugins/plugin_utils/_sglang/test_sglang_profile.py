# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the shipped profiles: presets, overlays, translation, expected results, duplicates."""

import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import History
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import find, find_draft
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import (
    Library,
    merge,
    oldest_nccl,
    overlay,
    resolve,
)
from sglang_profiles import matrix
from shipped_profiles import PRESETS, SHIPPED, shipped

LIBRARY = Library.load()
ANY = {"image": "any@sha256:0"}


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=[f"{name}-{preset}" for name, preset in PRESETS])
def test_measured_presets_are_accepted_and_broken_ones_refused(name: str, preset: str) -> None:
    resolved = shipped(name, preset)
    found = {f.rule: f.severity for f in resolved.findings if f.severity != "info" and f.rule != "profile.broken"}
    if resolved.status == "broken":
        # the status alone is not enough: a rule must identify the difference from a preset that runs
        assert set(found) - {f.rule for f in shipped(name).findings}
    else:
        assert "error" not in found.values(), found
    assert resolved.model["arch"]
    assert resolved.image
    # Measured means numbers for exactly this.
    assert bool(merge(SHIPPED[name], preset, None).get("expected")) == (resolved.status == "measured")


def written(name: str, preset: str, *keys: str) -> Any:
    """Return what a preset sets, or the one that it is based on, or the profile; to resolve them all takes seconds."""
    own = SHIPPED[name]["presets"].get(preset, SHIPPED[name])
    found = reduce(lambda part, key: part.get(key) or {}, keys, own)
    return found if found or own is SHIPPED[name] else written(name, own.get("based_on", ""), *keys)


def test_the_page_has_the_releases_of_the_current_presets() -> None:
    page = (Path(__file__).parents[5] / "docs/profiles.md").read_text(encoding="utf-8")
    current = {name: written(name, "current", "sglang_version") for name, preset in PRESETS if preset == "current"}
    assert set(SHIPPED) - set(current) == {"deepseek-v4-flash-vision"}
    newer = page.partition("The presets `current` take 0.5.20, unless")[2].partition(").")[0]
    assert set(re.findall(r"`([^`]+)`", newer)) == {name for name, release in current.items() if release != "0.5.20"}


@pytest.mark.parametrize(
    ("preset", "version", "severity"),
    [("piecewise", None, "error"), ("piecewise", "0.5.13", "warning"), ("winner", None, None)],
)
def test_a_published_failure_is_reported(preset: str, version: str | None, severity: str | None) -> None:
    findings = resolve(SHIPPED["glm-4.7"], preset, version, ANY).findings
    said = [finding for finding in findings if finding.rule == "profile.broken"]
    assert [finding.severity for finding in said] == ([severity] if severity else [])
    assert all(SHIPPED["glm-4.7"]["source"] in finding.reason for finding in said)


def test_sampling_defaults_reach_the_server() -> None:
    over = {"sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": None}}
    for version in ("0.5.10", "0.5.23"):
        argv = resolve(SHIPPED["glm-4.7"], "winner", version, {**over, **ANY}).argv
        assert argv[argv.index("--preferred-sampling-params") + 1] == '{"temperature": 0.6, "top_p": 0.95}'
    assert "--preferred-sampling-params" not in shipped("glm-4.7", "winner").argv


def test_sampling_defaults_that_are_given_twice_or_to_a_release_without_them_are_refused() -> None:
    over = {"sampling": {"temperature": 0.6}, "server_args": {"preferred_sampling_params": {"temperature": 1}}}
    assert "profile.sampling.twice" in {f.rule for f in resolve(SHIPPED["glm-4.7"], "winner", None, over).findings}
    history = LIBRARY.knowledge.history
    newest = history.catalogues[-1]
    without = replace(newest, flags=tuple(f for f in newest.flags if f.name != "--preferred-sampling-params"))
    later = replace(without, version=Version.parse("0.9.0"))
    knowledge = replace(LIBRARY.knowledge, history=History([*history.catalogues, later]))
    findings = resolve(
        SHIPPED["glm-4.7"],
        "winner",
        "0.9.0",
        {"sampling": {"temperature": 0.6}, **ANY},
        replace(LIBRARY, knowledge=knowledge),
    ).findings
    assert ("translate.refused", "--preferred-sampling-params") in {(f.rule, f.key) for f in findings}


def test_every_profile_says_where_it_comes_from() -> None:
    for profile in SHIPPED.values():
        assert profile["source"]
        assert profile["default_preset"] in ("", *profile["presets"])
        for preset in profile["presets"].values():
            assert preset["description"]


def test_a_preset_without_numbers_of_its_own_borrows_none() -> None:
    assert not merge(SHIPPED["nemotron-3-super-120b"], "ep4-mtp-5-5", None).get("expected")


def test_flags_of_topology_and_model_are_left_to_the_serving_plan() -> None:
    for name, preset in PRESETS:
        argv = shipped(name, preset).argv
        assert not {"--tp-size", "--pp-size", "--ep-size", "--nnodes", "--model-path", "--host", "--port"} & set(argv)


def test_a_profile_of_one_release_runs_in_the_spelling_of_another() -> None:
    argv = resolve(SHIPPED["qwen3.5-397b"], "mtp", "0.5.23", ANY).argv
    assert "--cuda-graph-max-bs-decode" in argv
    assert "--mamba-radix-cache-strategy" in argv
    glm = resolve(SHIPPED["glm-4.7"], "winner", "0.5.23", ANY).argv
    assert "--cuda-graph-backend-prefill=disabled" in glm


def test_a_variable_that_later_releases_do_without_is_left_out_there() -> None:
    assert shipped("qwen3.5-397b", "mtp").env == {"SGLANG_ENABLE_SPEC_V2": "1"}
    newer = resolve(SHIPPED["qwen3.5-397b"], "mtp", "0.5.14", ANY)
    assert newer.env == {}
    assert any(finding.key == "SGLANG_ENABLE_SPEC_V2" for finding in newer.findings)


def test_patches_are_needed_where_image_and_version_lack_them() -> None:
    def needed(version: str | None, over: dict[str, Any] | None) -> dict[str, bool]:
        patches = resolve(SHIPPED["gemma-4-31b-it"], "baseline", version, over).patches
        return {patch["name"]: patch["needed"] for patch in patches}

    assert needed(None, None) == {"sm121-jit-arch": False}
    assert needed("0.5.13", ANY) == {"sm121-jit-arch": True}
    assert needed("0.5.16", ANY) == {"sm121-jit-arch": False}


def test_json_and_list_values_are_rendered() -> None:
    profile = overlay(SHIPPED["nemotron-3-super-120b"], {"server_args": {"cuda_graph_bs": [1, 2], "page_size": -1}})
    argv = resolve(profile, "no-spec").argv
    assert argv[argv.index("--json-model-override-args") + 1] == '{"max_position_embeddings": 524288}'
    assert argv[argv.index("--cuda-graph-bs") + 1 :][:2] == ["1", "2"]
    assert "--page-size=-1" in argv


def test_overrides_come_last_and_null_removes_a_key() -> None:
    resolved = resolve(SHIPPED["gemma-4-31b-it"], "mtp-4", None, {"server_args": {"context_length": None}})
    assert "--context-length" not in resolved.argv
    assert overlay({"a": {"b": 1, "c": 2}}, {"a": {"b": None}, "d": 3}) == {"a": {"c": 2}, "d": 3}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_has_an_accepted_preset_on_each_of_the_three_newest_releases(name: str) -> None:
    newest = [str(catalogue.version) for catalogue in LIBRARY.knowledge.history.catalogues[-3:]]
    accepted = {cell.sglang for cell in matrix([SHIPPED[name]], LIBRARY, newest) if cell.state != "refused"}
    # Every image that reads this model's vision encoder is a fork, which the profile says.
    assert accepted == (set() if name == "deepseek-v4-flash-vision" else set(newest))


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("docker.io/lmsysorg/sglang:v0.5.20-cu130", True),
        ("docker.io/lmsysorg/sglang:v0.5.23.post1", False),
        ("localhost/mine:v1.2.2", False),
        ("registry:5000/sglang:latest", False),
        ("docker.io/lmsysorg/sglang:v0.5.20@sha256:" + "0" * 64, True),
    ],
)
def test_an_image_whose_tag_names_another_release_is_a_warning(image: str, warned: bool) -> None:
    found = resolve(SHIPPED["gpt-oss-120b"], "current", "0.5.23", {"image": image}).findings
    assert ("its tag says SGLang 0.5.20" in " ".join(each.reason for each in found)) is warned


def test_no_shipped_image_has_the_tag_of_another_release() -> None:
    told = {f"{name}/{preset}": shipped(name, preset).findings for name, preset in PRESETS}
    assert not [key for key, found in told.items() if any("its tag says" in each.reason for each in found)]


@pytest.mark.parametrize(
    ("path", "repo", "arch"),
    [
        ("/models/GLM-4.7-NVFP4/", "nvidia/GLM-4.7-NVFP4", "Glm4MoeForCausalLM"),
        ("google/gemma-4-31B-it", "google/gemma-4-31B-it", "Gemma4ForConditionalGeneration"),
        ("/models/gemma-4-31B-it", "google/gemma-4-31B-it", "Gemma4ForConditionalGeneration"),
        ("/models/google--gemma-4-31B-it", "google/gemma-4-31B-it", "Gemma4ForConditionalGeneration"),
        ("/models/mine--gemma-4-31B-it", "google/gemma-4-31B-it", "Gemma4ForConditionalGeneration"),
        ("/models/gemma-4-31B-it-assistant", "google/gemma-4-31B-it-assistant", "Gemma4AssistantForCausalLM"),
    ],
)
def test_models_are_found_by_repository_and_by_directory(path: str, repo: str, arch: str) -> None:
    for known in (find, find_draft):
        found = known(LIBRARY.models, path)
        assert found is not None
        assert (found.repo, found.architecture) == (repo, arch)


@pytest.mark.parametrize("path", ["google/gemma-4-E4B-it-mtp", "/models/google--gemma-4-E4B-it-mtp"])
def test_only_a_draft_is_taken_for_an_assistant(path: str) -> None:
    draft = find_draft(LIBRARY.models, path)
    assert draft is not None
    assert draft.architecture == "Gemma4AssistantForCausalLM"
    assert find(LIBRARY.models, path) is None


def test_unknown_models_are_not_found() -> None:
    for path in ("somebody/else", "", None):
        assert find(LIBRARY.models, path) is None
        assert find_draft(LIBRARY.models, path) is None


@pytest.mark.parametrize(
    ("torch", "carries", "nccl"),
    [
        ("2.9.1", (), "2.27.5"),
        ("2.11.0", ("sglang#24436",), "2.28.9"),
        ("2.12.1", (), "2.28.9"),
        ("2.14.1", (), "2.30.7"),
        ("2.15.0", (), "2.30.7"),
        ("2.11.0", ("nccl>=2.31.2",), "2.31.2"),
        ("2.8.0", (), "2.0"),
        (None, (), "2.0"),
    ],
)
def test_the_oldest_nccl_of_an_image(torch: str | None, carries: tuple[str, ...], nccl: str) -> None:
    requires = {} if torch is None else {"torch": torch}
    assert oldest_nccl(SimpleNamespace(requires=requires), carries) == nccl  # type: ignore[arg-type]
