# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import subprocess
import time
from types import SimpleNamespace

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.commands import NO_ANSWER, Answer, runner

MODULE = SimpleNamespace(get_bin_path=lambda name: None if name == "absent" else f"/bin/{name}")


def test_a_command_answers_fails_or_is_missing() -> None:
    run = runner(MODULE)
    assert run(["echo", "one"]) == Answer(0, "one\n", "")
    assert run(["sh", "-c", "echo one; echo two >&2; exit 3"]) == Answer(3, "", "two\n")
    assert run(["absent"]) == Answer(None)
    assert run(["no-such-program-here"]).status == 127
    assert run(["sh", "-c", "echo $LC_ALL; cat"]).output == "C.UTF-8\n"
    assert run(["printf", r"\377x"]).output == "\ufffdx"


def test_a_command_without_an_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: (killed.append(process.pid), kill(process)))
    begun = time.monotonic()
    answer = runner(MODULE, 0.2)(["sleep", "60"])
    assert len(killed) == 1
    assert (answer.status, answer.output) == (NO_ANSWER, "")
    assert "0.2 s" in answer.error
    assert time.monotonic() - begun < 10
