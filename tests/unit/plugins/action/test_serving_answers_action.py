# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the questions of playbook verify against the lab's simulated server with its faults."""

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import serving_answers as action
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import held
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import HEIGHT
from kube_samples import FakeApi

LAB = str(Path(__file__).resolve().parents[4] / "lab" / "sglang")
sys.path.insert(0, LAB)
engine = importlib.import_module("sglang._engine")
ARGV = ["--context-length", "4000", "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen25"]
ARGV += ["--speculative-algorithm", "NEXTN", "--kv-cache-dtype", "fp8_e4m3"]


# The head of the simulated server with its arguments; prints its port.
HEAD = """
import json, socket, sys
from sglang import _engine, _http
args = {"host": "127.0.0.1", "model_path": "m", "reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}
listening = socket.create_server(("127.0.0.1", 0), backlog=128)
_http.socket.create_server = lambda *_words, **_options: listening
args |= {"port": 0, "speculative_algorithm": "NEXTN"}
head = _engine.Engine(args, "IB", lambda _batch: None, lambda _line: None)
_http.Server(args, "0.5.20", head).start()
print(listening.getsockname()[1], flush=True)
head.run()
"""


@pytest.fixture
def serve() -> Iterator[Callable[[], int]]:
    """Start the simulated server of a head in a process of its own; return its port."""
    with ExitStack() as stack:

        def run() -> int:
            own = os.environ | {"PYTHONPATH": LAB, "SGLANG_STANDIN_SPEED": "1000"}
            head = subprocess.Popen([sys.executable, "-c", HEAD], env=own, stdout=subprocess.PIPE)
            stack.enter_context(head)
            stack.callback(head.kill)
            assert head.stdout is not None
            return int(head.stdout.readline())

        yield run


def pod(ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": "g-0-0", "labels": {}},
        "spec": {"containers": [{"name": "sglang"}]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def program(_pod: str, command: list[str]) -> tuple[int, str, str]:
    """Run the command of a pod here."""
    ran = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the action; ``api`` is that of the pods."""

    def run(
        port: int, api: FakeApi | None = None, check: bool = False, argv: Any = None, **options: Any
    ) -> dict[str, Any]:
        (api or FakeApi(pods=[pod()], command=program)).install(monkeypatch)
        plan = {
            "instance": "g",
            "sglang_version": "0.5.20",
            "models": ["org/model"],
            "ranks": [{"argv": ARGV if argv is None else argv}],
        }
        given = {
            "kubeconfig": "/k",
            "context": "gb10",
            "namespace": "ns",
            "questions": "full",
            "timeout": 600,
            **options,
        }
        made = action.ActionModule.__new__(action.ActionModule)
        made._task = SimpleNamespace(check_mode=check)
        made._templar = SimpleNamespace(template=str)
        variables = {"hostvars": {}, "gb10_results_dir": str(tmp_path)}
        return made.act({"plan": plan | {"service": {"port": port}}} | given, variables)

    return run


def test_the_simulated_server_answers_every_question_of_verify(serve: Any, ask: Any) -> None:
    result = ask(serve())
    assert result["changed"] is False
    assert result["msg"].startswith("12 of 12 answers are right, the longest to 3")
    assert [each["kind"] for each in result["answers"]][6:8] == ["tools", "reasoning"]


# fault of the server, what failed, what was right before, and the first setting under suspicion
FAULTS = [
    ("collapse", "one stream", "", "(1) kv_cache_dtype: auto"),
    ("garbage-from:1500", "a prompt of 2000 tokens", "a prompt of 1000 tokens", "(1) kv_cache_dtype: auto"),
]


@pytest.mark.parametrize(("fault", "kind", "right", "key"), FAULTS)
def test_garbage_is_found_and_named_on_one_screen(
    fault: str, kind: str, right: str, key: str, serve: Any, ask: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SGLANG_STANDIN_FAULT", fault)
    result = ask(serve())
    assert (result["failed"], result["msg"]) == (True, f"Group g gives wrong answers: {kind}.")
    screen = held(result)
    said = " ".join(screen.split())
    assert len(screen.splitlines()) <= HEIGHT
    assert "nothing but '!'" in said
    assert right in said
    assert key in said
    assert "!!!!" in (tmp_path / "failed-answers-g.txt").read_text()


def test_a_batch_is_garbage_from_its_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_STANDIN_FAULT", "garbage-at:2")
    head = engine.Engine({}, "IB", lambda _batch: None, lambda _line: None)
    pair = [engine.Request(f"What is {number} plus 4? Answer with the number only.", 8) for number in (1, 2)]
    head.running += pair
    head._advance(pair[0])
    head.running.remove(pair[0])
    head._advance(pair[1])
    assert [each.out.get() for each in pair] == [["!"], ["6 "]]


def test_all_output_is_garbage_while_a_file_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SGLANG_STANDIN_FAULT", f"slow:1,garbage-while:{tmp_path / 'noise'}")
    assert not engine._model.breaks("a", 1)
    (tmp_path / "noise").touch()
    assert engine._model.breaks("a", 1)


@pytest.mark.parametrize(
    ("said", "message"),
    [("", "ended before it printed the answers"), ("[1]", "ended before"), ("[" * 3_000_000, "more than 2 MiB")],
    ids=["nothing", "numbers", "flood"],
)
def test_what_a_pod_prints_is_bounded_and_must_be_answers(ask: Any, said: str, message: str) -> None:
    with pytest.raises(AnsibleActionFail, match=message):
        ask(1, FakeApi(pods=[pod()], command=lambda _pod, _command: (0, said, "")))


def test_a_command_that_does_not_end_is_given_up(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=100)
    monkeypatch.setattr(action, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=None))
    with pytest.raises(AnsibleActionFail, match="did not end 60 s after its limit"):
        ask(1, timeout=60)


def test_a_group_that_is_not_ready_is_told(ask: Any) -> None:
    with pytest.raises(AnsibleActionFail, match=r"serve_status.yml -e instance=g \[serving.head.not_ready\]"):
        ask(1, FakeApi(pods=[pod(ready=False)]))


@pytest.mark.parametrize(
    "options", [{"check": True}, {"questions": "off"}, {"argv": ["--is-embedding"]}], ids=["check", "off", "embedding"]
)
def test_nothing_is_asked_where_nothing_can_answer(ask: Any, options: dict[str, Any]) -> None:
    assert ask(1, FakeApi(pods=[pod()], command=lambda *_words: pytest.fail("asked")), **options)["skipped"]
