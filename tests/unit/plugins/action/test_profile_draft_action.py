# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the conversion of commands, recipes and model configurations to profiles."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action.profile_draft import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.adopt import (
    Source,
    commented,
    repository,
    to_profile,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.argv import parse_flags
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import Catalogue, Item, translate
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import load_models
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import render_argv, topology_argv
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import (
    official_images,
    schema_problems,
    with_sampling,
)
from sglang_cases import KNOWLEDGE, ROOT

OURS = max(official_images(), key=lambda image: Version.parse(image.sglang))
EMPTY: dict[str, Any] = {"name": "mine", "command": "", "recipe": "", "config": "", "repo": "", "nodes": 1}
EMPTY |= {"sglang_version": "", "image": "", "profile_dirs": []}

DOCKER = """docker run -d --gpus all --shm-size 32g --ipc=host -e HF_TOKEN=hf_geheim -e SGLANG_X=1 \\
  -e "NCCL_SOCKET_IFNAME=eth0" -v ~/models:/models -p 30000:30000 lmsysorg/sglang:v0.5.16-cu130 \\
  python3 -m sglang.launch_server --model-path nvidia/GLM-4.7-NVFP4 --tp 4 --nnodes 4 --node-rank 0 \\
  --dist-init-addr 10.0.0.1:20000 --host 0.0.0.0 --port 30000 --ep-size 2 --mem-fraction-static 0.8 \\
  --cuda-graph-max-bs-decode=8 --trust-remote-code --preferred-sampling-params '{"temperature": 0.6}' \\
  --json-model-override-args '{"a": 1}' > log.txt 2>&1 &"""

RECIPE = {
    "model": "nvidia/Qwen3.5-397B-A17B-NVFP4",
    "runtime": "sglang",
    "min_nodes": 4,
    "container": "some/dgx-spark-sglang:0.5.9-dev-9fac90d8-t5",
    "metadata": {"description": "Qwen on four"},
    "defaults": {
        "port": 8000, "host": "0.0.0.0", "tensor_parallel": 4, "gpu_memory_utilization": 0.85, "max_model_len": 4096,
        "attention_backend": "triton", "trust_remote_code": True,
    },
    "env": {"SGLANG_X": 1},
}  # fmt: skip


def draft(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the profile and the result."""
    result = ActionModule.act(None, EMPTY | options, {})
    profile = yaml.safe_load(result["profile"])
    assert list(schema_problems(profile)) == []
    return profile, result


def test_a_docker_run_becomes_the_profile_that_does_the_same() -> None:
    profile, result = draft(command=DOCKER)
    assert profile["model"] == {"repo": "nvidia/GLM-4.7-NVFP4"}
    assert profile["images"] == [{"sglang": "0.5.16", "image": "lmsysorg/sglang:v0.5.16-cu130"}]
    assert profile["topology"] == {"nodes": 4, "tp": 4, "pp": 1, "ep": 2}
    assert profile["server_args"] == {
        "mem_fraction_static": 0.8,
        "cuda_graph_max_bs_decode": 8,
        "trust_remote_code": True,
        "json_model_override_args": '{"a": 1}',
    }
    assert profile["sampling"] == {"temperature": 0.6}
    assert profile["env"] == {"SGLANG_X": "1"}
    left = {finding["key"]: finding["severity"] for finding in result["findings"] if finding["rule"] == "adopt.left"}
    assert left == {
        "HF_TOKEN": "warning", "NCCL_SOCKET_IFNAME": "info", "docker": "info", "command": "info",
        "--host": "info", "--port": "info", "--node-rank": "info", "--dist-init-addr": "info",
    }  # fmt: skip
    assert [finding["key"] for finding in result["findings"] if finding["rule"] == "adopt"] == ["trust_remote_code"]
    assert len(result["left_out"]) == len(left)
    assert "geheim" not in json.dumps(result)


@pytest.mark.parametrize("with_command", [True, False])
def test_a_recipe_becomes_a_profile(tmp_path: Path, with_command: bool) -> None:
    command = (
        "python3 -m sglang.launch_server --model-path {model} --context-length {max_model_len} --trust-remote-code \\\n"
        " --mem-fraction-static {gpu_memory_utilization} --tp-size {tensor_parallel} --host {host} --port {port} \\\n"
        " --attention-backend {attention_backend}\n"
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE | ({"command": command} if with_command else {})))
    profile, _result = draft(recipe=str(path))
    assert profile["description"] == "Qwen on four"
    assert profile["sglang_version"] == "0.5.9-dev"
    assert profile["topology"] == {"nodes": 4, "tp": 4, "pp": 1, "ep": 1}
    expected = {"context_length": 4096, "mem_fraction_static": 0.85, "attention_backend": "triton"}
    assert profile["server_args"] == expected | {"trust_remote_code": True}
    assert profile["env"] == {"SGLANG_X": "1"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "sglang serve --model-path m --swap-space=4 --enable-expert-parallel",
            ("--enable-expert-parallel", "--ep-size"),
        ),
        ("sglang serve --model-path m --fp8-gemm-backend x --api-key a --api-key b", ("--fp8-gemm-backend x: ", "***")),
        ("sglang serve --model-path m --tp 2 --tp 4 --nnodes 4", ("--tp-size 2: is given again",)),
        ("sglang serve --model-path m --help -- x", ("--help: prints the help", "--: the server takes no positional")),
        ("sglang serve --model-path $MODEL --tp-size 2", ("$MODEL", "Write its value")),
        ("sglang serve --model-path /models/org--m", ("org/m is assumed",)),
        ("A=$HOME sglang serve --model-path m", ("from your shell",)),
        ("bash -c 'sglang serve --model-path m --tp-size 2 --nnodes 1'", ("a DGX Spark has one",)),
        ("sglang serve --model-path m", (f"{OURS.reference}'", "was not given, and is taken: SGLang's own")),
        ("sglang serve --model-path m --attention-backend fa3", ("attn.fa3_sm12x",)),
        ("bash -lc 'pip install accelerate && sglang serve --model-path m'", ("pip install accelerate", "step before")),
        (
            "docker exec box bash -c 'apt install x\nsglang serve --model-path m'",
            ("apt install x", "was not given"),
        ),
        ("bash -c 'pip install a==5.8 && sglang serve --model-path m'", ("pip install a==5.8", "step before")),
        ("docker run --env-file .env x:v0.5.20 sglang serve --model-path m", ("--env-file .env", "under env")),
        ("sglang serve --config /cfg.yaml", ("config = '/cfg.yaml'", "are not checked")),
        ("sglang serve --model-path m --quantization nvfp4", ("--quantization modelopt_fp4",)),
    ],
)
def test_settings_that_are_not_carried_over_are_reported(command: str, words: tuple[str, ...]) -> None:
    _profile, result = draft(command=command)
    assert not [word for word in words if word not in result["msg"]], result["msg"]


@pytest.mark.parametrize(
    "before",
    [
        "docker run -eA=1 -v/a:/b -p8000:8000 -it --log-opt max-size=1m --userns host IMAGE sglang serve",
        "podman run --replace --device nvidia.com/gpu=all --env A=1 --entrypoint sglang IMAGE serve",
        "sudo nerdctl run --rm --env=A=1 -u1000 --cap-add SYS_PTRACE IMAGE bash -lc 'sglang serve ARGS; echo done'",
        'docker run IMAGE sh -c "cd /x && export A=1; python3 -m sglang.launch_server ARGS 2>&1 | tee log"',
        "ssh node1 \"docker run -d -e A=1 IMAGE bash -c 'sglang serve ARGS' > /dev/null 2>&1 &\"",
    ],
)
def test_every_way_to_start_a_container_gives_the_same_profile(before: str) -> None:
    image, args = "lmsysorg/sglang:v0.5.16-cu130", "--model-path a/b --tp-size 2 --nnodes 2"
    line = before if "ARGS" in before else f"{before} ARGS"
    profile, _result = draft(command=line.replace("IMAGE", image).replace("ARGS", args))
    assert profile["images"] == [{"sglang": "0.5.16", "image": image}]
    assert (profile["env"], profile["server_args"]) == ({"A": "1"}, {})
    assert (profile["model"], profile["topology"]["tp"]) == ({"repo": "a/b"}, 2)


LINES = json.loads((ROOT / "tests" / "unit" / "fixtures" / "sglang" / "spark-rows.json").read_text())["rows"]


def test_the_profile_of_each_public_line_starts_the_same_or_names_what_it_leaves_out() -> None:
    history, counted = KNOWLEDGE.history, Counter[str]()
    stored: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in LINES:
        catalogue = history.nearest(Version.parse(row["sglang"]))[0]
        source = Source(argv=list(row["flags"]))
        fallback = {"repo": "", "sglang_version": row["sglang"], "image": "some/sglang:1"}
        profile, findings = to_profile(source, KNOWLEDGE, "mine", {}, fallback)
        text = yaml.safe_load(commented(profile, source.left_out))
        settings = with_sampling(text["server_args"], text.get("sampling") or {}, "")[0]
        argv = ["--model-path", text["model"]["repo"], *render_argv(settings, catalogue, history)[0]]
        argv += ["--revision", text["model"]["revision"]] if "revision" in text["model"] else []
        again = parse_flags(catalogue, history, [*argv, *topology_argv(text["topology"])])
        left = [finding for finding in findings if finding.rule == "adopt.left"]
        items = parse_flags(catalogue, history, row["flags"]).items
        for item in items:
            written = [item] if item.flag else translate([item], catalogue, history)[0]
            names = {item.option, *(one.option for one in written)}
            out = [
                one for one in left if one.key in names and (one.value or "") in (*map(" ".join, [item.words]), "***")
            ]
            words = [word for one in written for word in one.argv]
            key = (catalogue.version, *words)
            # Most lines have the same flags: a fifth of the time.
            asked = stored[key] = stored.get(key) or parse_flags(catalogue, history, words).stored
            kept = {dest: again.stored.get(dest, default(catalogue, dest)) for dest in asked}
            same = bool(asked) and {key: plain(value) for key, value in asked.items()} == {
                key: plain(value) for key, value in kept.items()
            }
            assert same or out or is_directory(item), (row["id"], item.argv, asked, kept, source.left_out)
            counted["left out" if out else "same"] += 1
    assert len(LINES) >= 482
    assert counted["left out"] < counted["same"] / 3, counted


def default(catalogue: Catalogue, dest: str) -> Any:
    return next((flag.default for flag in catalogue.flags if flag.dest == dest), None)


def plain(value: Any) -> Any:
    """Return a value whose JSON is not text any more."""
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value


def is_directory(item: Item) -> bool:
    """Tell whether the flag names a directory, of which the profile has the repository, and a warning says so."""
    return item.option == "--model-path" and item.words[0].startswith("/")


def test_flags_of_another_release_get_their_name_and_those_without_one_are_named() -> None:
    line = "sglang serve --model-path a/b --cuda-graph-bs 1 2 4 8 --moe-runner-backend b12x --fp4-gemm-backend cutlass"
    profile, result = draft(command=f"docker run x/sglang:v0.5.21 {line} --no-such-flag 3")
    assert profile["server_args"] == {"cuda_graph_bs_decode": [1, 2, 4, 8]}
    assert "has --no-such-flag, --moe-runner-backend, --fp4-gemm-backend, if it is a fork" in result["msg"]
    left = {each.partition(":")[0] for each in result["left_out"]}
    assert left == {"--moe-runner-backend b12x", "--fp4-gemm-backend cutlass", "--no-such-flag 3"}
    assert "error" not in [one["severity"] for one in result["findings"] if one["rule"] == "flag.renamed"]
    block = "Left out of the source, because:\n  {}".format("\n  ".join(result["left_out"]))
    assert block in result["msg"] and block.replace("\n", "\n# ").replace("Left", "# Left", 1) in result["profile"]


def test_what_a_release_always_does_and_names_of_vllm_are_said() -> None:
    line = "sglang serve --model-path a/b --disable-piecewise-cuda-graph --max-num-seqs 4"
    profile, result = draft(command=f"docker run x/sglang:v0.5.9 {line}")
    assert profile["server_args"] == {"max_running_requests": 4}
    why = "this release compiles no prefill graph unless asked to"
    assert result["left_out"] == [f"--disable-piecewise-cuda-graph: {why}"]
    assert "--max-num-seqs: is vLLM's name; SGLang has --max-running-requests" in result["msg"]


def test_an_imported_profile_is_commented() -> None:
    _profile, result = draft(command="sglang serve --model-path a/b")
    lines = result["profile"].splitlines()
    for key in ("model", "sglang_version", "images", "topology", "server_args", "status", "presets"):
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{key}:"))
        assert lines[place - 1].startswith("# ")


def test_the_image_is_looked_up_and_a_profile_of_the_model_is_named() -> None:
    line = "docker run scitrera/dgx-spark-sglang:0.5.10 sglang serve --model-path nvidia/GLM-4.7-NVFP4"
    profile, result = draft(command=line)
    assert (profile["sglang_version"], profile["images"][0]["carries"]) == ("0.5.10", ["nvidia-cudnn-cu12"])
    own = draft(command=f"docker run {OURS.reference.partition('@')[0]} sglang serve --model-path a/b")[0]
    assert own["images"] == [{"sglang": OURS.sglang, "image": OURS.reference}]
    assert result["sglang_version"] == "0.5.10"
    assert result["msg"].startswith("There are profiles of this model: glm-4.7\n")


def test_own_profiles_know_images_and_models_too(tmp_path: Path) -> None:
    line = "docker run mine/x:1 sglang serve --model-path org/Mine"
    with pytest.raises(AnsibleActionFail, match=r"mine/x:1 does not say .* -e profile_new_sglang_version=RELEASE"):
        draft(command=line)
    profile, result = draft(command=line, sglang_version="0.5.19")
    (tmp_path / "first.yml").write_text(result["profile"].replace("name: mine", "name: first"))
    profile, result = draft(command=line, profile_dirs=[tmp_path])
    assert profile["sglang_version"] == "0.5.19"
    assert result["msg"].startswith("There are profiles of this model: first\n")


@pytest.mark.parametrize(
    ("asked", "image", "said"),
    [
        ("", "", OURS.reference),
        ("0.5.19", "", "docker.io/lmsysorg/sglang:v0.5.19-cu130@sha256:"),
        ("0.5.12", "", "docker.io/scitrera/dgx-spark-sglang:0.5.12@sha256:"),
        ("0.5.7", "", "docker.io/lmsysorg/sglang:v0.5.7"),
        ("0.5.20", "mine/x:8.1.0", "mine/x:8.1.0"),
        ("", "x/sglang:v0.5.20-cu130", "x/sglang:v0.5.20-cu130"),
    ],
)
def test_release_and_image_fit_each_other(asked: str, image: str, said: str) -> None:
    profile, result = draft(command="sglang serve --model-path a/b", sglang_version=asked, image=image)
    assert said in profile["images"][0]["image"]
    assert profile["images"][0]["sglang"] == profile["sglang_version"] == result["sglang_version"]
    assert profile["sglang_version"] == (asked or ("0.5.20" if image else OURS.sglang))


def test_a_repository_may_be_the_address_of_its_page() -> None:
    for text in ("https://huggingface.co/a/b", "http://www.huggingface.co/a/b/tree/main?x=1", " a/b ", "hf.co/a/b.git"):
        assert repository(text) == "a/b"
    profile, _result = draft(command="sglang serve --model-path https://huggingface.co/a/b")
    assert profile["model"]["repo"] == "a/b"


def test_keys_are_never_written_into_a_profile() -> None:
    line = "HF_token=geheim sglang serve --model-path m --api-key geheim --admin-api-key=geheim --hub-token geheim"
    before = "docker run --label token=geheim -e X_TOKEN=geheim x/y:v0.5.20 bash -c 'hf login --token geheim &&"
    profile, result = draft(command=f"{before} {line}'")
    assert profile["server_args"] == profile["env"] == {}
    assert "geheim" not in json.dumps(result)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": "services:\n  a:\n    image: x\n    command: sglang serve --model-path m"}, "compose file"),
        ({"command": "sglang.launch_server --model-path m\nsglang.launch_server --model-path m"}, "more than once"),
        ({"command": "vllm serve m"}, "does not start SGLang"),
        ({"command": "docker"}, "command=FILE"),
        ({"command": "sglang serve 'm"}, "can't be read"),
        ({"command": "docker run mine/x:8.1.0 sglang serve --model-path a/b"}, r"mine/x:8\.1\.0 does not say"),
        ({"recipe": "/nowhere"}, "not readable"),
        ({"config": "/nowhere/config.json", "repo": "a/b"}, "not a model's config.json"),
    ],
)
def test_other_input_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AnsibleActionFail, match=words):
        draft(**options)


@pytest.mark.parametrize("recipe", [{}, {"model": "m", "runtime": "vllm"}, ["m"]])
def test_a_recipe_for_something_else_is_refused(tmp_path: Path, recipe: Any) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(AnsibleActionFail, match="recipe"):
        draft(recipe=str(path))


# Parts of the config.json of published models, each with facts that follow from it.
CONFIGS = json.loads((ROOT / "tests" / "unit" / "fixtures" / "sglang" / "model-configs.json").read_text())


def test_an_older_modelopt_checkpoint_has_its_quantization_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[1][0]))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert draft(config=str(tmp_path), repo="org/Mine")[0]["model"]["quantization"] == "modelopt_fp4"


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=range(len(CONFIGS)))
def test_facts_come_from_the_configuration(tmp_path: Path, config: dict[str, Any], expected: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 61_400_000_000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    profile, result = draft(config=str(tmp_path), repo="org/Mine", nodes=2)
    facts = json.loads(result["facts"])
    assert {key: facts.get(key) for key in expected} == expected
    assert facts["weights_gb"] == profile["model"]["weights_gb"] == 61.4
    assert profile["model"]["arch"] == config["architectures"][0]
    assert profile["topology"]["tp"] == 2
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.json").write_text(result["facts"])
    assert load_models(tmp_path / "models")["org/mine"].weights_gb == 61.4


@pytest.mark.parametrize(("nodes", "refused"), [(4, True), (2, False)])
def test_the_new_profile_is_judged_by_the_facts_of_its_configuration(tmp_path: Path, nodes: int, refused: bool) -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 768,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    _profile, result = draft(config=str(tmp_path), repo="org/Mine", nodes=nodes)
    assert ("moe.fp8.blocks" in result["msg"]) == refused, result["msg"]


EXEC = "python3 -m sglang.launch_server --model-path a/b"


@pytest.mark.parametrize(
    ("command", "tp"),
    [
        ("sglang serve a/b --tp-size 2 --nnodes 2", 2),
        # Here the word before the program names a container or a service.
        (f"docker compose exec box {EXEC}", 1),
        (f"docker compose -f x.yml run --rm box {EXEC}", 1),
        (f"docker exec -it box {EXEC}", 1),
        (f"kubectl exec -it box-0 -- {EXEC}", 1),
        ("docker run -e M=a/b x/y:v0.5.20 sh -c 'python3 -m sglang.launch_server --model-path $M'", 1),
        ("export M=a/b; sglang serve --model-path ${M}", 1),
        ("M=a\nsglang serve --model-path $M/b", 1),
        ("sglang serve --model-path a/b \\ # mine\n --tp 2 \\  # two\n --nnodes 2", 2),
        # As a web page shows it.
        ("sglang serve \u2013model-path \u201ca/b\u201d \u2014tp 2", 2),
        ("sglang serve --model-path a/b \u2013-tp 2", 2),
        ("launch.sh", 2),
    ],
)
def test_every_form_of_a_command_gives_model_image_and_topology(command: str, tp: int, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("#!/bin/sh\nsglang serve a/b --tp 2\n")
    profile, result = draft(command=str(tmp_path / command) if command == "launch.sh" else command)
    image = {"sglang": "0.5.20", "image": "x/y:v0.5.20"} if "x/y" in command else None
    assert profile["images"] == [image or {"sglang": OURS.sglang, "image": OURS.reference}]
    assert (profile["model"]["repo"], profile["topology"]["tp"], profile["server_args"]) == ("a/b", tp, {})
    assert "positional" not in result["msg"]


def test_an_address_or_a_rank_from_the_shell_is_no_mistake() -> None:
    line = "sglang serve --model-path a/b --tp 2 --nnodes 2 --node-rank $SLURM_NODEID --dist-init-addr $HEAD:5000"
    profile, result = draft(command=line)
    assert (profile["topology"]["nodes"], profile["server_args"]) == (2, {})
    assert not [each for each in result["findings"] if each["severity"] == "error"]
    assert [each.partition(" ")[0] for each in result["left_out"]] == ["--node-rank", "--dist-init-addr"]


def test_a_value_from_the_shell_is_reported_once() -> None:
    result = ActionModule.act(None, EMPTY | {"command": "sglang serve --model-path a/b --tp ${TP:-2}"}, {})
    assert [each["key"] for each in result["findings"] if each["severity"] == "error"] == ["--tp-size"]


@pytest.mark.parametrize("repo", ["Qwen/Qwen3-8B@abc", "hf.example/Qwen/Qwen3-8B", "https://example.com/Qwen/Qwen3-8B"])
def test_what_is_no_repository_is_refused(repo: str) -> None:
    result = ActionModule.act(None, EMPTY | {"command": f"sglang serve --model-path {repo}"}, {})
    assert f"model.repo: '{repo}' does not match" in result["msg"]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("model", ["a"], "a text"),
        ("defaults", ["a"], "a mapping"),
        ("env", ["A=1"], "a mapping"),
        ("metadata", "text", "a mapping"),
        ("min_nodes", "two", "a number"),
        ("container", {"a": 1}, "a text"),
    ],
)
def test_a_key_of_a_recipe_with_a_wrong_type_is_named(tmp_path: Path, key: str, value: Any, kind: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, key: value}))
    with pytest.raises(AnsibleActionFail, match=f"the recipe's {key} is .* not {kind}"):
        draft(recipe=str(path))


def test_the_revision_of_a_recipe_is_kept_and_a_misspelt_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "model_revision": "abc123", "contaner": "x", "solo_only": True}))
    profile, result = draft(recipe=str(path))
    assert profile["model"]["revision"] == "abc123"
    assert "contaner x: is not read from a recipe" in result["msg"]
    assert "solo_only" not in result["msg"]


def test_lists_and_numbers_of_a_recipe_become_flags(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    defaults = {"lora_paths": ["a=b", "c=d"], 1: 2}
    path.write_text(yaml.safe_dump({**RECIPE, "defaults": defaults, "env": {"A": None}}))
    result = ActionModule.act(None, EMPTY | {"recipe": str(path)}, {})
    assert yaml.safe_load(result["profile"])["server_args"]["lora_paths"] == ["a=b", "c=d"]
    assert "--1" in result["msg"]
    assert "A: gets its value from your shell" in result["msg"]
