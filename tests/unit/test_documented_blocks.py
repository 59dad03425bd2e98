# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the documented commands that need no host, word by word, as an owner of four Sparks.

tests/lab/test_documented.py runs those that need hosts, tests/lab/test_prepare.py those of docs/prepare.md.
"""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
import yaml
from ansible_plays import ansible
from documented import FENCE, PLACES, ROOT, RUNS, Place, commands, fences, placed
from script_runs import called

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
# What `make` starts has tests of its own. Here a substitute prints its command line.
STARTS = {
    "make venv": [
        "python -m venv --clear .venv",
        ".venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock",
    ],
    "make lint unit": ["tests/steps.py lint", ".venv/bin/pytest -n auto --dist worksteal tests/unit"],
    "make lint test": ["tests/steps.py lint", "lab/labctl deps", "tests/steps.py test"],
    "make demo": ["lab/labctl deps", "lab/demo"],
    "make demo FAULT=unprivileged": ["lab/labctl deps", "lab/demo --fault unprivileged"],
    "make demo FAULT=no-vf-address": ["lab/labctl deps", "lab/demo --fault no-vf-address"],
    "make demo FAULT=missing-nad": ["lab/labctl deps", "lab/demo --fault missing-nad"],
    "make deep-check": [".venv/bin/pytest tests/sglang"],
    "make test-sglang-cpu": ["lab/labctl deps", "tests/plays/plays.py run lab/sglang_cpu"],
    "make play": ["lab/labctl deps", "tests/plays/plays.py list"],
    "make play NAME=lab/transport": ["lab/labctl deps", "tests/plays/plays.py run lab/transport"],
    "make play NAME='molecule/*'": ["lab/labctl deps", "tests/plays/plays.py run molecule/*"],
}  # fmt: skip
SUBSTITUTE = """#!/bin/sh
echo "started ${0#"$PWD/"} $*"
[ "$2" = venv ] || exit 0
mkdir -p .venv/bin && touch .venv/bin/activate
cp "$0" .venv/bin/pip && cp "$0" .venv/bin/pytest
"""
# What a reader puts in the place of an example.
MINE = {
    " -K": "",
    "$EDITOR": "cat",
    "FLAGS…": "--model-path Qwen/Qwen3-8B --tp-size 1",
    "kubectl logs my-pod |": "cat rank0.log |",
}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Return a directory like a checkout in which an owner has an inventory and files of their own."""
    for name in (
        "ansible.cfg",
        "collections",
        "playbooks",
        "plugins",
        "scripts",
        "Makefile",
        "requirements.lock",
        "requirements.txt",
        "requirements-dev.lock",
    ):
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
    for name in ("python", "lab/labctl", "lab/demo", "tests/steps.py", "tests/plays/plays.py"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(SUBSTITUTE)
        program.chmod(0o755)
    (tmp_path / "gitconfig").write_text(
        f'[safe]\ndirectory = *\n[url "{ROOT}"]\ninsteadOf = https://github.com/gb10/cluster\n'
    )
    return tmp_path


def test_every_block_says_its_language() -> None:
    assert {language for _page, language, _text in fences()} == {"shell", "text", "yaml"}


def test_every_command_is_run_by_a_test_or_says_why_not() -> None:
    counts = Counter(place for _page, _command, place, _reason in placed())
    assert set(counts) == set(get_args(Place)) == set(RUNS)
    assert counts["elsewhere"] < counts.total() / 6
    assert {reason for _pattern, _place, reason in PLACES} <= {reason for *_place, reason in placed()}


@pytest.mark.parametrize("place", sorted(set(get_args(Place)) - {"all", "elsewhere"}))
def test_a_file_that_shall_run_commands_asks_for_them_and_is_named(place: Place) -> None:
    file = RUNS[place].split("`")[1]
    text = (ROOT / file).read_text(encoding="utf-8")
    assert (f'commands("{place}")' in text) is (place != "prepare") and (place != "prepare" or '"prepare.md"' in text)
    assert Path(file).name in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_short_way_has_at_most_ten_commands_and_two_addresses_and_a_user_to_replace_in_them() -> None:
    typed = [command for _page, line in commands("short") for command in line.split(" && ")]
    assert len(typed) <= 10
    whole = "\n".join(typed)
    assert len(set(re.findall(r"\d+(?:\.\d+){3}", whole))) == 2
    assert set(re.findall(r"(\w+)@", whole)) == set(re.findall(r" -u (\w+)", whole)) == {"nvidia"}
    # neither a placeholder nor a file to edit
    assert not re.search(r"\b[A-Z]{2,}\b|[<…]|EDITOR|^cp |^sed |^nano |^vi", whole, re.MULTILINE)


def test_daily_work_has_commands_only_in_blocks_which_its_play_reads() -> None:
    page = (ROOT / "docs" / "daily.md").read_text(encoding="utf-8")
    assert "ansible-playbook" not in FENCE.sub("", page)
    assert page.count("ansible-playbook") == len(
        [line for _page, line in commands("daily") if "ansible-playbook" in line]
    )


def test_make_test_runs_the_commands_that_say_so() -> None:
    steps = (ROOT / "tests" / "steps.yml").read_text()
    assert all(command in steps for _page, command in commands("all"))


@pytest.mark.parametrize(
    ("command", "page"),
    {command: page for page, command in commands("unit")}.items(),
    ids=lambda value: str(value)[:70],
)
def test_a_command_that_needs_no_host_does_what_the_page_says(
    desk: Path, command: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = STARTS[command.partition(" &&")[0]] if command.startswith("make") else []
    for example, value in MINE.items():
        command = command.replace(example, value)
    assert "…" not in command
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"PATH": path, "KUBECONFIG": str(desk / "none"), "GIT_CONFIG_GLOBAL": str(desk / "gitconfig")}
    environment["PWD"] = str(desk)
    program, *words = shlex.split(command)
    if program.startswith("ansible"):
        done = ansible(program, *words, cwd=desk, env=environment)
    elif program.startswith("scripts/") and not set(command) & set("*|&"):
        # As in a shell, but without another process that imports the collection.
        monkeypatch.chdir(desk)
        done = called(import_module(Path(program).stem).main, *words)
    else:
        environment["PYTHON"] = str(desk / "python")  # for make; Ansible's programs could not be forked with it
        bash = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(bash, cwd=desk, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == int(REFUSED in command), f"{page}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.stdout.strip() or (desk / "cluster" / "galaxy.yml").is_file()
    assert {f"started {each}" for each in starts} <= {line.strip() for line in done.stdout.splitlines()}
