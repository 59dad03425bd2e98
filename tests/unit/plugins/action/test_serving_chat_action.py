# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a question reaches the head's server, and that its answer is shown in pieces with its figures."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import serving_chat as action
from ansible_collections.gb10.cluster.plugins.module_utils._pod import chat
from kube_samples import FakeApi

SAID = [
    {"choices": [{"delta": {"role": "assistant"}}]},
    {"choices": [{"delta": {"reasoning_content": "light "}}]},
    {"choices": [{"delta": {"reasoning_content": "scatters"}}]},
    {"choices": [{"delta": {"content": "Rayleigh — "}}]},
    {"choices": [{"delta": {"content": "blue."}}]},
    {"choices": [], "usage": {"completion_tokens": 7}},
]
OTHERS: dict[str, list[dict[str, Any]]] = {
    "broken": [{"error": "out of memory"}],
    "mute": [],
    "short": [{"choices": [{"delta": {"content": "blu"}, "finish_reason": "length"}]}, {"choices": [{"delta": {}}]}],
}
TEXT = "(thinks) light scatters\n\nRayleigh — blue."


class Server(BaseHTTPRequestHandler):
    """Streams the answer, or refuses a question about errors."""

    asked: list[dict[str, Any]]

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, **body})
        question = body["messages"][0]["content"]
        self.send_response(400 if question == "refused" else 200)
        self.end_headers()
        if question == "refused":
            self.wfile.write(b"no such model")
            return
        for chunk in OTHERS.get(question, SAID):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if question not in ("cut", "short"):
            self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def port() -> Iterator[int]:
    Server.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_the_answer_is_shown_in_pieces_and_counted(port: int) -> None:
    pieces: list[str] = []
    body = {"messages": [{"role": "user", "content": "why?"}], "max_tokens": 64}
    found = chat.ask(port, body, 60, pieces.append)
    assert pieces == ["(thinks) light ", "scatters", "\n\nRayleigh — ", "blue."]
    assert (found["tokens"], 0 < found["first_token_seconds"] <= found["seconds"]) == (7, True)
    assert (found["text"], found["thought"], found["error"]) == ("Rayleigh — blue.", "light scatters", "")
    (asked,) = Server.asked
    assert asked["path"] == "/v1/chat/completions"
    assert (asked["stream"], asked["max_tokens"]) == (True, 64)


def test_an_answer_that_its_limit_ends_is_complete_and_says_so(port: int) -> None:
    found = chat.ask(port, {"messages": [{"role": "user", "content": "short"}]}, 60, str)
    assert (found["text"], found["end"], found["error"]) == ("blu", "length", "")


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("refused", "HTTP 400: no such model"),
        ("broken", "out of memory"),
        ("mute", "the answer contained no text"),
        ("cut", "the connection ended before the answer"),
    ],
)
def test_an_answer_that_fails_is_told(port: int, capsys: pytest.CaptureFixture[str], question: str, error: str) -> None:
    assert chat.main([str(port), "8", question]) == 1
    assert json.loads(capsys.readouterr().out.partition(chat.END)[2]) == {"error": error}


def test_an_answer_without_an_end_is_not_read_for_ever(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MOST", 200)
    said = chat.ask(port, {"messages": [{"role": "user", "content": "why?"}]}, 60, str)
    assert said["error"] == "more than 0 MiB"


def test_the_program_runs_as_text_without_its_file(port: int) -> None:
    words = [sys.executable, "-u", "-c", Path(chat.__file__).read_text(), str(port), "8", "why?"]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    text, _mark, figures = ran.stdout.partition(chat.END)
    assert (text, json.loads(figures)["tokens"]) == (TEXT, 7)


def pod(ready: bool) -> dict[str, Any]:
    command = ["start", "--", "python3", "--model-path", "m", "--port", "30007"]
    return {
        "metadata": {"name": "g-0-0", "labels": {}},
        "spec": {"containers": [{"name": "sglang", "command": command}]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def act(question: str = "why?", check: bool = False) -> dict[str, Any]:
    options = {"kubeconfig": "/k", "context": "gb10", "namespace": "ns", "instance": "g", "tokens": 64}
    itself = SimpleNamespace(_task=SimpleNamespace(check_mode=check))
    return action.ActionModule.act(itself, options | {"question": question}, {})  # type: ignore[arg-type]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(action, "_show", texts.append)
    return texts


def test_the_question_is_asked_in_the_pod_of_the_head_that_is_ready(
    monkeypatch: pytest.MonkeyPatch, shown: list[str]
) -> None:
    figures = {"tokens": 11, "first_token_seconds": 0.5, "seconds": 1.5}
    api = FakeApi(pods=[pod(False), pod(True)])
    api.command = lambda _pod, _command: (0, f"blue{chat.END}{json.dumps(figures)}", "")
    api.install(monkeypatch)
    result = act()
    assert result["msg"] == "11 tokens, the first after 0.50 s, then 10.0 tokens/s"
    assert (result["answer"], shown) == ("blue", ["blue", f"\n\n{result['msg']}\n"])
    assert api.asked[0]["label_selector"] == "gb10.cluster/instance=g,gb10.cluster/rank=0"
    assert api.asked[1]["command"][-3:] == ["30007", "64", "why?"]
    assert act(check=True)["skipped"]


@pytest.mark.parametrize(
    ("ready", "said", "message"),
    [
        (False, "", "playbooks/serve_status.yml -e instance=g [serving.head.not_ready]"),
        (True, f'{chat.END}{{"error": "HTTP 500"}}', "group g did not answer: HTTP 500. See its log: "),
        (True, "blu", "the connection to the pod ended before the answer"),
    ],
)
def test_a_group_that_does_not_answer_is_told_with_the_next_command(
    monkeypatch: pytest.MonkeyPatch, shown: list[str], ready: bool, said: str, message: str
) -> None:
    api = FakeApi(pods=[pod(ready)])
    api.command = lambda _pod, _command: (0, said, "")
    api.install(monkeypatch)
    with pytest.raises(AnsibleActionFail) as error:
        act()
    assert message in str(error.value)
    assert shown == (["blu"] if said == "blu" else [])


def test_the_record_separator_may_come_with_the_text_or_alone() -> None:
    texts: list[str] = []
    pieces = [b"bl", b"ue", chat.END.encode(), b'{"tokens"', b": 2}"]
    assert action.streamed(pieces, texts.append) == ("blue", {"tokens": 2})
    assert texts == ["bl", "ue"]
