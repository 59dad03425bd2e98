# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare presets that should resolve to one engine with the releases' resolvers, with torch, as on a GB10."""

from pathlib import Path
from typing import Any

import _sglang_environment
import pytest
import sglang_catalogue
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, resolve, topology_argv
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile
from sglang_profiles import matrix

ROOT = Path(__file__).resolve().parents[2]
NEWEST = str(load_history(ROOT / "plugins" / "profiles" / "catalogue").catalogues[-1].version)
PUBLISHED = {"tp": 4, "nodes": 4, "pp": 1, "ep": 1}


def ask(version: str, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the release's answers."""
    return _sglang_environment.ask(sglang_catalogue.unpack(version), sglang_catalogue.CACHE, questions)


def engines(version: str, name: str, presets: list[str]) -> dict[str, dict[str, Any]]:
    """Return what a release makes of a profile's presets."""
    profile = load_profile(name)
    library = Library.load()
    cells = [cell for cell in matrix([profile], library, [version]) if cell.preset in presets]
    arch = resolve(profile, library=library).model["arch"]
    questions = []
    for cell in cells:
        preset = profile["presets"][cell.preset]
        sizes = topology_argv(PUBLISHED | profile["topology"] | (preset.get("topology") or {}))
        questions.append({"argv": ["--model-path", "m", *cell.argv, *sizes], "arch": arch})
    return dict(zip([cell.preset for cell in cells], ask(version, questions), strict=True))


@pytest.mark.parametrize("version", ["0.5.14", NEWEST])
def test_the_depths_of_the_cookbook_resolve_to_one_engine(version: str) -> None:
    depths = ["mtp-3-4", "mtp-5-5", "mtp-5-7"]
    answers = engines(version, "nemotron-3-super-120b", depths)
    assert all(answer["verdict"] == "accepted" for answer in answers.values()), answers
    assert answers["mtp-5-5"]["engine"] == answers["mtp-5-7"]["engine"]
    assert answers["mtp-3-4"]["engine"] != answers["mtp-5-5"]["engine"]
    assert answers["mtp-5-7"]["changes"]["speculative_num_draft_tokens"] == [7, 6]


def test_rows_of_a_published_table_with_one_key_are_one_engine() -> None:
    asked: dict[tuple[str, str], list[str]] = {}
    for path in sorted((ROOT / "plugins/sweeps/published").glob("*.yml")):
        table = yaml.safe_load(path.read_text())
        for row in table["rows"]:
            if key := row.get("key"):
                asked.setdefault((table["profile"], key), []).append(row["cell"]["preset"])
    assert len(asked) == 3 and all(len(presets) > 1 for presets in asked.values())
    for (name, _key), presets in asked.items():
        # What ran on a development image after 0.5.13 is refused by 0.5.13 itself.
        release = resolve(load_profile(name), presets[0]).sglang_version.replace("0.5.13-dev", "0.5.14")
        answers = engines(release, name, presets)
        assert all(answer["verdict"] == "accepted" for answer in answers.values()), answers
        assert len({answer["engine"] for answer in answers.values()}) == 1, presets


def test_a_third_of_the_published_matrix_is_the_same_engine_twice() -> None:
    profile, library = load_profile("qwen3.5-397b"), Library.load()
    presets = {}
    for moe in ("triton", "flashinfer_cutlass", "cutlass"):
        for attention in ("flashinfer", "triton"):
            for gemm in ("flashinfer_cutlass", "flashinfer_cudnn"):
                base = {"moe_runner_backend": moe, "attention_backend": attention, "fp4_gemm_backend": gemm}
                cell = f"{moe}-{attention}-{gemm}"
                presets[f"{cell}-graphs"] = {"server_args": {**base, "disable_piecewise_cuda_graph": True}}
                presets[f"{cell}-piecewise"] = {"server_args": base}
                presets[f"{cell}-eager"] = {"server_args": {**base, "disable_cuda_graph": True}}
    sizes = topology_argv(PUBLISHED | {"ep": 4})
    cells = matrix([profile | {"presets": presets}], library, ["0.5.10"])
    arch = resolve(profile, library=library).model["arch"]
    answers = ask("0.5.10", [{"argv": ["--model-path", "m", *cell.argv, *sizes], "arch": arch} for cell in cells])
    assert (len(answers), len({answer["engine"] for answer in answers})) == (36, 24)


def test_every_change_is_shown_with_both_values() -> None:
    line = "--model-path m --tp-size 4 --nnodes 4 --chunked-prefill-size 4096"
    (answer,) = ask(NEWEST, [{"argv": line.split(), "arch": "Glm4MoeForCausalLM"}])
    assert answer["verdict"] == "accepted", answer
    assert answer["changes"]["mem_fraction_static"][0] is None
    assert 0.8 < answer["changes"]["mem_fraction_static"][1] < 0.95
    assert "chunked_prefill_size" not in answer["changes"]


def test_a_refusal_of_the_release_is_quoted() -> None:
    line = "--model-path m --tp-size 4 --nnodes 3"
    (answer,) = ask(NEWEST, [{"argv": line.split(), "arch": "Glm4MoeForCausalLM"}])
    assert answer["verdict"] == "refused"
    assert "tp_size must be divisible by number of nodes" in answer["message"]


def test_a_draft_without_a_configuration_is_accepted() -> None:
    depth = "--speculative-num-steps 4 --speculative-num-draft-tokens 5 --speculative-eagle-topk 1"
    line = f"--model-path m --speculative-algorithm NEXTN --speculative-draft-model-path d {depth}"
    question = {"argv": line.split(), "arch": "Gemma4ForConditionalGeneration"}
    question |= {"draft_arch": "Gemma4AssistantForCausalLM"}
    release = sglang_catalogue.unpack("0.5.23")
    (answer,) = _sglang_environment.ask(release, sglang_catalogue.CACHE, [question])
    assert answer["verdict"] == "accepted", answer["message"]
