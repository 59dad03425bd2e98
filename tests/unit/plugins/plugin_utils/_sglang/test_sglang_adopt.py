# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is read from a pasted command or a start script."""

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.adopt import read_command

SCRIPT = """#!/bin/bash
set -euo pipefail
# start the server
MODEL=org/model
RANK=0
export SGLANG_X=1
docker pull lmsysorg/sglang:v0.5.20
docker rm -f sgl || true
ARGS=(
  --tp 2   # both nodes
  --nnodes 2
)
docker run -d --name sgl --gpus all \\
  -e HF_HUB_OFFLINE=1 \\
  lmsysorg/sglang:v0.5.20 \\
  sglang serve $MODEL "${ARGS[@]}" --node-rank $RANK "$@" > sglang.log 2>&1
sleep 1
docker logs -f sgl
"""


def test_a_script_is_read_line_by_line() -> None:
    found = read_command(SCRIPT)
    assert found.argv == ["--model-path", "org/model", "--tp", "2", "--nnodes", "2", "--node-rank", "0"]
    assert (found.image, found.env) == ("lmsysorg/sglang:v0.5.20", {"SGLANG_X": "1", "HF_HUB_OFFLINE": "1"})
    assert not [each for each in found.findings if each.severity != "info"]


FLAGS = ["--model-path", "a/b", "--tp", "2"]


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("sglang serve a/b --tp 2 > log 2>&1 &\necho $! > pid", FLAGS),
        ("sglang serve a/b --tp 2 2>/dev/null", FLAGS),
        ("pip install x\nsglang serve a/b --tp 2\nsleep 1\ncurl localhost:30000/health", FLAGS),
        ('A="--model-path a/b --tp 2"\npython3 -m sglang.launch_server $A', FLAGS),
        ("sglang serve a/b\n  --tp 2\n  --context-length 4096\n", [*FLAGS, "--context-length", "4096"]),
        ("root@spark:~# sglang serve a/b --tp 2", FLAGS),
        ("sglang serve a/b --tp 2  # both\nlogger started", FLAGS),
        ("if test $1; then\n  sglang serve a/b --tp 2\nfi", FLAGS),
        (
            "sglang serve a/b --json-model-override-args '{\n \"a\": 1\n}'",
            [*FLAGS[:2], "--json-model-override-args", '{\n "a": 1\n}'],
        ),
    ],
)
def test_other_lines_are_not_taken_for_flags(command: str, flags: list[str]) -> None:
    assert read_command(command).argv == flags


def test_a_variable_of_the_shell_is_not_one_of_the_server() -> None:
    found = read_command("export A=1\nRANK=0\nB=2 sglang serve a/b --node-rank $RANK")
    assert found.env == {"A": "1", "B": "2"}
    assert found.argv[-1] == "0"
