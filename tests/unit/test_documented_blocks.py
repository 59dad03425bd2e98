# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the documented commands that need no host, word by word, as an owner of four Sparks.

tests/lab/test_documented.py runs those that need hosts, tests/lab/test_prepare.py those of docs/prepare.md.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documented import PLACES, ROOT, commands, fences, place_of

LOG = (
    "s1:1:1 [0] NCCL INFO Using network IB\n"
    "s1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId f000 - Init COMPLETE\n"
    "s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
    "s1:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1\n"
)
ANSWER = (
    "RoCE carries RDMA over Ethernet. NCCL opens a queue pair per peer and writes into the memory of the other GPU.\n"
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
RECIPE = {
    "recipe_version": "1", "name": "mine", "model": "Qwen/Qwen3-8B", "runtime": "sglang", "cluster_only": True,
    "container": "lmsysorg/sglang:v0.5.23", "defaults": {"port": 30000, "tensor_parallel": 4},
}  # fmt: skip
LAUNCH = """#!/bin/sh
docker run --gpus all -p 30000:30000 lmsysorg/sglang:v0.5.23 python3 -m sglang.launch_server \\
  --model-path organisation/My-Model --tp-size 4 --nnodes 4 --node-rank "$1"
"""
# This command shows a refusal: the release has no such flag any more.
REFUSED = "--disable-piecewise-cuda-graph"
# What a reader puts in the place of an example.
MINE = {
    " -K": "",
    "FLAGS…": "--model-path Qwen/Qwen3-8B --tp-size 1",
    "kubectl logs my-pod |": "cat rank0.log |",
}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Return a directory like a checkout in which an owner has an inventory and files of their own."""
    for name in ("ansible.cfg", "collections", "playbooks", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "mine").symlink_to(ROOT / "inventory" / "4x-gb10-switch")
    for name in ("rank0.log", "rank1.log", "pod-0.log"):
        (tmp_path / name).write_text(LOG)
    (tmp_path / "rank0.log.gz").write_bytes(gzip.compress(LOG.encode()))
    (tmp_path / "answer.txt").write_text(ANSWER)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    (tmp_path / "launch.sh").write_text(LAUNCH)
    rows = json.loads((ROOT / "tests" / "unit" / "fixtures" / "sglang" / "spark-rows.json").read_text())
    (tmp_path / "my-launches.json").write_text(json.dumps({"rows": rows["rows"][:20]}))
    return tmp_path


def test_every_block_says_its_language() -> None:
    assert {language for _page, language, _text in fences()} == {"shell", "text", "yaml", "mermaid"}


def test_every_command_is_run_by_a_test_or_says_why_not() -> None:
    counts = {place: len(commands(place)) for place in ("unit", "lab", "prepare", "elsewhere")}
    print(counts)
    assert all(counts.values())
    assert counts["elsewhere"] < counts["unit"] + counts["lab"] + counts["prepare"]
    used = {place_of(page, command)[1] for place in counts for page, command in commands(place)}
    assert {reason for _pattern, _place, reason in PLACES} <= used


@pytest.mark.parametrize(("page", "command"), commands("unit"), ids=lambda value: str(value)[:70])
def test_a_command_that_needs_no_host_does_what_the_page_says(desk: Path, page: str, command: str) -> None:
    for example, value in MINE.items():
        command = command.replace(example, value)
    assert "…" not in command
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(desk / "none")}
    words = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(words, cwd=desk, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == int(REFUSED in command), f"{page}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.stdout.strip()
