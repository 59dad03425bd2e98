# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the command line of scripts/sglang_check.py: exit status, JSON, plain text, no traceback."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sglang_check
from script_runs import called
from sglang_cases import LATEST, ROOT

GOOD = ["--model-path", "m", "--mem-fraction-static", "0.8"]
call = partial(called, sglang_check.main)


def answer(*words: str) -> dict[str, Any]:
    """Run it with --json and return the object."""
    found: dict[str, Any] = json.loads(call("--json", *words).stdout)
    return found


def test_an_accepted_line_exits_with_0() -> None:
    done = call("--sglang", "latest", "--arch", "LlamaForCausalLM", "--", *GOOD)
    assert done.returncode == 0
    assert f"SGLang {LATEST}: accepted" in done.stdout
    assert done.stdout.strip().endswith("python3 -m sglang.launch_server --model-path m --mem-fraction-static 0.8")


def test_a_refused_line_says_why_and_what_instead() -> None:
    found = answer("--sglang", "0.5.23", "--", *GOOD, "--disable-piecewise-cuda-graph")
    assert found["sglang"] == "0.5.23"
    assert found["accepted"] is False
    assert [f["rule"] for f in found["findings"] if f["severity"] == "error"] == ["flag.renamed"]
    first = found["findings"][0]
    assert {"rule", "severity", "message", "remedy", "flag", "key", "value"} <= set(first)
    assert "--cuda-graph-backend-prefill=disabled" in found["translated"]
    assert call("--sglang", "0.5.23", "--", *GOOD, "--disable-piecewise-cuda-graph").returncode == 1


@pytest.mark.parametrize(
    ("version", "flag", "remedy"),
    [
        ("0.5.10", "--cuda-graph-backend-prefill=disabled", "--disable-piecewise-cuda-graph"),
        ("0.5.13", "--cuda-graph-backend-prefill=tc_piecewise", "--enforce-piecewise-cuda-graph"),
        ("0.5.13", "--cuda-graph-backend-decode=disabled", "--disable-cuda-graph"),
        ("0.5.13", "--cuda-graph-backend-prefill=full", "Remove it, or run SGLang 0.5.14 or later"),
        ("0.5.13", "--cuda-graph-max-bs-decode=8", "--cuda-graph-max-bs=8"),
        ("0.5.23", "--cuda-graph-max-bs=8", "--cuda-graph-max-bs-decode"),
        ("0.5.19", "--cuda-graph-max-bs=8", "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_flag_of_another_release_is_reported_once_with_what_does_the_same_here(
    version: str, flag: str, remedy: str
) -> None:
    findings = answer("--sglang", version, "--", *GOOD, flag)["findings"]
    about = [f for f in findings if f["key"] == flag.partition("=")[0] and f["severity"] != "info"]
    assert [f["value"] for f in about] == [flag.partition("=")[2]]
    assert remedy in about[0]["remedy"]


def test_what_is_known_of_a_model_needs_no_options() -> None:
    line = ["--model-path", "nvidia/GLM-4.7-NVFP4", "--tp-size", "4", "--nnodes", "4"]
    rules = {finding["rule"] for finding in answer("--sglang", "0.5.10", "--", *line)["findings"]}
    assert "graph.piecewise.nvfp4" in rules
    assert "model.unknown" not in rules
    off = answer("--sglang", "0.5.10", "--", *line, "--cuda-graph-backend-prefill=disabled")
    assert "graph.piecewise.nvfp4" not in {finding["rule"] for finding in off["findings"]}


def test_memory_of_a_known_model_is_shown_with_its_arithmetic() -> None:
    line = ["--model-path", "/models/gemma-4-31B-it", "--tp-size", "4", "--nnodes", "4", "--mem-fraction-static", "0.6"]
    shown = call("--sglang", "0.5.23", "--", *line).stdout
    assert "memory of one GPU, estimated:\n  available before the load: 103 to 109 GiB" in shown
    assert "\n  weights and caches may take 103.0 GiB x 0.60 = 61.8 GiB\n" in shown
    assert "\n  weights: 61 GB / (tp 4 x pp 1) = 14.3 GiB" in shown
    assert answer("--sglang", "0.5.23", "--", *line)["memory"]["weights_gib"] == 14.3
    assert answer("--sglang", "0.5.23", "--", *GOOD)["memory"] is None


@pytest.mark.parametrize("path", ["/models/gemma-4-31B-it", "/var/lib/models/google--gemma-4-31B-it"])
def test_a_copy_on_disk_is_the_model(path: str) -> None:
    line = ["--model-path", path, "--attention-backend", "flashinfer", "--mem-fraction-static", "0.6"]
    found = answer("--sglang", "0.5.13", "--", *line)
    assert found["accepted"] is False
    assert {"attn.gemma4.allow"} == {f["rule"] for f in found["findings"] if f["severity"] == "error"}


def test_options_reach_the_rules() -> None:
    tp = ["--tp-size", "8", "--nnodes", "4"]
    assert answer("--sglang", "0.5.23", "--", *GOOD, *tp)["accepted"] is False
    assert answer("--sglang", "0.5.23", "--gpus-per-node", "2", "--", *GOOD, *tp)["accepted"] is True
    spec = ["--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", "d", "--speculative-eagle-topk", "1"]
    spec += ["--speculative-num-steps", "4", "--speculative-num-draft-tokens", "5"]
    gemma = ["--arch", "Gemma4ForCausalLM", "--draft-arch", "Gemma4AssistantForCausalLM"]
    assert answer("--sglang", "0.5.12", *gemma, "--", *GOOD, *spec)["accepted"] is False
    carried = ["--carries", "sglang#24436", "--carries", "transformers>=5.8"]
    assert answer("--sglang", "0.5.12", *gemma, *carried, "--", *GOOD, *spec)["accepted"] is True
    v2 = ["--env", "SGLANG_ENABLE_SPEC_V2=1"]
    retired = answer("--sglang", "0.5.14", *gemma, *v2, "--", *GOOD, *spec)
    assert retired["accepted"]
    assert "spec.v2env" in {finding["rule"] for finding in retired["findings"]}


NO_CONFIGS = ("", "[]", "{}", '{"architectures": []}')


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sglang", "newest", "--", *GOOD], "is not a version"),
        (["--sglang", "0.5.23"], "after --"),
        (["--", *GOOD], "--sglang"),
        (["--sglang", "0.5.23", "--gpus-per-node", "0", "--", *GOOD], "at least one GPU"),
        (["--sglang", "0.5.23", "--env", "X", "--", *GOOD], "KEY=VALUE"),
        (["--sglang", "0.5.23", "--gpu", "tpu", "--", *GOOD], "invalid choice"),
        (["--sglang", "0.5.23", "--dir", "/nowhere", "--", *GOOD], "/nowhere is not a directory"),
        *(
            (["--sglang", "0.5.23", "--model-config", f"{number}/config.json", "--", *GOOD], "config.json")
            for number in range(len(NO_CONFIGS))
        ),
    ],
)
def test_invalid_options_are_refused(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, config in enumerate(NO_CONFIGS):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text(config)
    done = call(*words)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [[""], ["--"], ["--tp-size", ""], ["--tp-size", "0"], ["--nnodes", "0"], ["--x=\udcff"]]
)
def test_odd_lines_are_refused_without_a_traceback(words: list[str]) -> None:
    done = call("--json", "--sglang", "0.5.23", "--", *GOOD, *words)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["accepted"] is False


CONFIG = {
    "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "MEM*E", "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 2, "hidden_size": 4096, "mamba_num_heads": 128,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 512,
    "max_position_embeddings": 4096, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}  # fmt: skip


@pytest.mark.parametrize("way", ["file", "directory", "staged"])
def test_facts_and_memory_come_from_a_config_json(tmp_path: Path, way: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    index = {"metadata": {"total_size": 21_400_000_000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    given = {"file": ["--model-config", str(tmp_path / "config.json")], "directory": ["--model-config", str(tmp_path)]}
    path = str(tmp_path) if way == "staged" else "org/Mine"
    flags = ["--model-path", path, "--mem-fraction-static", "0.8", "--context-length", "8192", "--tp-size", "1"]
    found = answer("--sglang", "0.5.18", *given.get(way, []), "--", *flags, "--attention-backend", "triton")
    assert {"attn.nemotron.triton", "ctx.derived"} <= {f["rule"] for f in found["findings"] if f["severity"] == "error"}
    assert found["memory"]["weights_gib"] == 19.9
    assert any("Mamba states" in line for line in found["memory"]["lines"])


def test_a_config_json_adds_to_what_is_known_and_flags_have_precedence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["Glm4MoeForCausalLM"]}))
    line = ["--", "--model-path", "nvidia/GLM-4.7-NVFP4", "--mem-fraction-static", "0.8"]
    line += ["--tp-size", "4", "--nnodes", "4"]
    found = answer("--sglang", "0.5.23", "--model-config", str(tmp_path), *line, "--context-length", "8192")
    assert found["memory"]["weights_gib"] == 50.3
    assert "ctx.derived" in {f["rule"] for f in found["findings"]}
    found = answer("--sglang", "0.5.23", "--model-config", str(tmp_path), "--max-context", "9000", *line)
    assert "ctx.derived" not in {f["rule"] for f in found["findings"]}


def test_own_facts_rules_and_releases_are_used(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "catalogue").mkdir()
    facts = {"repo": "org/Mine", "architecture": "NemotronHForCausalLM", "source": "my own", "max_context": 4096}
    (tmp_path / "models" / "mine.json").write_text(json.dumps(facts))
    rule = {"id": "mine.rule", "severity": "error", "when": "arch == 'NemotronHForCausalLM'", "key": "model_path"}
    rule |= {"reason": "it fails here", "remedy": "Do not", "source": "seen here", "evidence": "measured"}
    (tmp_path / "rules.json").write_text(json.dumps({"rules": [rule]}))
    release = json.loads((ROOT / "plugins/profiles/catalogue/0.5.23.json").read_text()) | {"sglang": "0.5.99"}
    (tmp_path / "catalogue" / "0.5.99.json").write_text(json.dumps(release))
    found = answer("--sglang", "0.5.99", "--dir", str(tmp_path), "--", "--model-path", "org/Mine")
    assert found["judged_by"] == "0.5.99"
    # No rule was checked for it, but its own parser refuses the flag.
    line = ["--dir", str(tmp_path), "--", *GOOD, "--disable-piecewise-cuda-graph"]
    assert answer("--sglang", "0.5.99", *line)["accepted"] is False
    assert "mine.rule" in {f["rule"] for f in found["findings"]}


@pytest.mark.parametrize(
    "command",
    [
        "python3 -u -m sglang.launch_server --model-path m",
        "docker run --gpus all -p 1:1 some/image:v0.5.23 python3 -m sglang.launch_server --model-path m",
        "/opt/venv/bin/sglang serve m",
        "uv run sglang serve --model-path m",
    ],
)
def test_a_whole_command_can_be_pasted_with_and_without_quotes(command: str) -> None:
    for words in (command.split(), [command]):
        assert answer("--sglang", "0.5.23", "--", *words)["translated"] == ["--model-path", "m"]
    assert call("--sglang", "0.5.23", "--", f"{command} '").returncode == 2


def test_a_command_of_vllm_gets_the_counterparts_alone() -> None:
    found = answer("--sglang", "0.5.23", "--", "vllm", "serve", "m", "--max-model-len", "8")["findings"]
    assert [finding["rule"] for finding in found if finding["severity"] == "error"] == ["name.vllm"]


def test_a_removed_value_is_reported_once() -> None:
    found = answer("--sglang", "0.5.23", "--", *GOOD, "--kv-cache-dtype", "fp4_e2m1")["findings"]
    assert [finding["rule"] for finding in found if finding["severity"] == "error"] == ["flag.choice"]


def test_a_node_may_have_more_gpus_than_the_group_uses() -> None:
    for line in (["--tp-size", "1"], ["--dp-size", "2"]):
        assert answer("--sglang", "0.5.23", "--gpus-per-node", "2", "--", *GOOD, *line)["accepted"]
