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
from stored import compare, say_words

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
TEMPLATED = (
    "python3 -m sglang.launch_server --model-path {model} --context-length {max_model_len} --trust-remote-code \\\n"
    " --mem-fraction-static {gpu_memory_utilization} --tp-size {tensor_parallel} --host {host} --port {port} \\\n"
    " --attention-backend {attention_backend}\n"
)
IMAGE, ARGS = "lmsysorg/sglang:v0.5.16-cu130", "--model-path a/b --tp-size 2 --nnodes 2"
EXEC = "python3 -m sglang.launch_server --model-path a/b"
FP8 = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 768,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
# Parts of the config.json of published models, each with facts that follow from it.
CONFIGS = json.loads((ROOT / "tests" / "unit" / "fixtures" / "sglang" / "model-configs.json").read_text())
# What is read, of which a text is a command; a mapping of a recipe or configuration is written into a file.
CASES: dict[str, str | dict[str, Any]] = {
    "a model": "sglang serve --model-path a/b",
    "docker run": DOCKER,
    "a recipe": {"recipe": RECIPE},
    "a recipe with a command": {"recipe": {**RECIPE, "command": TEMPLATED}},
    "a recipe with a revision and a misspelt key": {
        "recipe": {**RECIPE, "model_revision": "abc123", "contaner": "x", "solo_only": True}
    },
    "a recipe with lists and numbers": {
        "recipe": {**RECIPE, "defaults": {"lora_paths": ["a=b", "c=d"], 1: 2}, "env": {"A": None}}
    },
    **{
        f"a recipe with {key}: {value}": {"recipe": {**RECIPE, key: value}}
        for key, value in (
            ("model", ["a"]),
            ("defaults", ["a"]),
            ("env", ["A=1"]),
            ("metadata", "text"),
            ("min_nodes", "two"),
            ("container", {"a": 1}),
        )
    },
    "nothing of a recipe": {"recipe": {}},
    "a recipe for vLLM": {"recipe": {"model": "m", "runtime": "vllm"}},
    "a list": {"recipe": ["m"]},
    "no recipe": {"recipe": "/nowhere"},
    "no configuration": {"config": "/nowhere/config.json", "repo": "a/b"},
    "FP8 on four nodes": {"config": FP8, "repo": "org/Mine", "nodes": 4},
    "FP8 on two nodes": {"config": FP8, "repo": "org/Mine", "nodes": 2},
    "NVFP4 by a file beside": {"config": CONFIGS[1][0], "repo": "org/Mine", "quantization": "NVFP4"},
    "a compose file": "services:\n  a:\n    image: x\n    command: sglang serve --model-path m",
    "a script": {"script": "#!/bin/sh\nsglang serve a/b --tp 2\n"},
    "release and image": {
        "command": "sglang serve --model-path a/b",
        "sglang_version": "0.5.20",
        "image": "mine/x:8.1.0",
    },
    "image": {"command": "sglang serve --model-path a/b", "image": "x/sglang:v0.5.20-cu130"},
    **{
        f"release {release}": {"command": "sglang serve --model-path a/b", "sglang_version": release}
        for release in ("0.5.19", "0.5.12", "0.5.7")
    },
}
# Lines of a script are parted by ⏎; a web page shows other dashes and quotation marks.
COMMANDS = f"""
docker run -eA=1 -v/a:/b -p8000:8000 -it --log-opt max-size=1m --userns host {IMAGE} sglang serve {ARGS}
podman run --replace --device nvidia.com/gpu=all --env A=1 --entrypoint sglang {IMAGE} serve {ARGS}
sudo nerdctl run --rm --env=A=1 -u1000 --cap-add SYS_PTRACE {IMAGE} bash -lc 'sglang serve {ARGS}; echo done'
docker run {IMAGE} sh -c "cd /x && export A=1; python3 -m sglang.launch_server {ARGS} 2>&1 | tee log"
ssh node1 "docker run -d -e A=1 {IMAGE} bash -c 'sglang serve {ARGS}' > /dev/null 2>&1 &"
sglang serve a/b --tp-size 2 --nnodes 2
docker compose exec box {EXEC}
docker compose -f x.yml run --rm box {EXEC}
docker exec -it box {EXEC}
kubectl exec -it box-0 -- {EXEC}
docker run -e M=a/b x/y:v0.5.20 sh -c 'python3 -m sglang.launch_server --model-path $M'
export M=a/b; sglang serve --model-path ${{M}}
M=a⏎sglang serve --model-path $M/b
sglang serve --model-path a/b \\ # mine⏎ --tp 2 \\  # two⏎ --nnodes 2
sglang serve \u2013model-path \u201ca/b\u201d \u2014tp 2
sglang serve --model-path a/b \u2013-tp 2
sglang serve --model-path m --swap-space=4 --enable-expert-parallel
sglang serve --model-path m --fp8-gemm-backend x --api-key a --api-key b
sglang serve --model-path m --tp 2 --tp 4 --nnodes 4
sglang serve --model-path m --help -- x
sglang serve --model-path $MODEL --tp-size 2
sglang serve --model-path /models/org--m
A=$HOME sglang serve --model-path m
bash -c 'sglang serve --model-path m --tp-size 2 --nnodes 1'
sglang serve --model-path m --attention-backend fa3
bash -lc 'pip install accelerate && sglang serve --model-path m'
docker exec box bash -c 'apt install x⏎sglang serve --model-path m'
bash -c 'pip install a==5.8 && sglang serve --model-path m'
docker run --env-file .env x:v0.5.20 sglang serve --model-path m
sglang serve --config /cfg.yaml
sglang serve --model-path m --quantization nvfp4
docker run x/sglang:v0.5.21 sglang serve --model-path a/b --cuda-graph-bs 1 2 4 8 --moe-runner-backend b12x \
--fp4-gemm-backend cutlass --no-such-flag 3
docker run x/sglang:v0.5.9 sglang serve --model-path a/b --disable-piecewise-cuda-graph --max-num-seqs 4
docker run scitrera/dgx-spark-sglang:0.5.10 sglang serve --model-path nvidia/GLM-4.7-NVFP4
docker run {OURS.reference.partition("@")[0]} sglang serve --model-path a/b
docker run --label token=geheim -e X_TOKEN=geheim x/y:v0.5.20 bash -c 'hf login --token geheim && HF_token=geheim \
sglang serve --model-path m --api-key geheim --admin-api-key=geheim --hub-token geheim'
sglang serve --model-path https://huggingface.co/a/b
sglang serve --model-path Qwen/Qwen3-8B@abc
sglang serve --model-path hf.example/Qwen/Qwen3-8B
sglang serve --model-path https://example.com/Qwen/Qwen3-8B
sglang serve --model-path a/b --tp 2 --nnodes 2 --node-rank $SLURM_NODEID --dist-init-addr $HEAD:5000
sglang serve --model-path a/b --tp ${{TP:-2}}
sglang.launch_server --model-path m⏎sglang.launch_server --model-path m
vllm serve m
docker
sglang serve 'm
docker run mine/x:8.1.0 sglang serve --model-path a/b
"""
CASES |= {line: line.replace("⏎", "\n") for line in COMMANDS.strip().splitlines()}


def act(**options: Any) -> dict[str, Any]:
    return ActionModule.act(None, EMPTY | options, {})


def draft(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the profile and the result."""
    result = act(**options)
    profile = yaml.safe_load(result["profile"])
    assert list(schema_problems(profile)) == []
    return profile, result


def written(case: str | dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the options of a case; what has to be a file is written into this directory."""
    path.mkdir()
    if isinstance(case, str):
        return {"command": case}
    options = dict(case)
    for key, name in (("recipe", "recipe.yaml"), ("config", "config.json"), ("script", "launch.sh")):
        if key in options and not (isinstance(options[key], str) and options[key].startswith("/")):
            text = options[key] if key == "script" else json.dumps(options[key])
            (path / name).write_text(text)
            options[key] = str(path / name)
    if quantization := options.pop("quantization", ""):
        (path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": quantization}}))
        options["config"] = str(path)
    return options | ({"command": options.pop("script")} if "script" in options else {})


def told(options: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """Return the keys by which a profile differs from the usual one, the message, and the other findings."""
    try:
        result = act(**options)
    except AnsibleActionFail as error:
        return [f"refused: {error}"]
    profile = yaml.safe_load(result["profile"])
    lines = [f"{key}: {json.dumps(value)}" for key, value in profile.items() if value != usual.get(key)]
    left = [f"{one['severity']} {one['key']}" for one in result["findings"] if one["rule"] == "adopt.left"]
    assert len(result["left_out"]) == len(left)
    notes = [one for one in result["findings"] if one["severity"] == "info" and one["rule"] != "adopt.left"]
    lines += [*result["msg"].splitlines(), *(f"note: {one['rule']} {one['key']}" for one in notes)]
    return [*lines, *([f"left: {', '.join(left)}"] if left else [])]


def test_what_becomes_of_commands_recipes_and_configurations_is_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_words(monkeypatch)
    usual, result = draft(command=CASES["a model"])
    plain = told({"command": CASES["a model"]}, usual)
    found = {"a model": [*result["profile"].splitlines(), *plain]}
    for number, (name, case) in enumerate(CASES.items()):
        lines = told(written(case, tmp_path / str(number)), usual)
        lacking = [
            line.strip("]").replace("[", "note: ").rpartition("note: ")[2] for line in plain if line not in lines
        ]
        lacking = [f"without {', '.join(lacking)}"] if lacking and not lines[0].startswith("refused") else []
        found.setdefault(name, [*(line for line in lines if line not in plain), *lacking])
    text = json.dumps(found).replace(str(tmp_path), "").replace(OURS.reference, "OURS")
    assert "geheim" not in json.dumps(list(found.values()))
    compare("profiles_drafted", json.loads(text))


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


def test_own_profiles_know_images_and_models_too(tmp_path: Path) -> None:
    line = "docker run mine/x:1 sglang serve --model-path org/Mine"
    with pytest.raises(AnsibleActionFail, match=r"mine/x:1 does not say .* -e profile_new_sglang_version=RELEASE"):
        draft(command=line)
    profile, result = draft(command=line, sglang_version="0.5.19")
    (tmp_path / "first.yml").write_text(result["profile"].replace("name: mine", "name: first"))
    profile, result = draft(command=line, profile_dirs=[tmp_path])
    assert profile["sglang_version"] == "0.5.19"
    assert result["msg"].startswith("There are profiles of this model: first\n")


def test_a_repository_may_be_the_address_of_its_page() -> None:
    for text in ("https://huggingface.co/a/b", "http://www.huggingface.co/a/b/tree/main?x=1", " a/b ", "hf.co/a/b.git"):
        assert repository(text) == "a/b"


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
