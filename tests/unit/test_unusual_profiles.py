# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test profiles of unusual servers: own patches and steps, forks, shards, embeddings, two instances on one GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.action.serving_objects import PATCHES
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import examine
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import repositories, to_serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, ResolvedProfile, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile
from role_samples import role_values

STEP = '''"""Write the chat template, and a file of flags with what the checkpoint says."""
import json
import pathlib
import sys

model, out = map(pathlib.Path, sys.argv[1:] or ("/srv/models/org--My-Model", "/tmp"))
config = json.loads((model / "config.json").read_text())
(out / "template.jinja").write_text("{{ messages }}")
(out / "flags.yaml").write_text(f"context-length: {config['max_position_embeddings']}\\n")
'''


def resolved(folder: Path, text: str, preset: str = "") -> ResolvedProfile:
    """Write the profile as a user does, and resolve it with everything in the directory."""
    head = "name: mine\nstatus: untested\nsglang_version: '0.5.21'\n"
    (folder / "mine.yml").write_text(head + text)
    return resolve(load_profile("mine", [folder]), preset, library=Library.load([folder]))


def refused(found: ResolvedProfile) -> set[str]:
    """Return the rules of all errors."""
    return {finding.rule for finding in found.findings if finding.severity == "error"}


IMAGE = f"images: [{{sglang: '0.5.21', image: 'me/sglang@sha256:{'1' * 64}'}}]\n"


def test_own_patches_and_steps_run_beside_the_shipped_ones(tmp_path: Path) -> None:
    steps = [
        {"name": "my-step", "order": 1, "file": "step.py", "reason": "the template", "source": "us"},
        {"name": "my-fix", "order": 99, "file": "fix.py", "reason": "our fix", "source": "us", "to": "0.5.20"},
    ]
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "patches.json").write_text(json.dumps({"patches": steps}))
    (tmp_path / "patches" / "step.py").write_text(STEP)
    found = resolved(
        tmp_path,
        IMAGE + "model: {repo: org/My-Model, arch: Qwen3MoeForCausalLM}\ntopology: {nodes: 2, tp: 2}\n"
        "patches: [my-step, my-fix, modelopt-ep-input-scale]\n"
        "server_args: {chat_template: /tmp/template.jinja, config: /tmp/flags.yaml, mem_fraction_static: 0.8}\n",
    )
    assert refused(found) == set()
    wanted = {patch["name"]: (patch["path"], patch["needed"]) for patch in found.patches}
    assert wanted["my-step"] == (f"{tmp_path}/patches/step.py", True)
    assert wanted["my-fix"] == (f"{tmp_path}/patches/fix.py", False)
    assert (PATCHES / Path(wanted["modelopt-ep-input-scale"][0]).name).is_file()
    assert found.argv[found.argv.index("--chat-template") + 1] == "/tmp/template.jinja"


def test_a_step_reads_the_checkpoint_and_stops_the_start_without_one(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STEP)
    command = [sys.executable, tmp_path / "step.py", tmp_path, tmp_path]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096}')
    subprocess.run(command, check=True)
    assert yaml.safe_load((tmp_path / "flags.yaml").read_text()) == {"context-length": 4096}


FORK = """
model: {repo: deepseek-ai/DeepSeek-V4-Flash, arch: DeepseekV4ForCausalLM}
topology: {nodes: 2, tp: 2}
server_args:
  {attention_backend: b12x, moe_runner_backend: b12x, enable_b12x: true, b12x_mode: 3, mem_fraction_static: 0.8}
images: [{sglang: '0.5.21', image: 'lmsysorg/sglang:dev-v4f-2dgx', carries: [%s]}]
"""


def test_a_fork_adds_values_flags_and_switches(tmp_path: Path) -> None:
    words = ["--attention-backend=b12x", "--moe-runner-backend=b12x", "--enable-b12x", "--b12x-mode="]
    found = resolved(tmp_path, FORK % ", ".join(words))
    assert refused(found) == set()
    assert found.argv[:7] == [
        "--attention-backend", "b12x", "--moe-runner-backend", "b12x", "--enable-b12x", "--b12x-mode", "3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("carries", "rules"),
    [
        ("", {"flag.choice", "flag.unknown"}),
        ("sglang#1", {"flag.choice", "flag.unknown"}),
        ("--attention-backend=b12x, --moe-runner-backend=b13x", {"flag.choice", "flag.unknown"}),
        ("--attention-backend=b12x, --moe-runner-backend=b12x, --enable-b12x=, --b12x-mode=", {"flag.missing_value"}),
    ],
)
def test_what_the_fork_does_not_add_is_refused(tmp_path: Path, carries: str, rules: set[str]) -> None:
    assert refused(resolved(tmp_path, FORK % carries)) == rules


def test_a_sharded_checkpoint_is_used_where_it_is(tmp_path: Path) -> None:
    found = resolved(
        tmp_path,
        IMAGE + "model: {repo: org/Big, path: /srv/models/big-tp2, arch: Qwen3MoeForCausalLM, weights_gb: 130}\n"
        "topology: {nodes: 2, tp: 2}\nserver_args: {load_format: sharded_state, mem_fraction_static: 0.8}\n",
    )
    assert refused(found) == set()
    assert repositories(found) == []
    assert to_serving(found, role_values("serving_plan", models_dir="/srv/models")).model_path == "/srv/models/big-tp2"
    assert found.memory["weights_gib"] == 60.5


def test_an_embedding_model_is_served_but_not_swept(tmp_path: Path) -> None:
    found = resolved(
        tmp_path,
        IMAGE + "model: {repo: Qwen/Qwen3-Embedding-8B, arch: Qwen3ForCausalLM, weights_gb: 15.1}\n"
        "topology: {nodes: 1}\nserver_args: {is_embedding: true, mem_fraction_static: 0.5}\n",
    )
    assert refused(found) == set()
    assert "--is-embedding" in found.argv
    sweep: dict[str, Any] = {"name": "s", "profile": "mine", "axes": {"mem_fraction_static": [0.5, 0.6]}}
    findings = examine(sweep | {"workloads": [{"concurrency": 1}]}, [tmp_path]).findings
    assert {finding.rule for finding in findings} == {"sweep.embedding"}


def test_two_instances_share_one_gpu(tmp_path: Path) -> None:
    text = (
        IMAGE + "model: {repo: Qwen/Qwen3.6-35B-A3B-FP8}\ntopology: {nodes: 1}\n"
        "server_args: {max_total_tokens: 65536, max_running_requests: 8}\n"
        "presets:\n  first: {server_args: {mem_fraction_static: 0.40}}\n"
        "  second: {server_args: {mem_fraction_static: 0.55}}\n"
    )
    first, second = (resolved(tmp_path, text, preset) for preset in ("first", "second"))
    assert refused(first) == refused(second) == set()
    assert first.memory["tokens"] == 65536
    assert any("max_total_tokens limits them" in line for line in first.memory["lines"])
    assert first.memory["static_gib"] == 41.2
