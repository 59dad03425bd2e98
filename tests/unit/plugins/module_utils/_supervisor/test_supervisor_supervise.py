# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the supervisor asks and does, without a cluster."""

from __future__ import annotations

import argparse
import ssl
import urllib.request
from email.message import Message
from http.client import BadStatusLine
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._supervisor import state, supervise

METRICS = """# HELP sglang:realtime_tokens_total Total tokens
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 8192.0
sglang:token_usage{tp_rank="0"} 0.25
sglang:http_requests_total{endpoint="/health"} 7.0
sglang:num_queue_reqs{tp_rank="0"} 3.0
"""


def test_only_the_scheduler_s_own_lines_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise._HTTP, "open", lambda url, timeout: BytesIO(METRICS.encode()))
    assert supervise.work_done("10.0.0.1", 30000).splitlines() == METRICS.splitlines()[1:3]

    def refuse(url: str, timeout: float) -> None:
        raise OSError("404")

    monkeypatch.setattr(supervise._HTTP, "open", refuse)
    assert supervise.work_done("10.0.0.1", 30000) == ""


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), BadStatusLine("garbage")])
def test_a_head_whose_answer_is_no_http_is_not_healthy(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, timeout: float) -> None:
        raise error

    monkeypatch.setattr(supervise._HTTP, "open", answer)
    assert supervise.head_is_healthy("10.0.0.1", 30000, 25) is False


class Api:
    """Logs without a cluster."""

    def log(self, name: str, lines: int, previous: bool) -> str:
        return f"{name} {lines} {previous}\n"


def test_logs_are_kept_but_not_for_ever(tmp_path: Path) -> None:
    for n in range(supervise.KEPT_SETS + 2):
        (tmp_path / f"20260101T0000{n:02}Z-g-0-0.log").write_text("old", encoding="utf-8")
    supervise.keep_logs(Api(), ["g-0-0", "g-1-0"], tmp_path, 9)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len({name.partition("-")[0] for name in kept}) == supervise.KEPT_SETS
    assert (tmp_path / kept[-1]).read_text(encoding="utf-8") == "g-1-0 9 False\n"


def test_a_crash_keeps_the_log_of_the_process_that_died(tmp_path: Path) -> None:
    supervise.keep_logs(Api(), ["g-1-0"], tmp_path, 9, previous=True)
    (kept,) = tmp_path.iterdir()
    assert kept.read_text(encoding="utf-8") == "g-1-0 9 True\n"


def test_a_log_that_cannot_be_kept_is_reported_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervise.keep_logs(Api(), ["g-1-0"], tmp_path / "gone", 9)
    said = capsys.readouterr().out
    assert "can't be saved" in said
    assert "g-1-0 9" in said


def test_only_ranks_that_load_are_asked_for_their_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Loading(Api):
        def see(self, name: str) -> Any:
            return state.Seen(name, name == "g-0-0", True, "u/0")

        def said(self, names: list[str]) -> list[str]:
            asked.extend(names)
            return ["shard 1"]

    history, options = state.History(), argparse.Namespace(health_timeout=1)
    supervise.check(Loading(), ["g-0-0", "g-1-0"], history, {}, options, state.Limits())
    assert (asked, history.said) == (["g-1-0"], ["shard 1"])


def test_a_failure_of_one_group_does_not_keep_it_from_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Known:
        def see(self, name: str) -> Any:
            asked.append(name)
            if name == "g-f2-1-0-0":
                raise OSError("refused")
            return state.Seen(name)

    def rest(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(supervise.time, "sleep", rest)
    options = argparse.Namespace(pods=[["g-f2-1-0-0"], ["g-f2-2-0-0", "g-f2-2-1-0"]], interval=5)
    with pytest.raises(KeyboardInterrupt):
        supervise.watch(Known(), options, state.Limits())
    assert asked == ["g-f2-1-0-0", "g-f2-2-0-0", "g-f2-2-1-0"]
    assert "g-f2-1-0-0 and its group could not be checked, trying again: OSError('refused')" in capsys.readouterr().out


class Opener:
    """An API server with one pod, whose sidecar has no log."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.text = "last line\n"

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        assert timeout > 0
        path = request.full_url.partition("/namespaces/s/pods/")[2]
        self.asked.append((request.get_method(), path, request.data))
        if path.startswith("g-1-0") or "container=transport" in path:
            raise HTTPError(request.full_url, 404, "not found", Message(), None)
        text = self.text.encode() if "/log?" in path else b'{"metadata": {"uid": "u"}}'
        answer = BytesIO(text)
        answer.headers = {"Date": "Sun, 22 Nov 2026 12:00:00 GMT"}  # type: ignore[attr-defined]
        return answer


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Opener:
    made = Opener()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.43.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_handlers: made)
    return made


def test_a_pod_and_a_log_that_do_not_exist_are_no_failure(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    api = supervise.SupervisorApi("s", 15, tmp_path)
    assert api.see("g-0-0").incarnation == "u/0"
    assert api.see("g-1-0") == state.Seen("g-1-0")
    api.delete("g-1-0", 10)
    assert opener.asked[-1] == ("DELETE", "g-1-0", b'{"gracePeriodSeconds": 10}')
    assert api.log("g-0-0", 5, True).endswith("last line\n")
    assert "no log: HTTP Error 404" in api.log("g-0-0", 5, True)
    assert opener.asked[-1][1] == "g-0-0/log?container=sglang&tailLines=5&previous=true"
    assert api.said(["g-0-0"]) == ["last line"]
    assert api.said(["g-0-0", "g-1-0"]) is None


def test_answers_to_probes_do_not_count_as_progress_of_a_start(opener: Opener, tmp_path: Path) -> None:
    """In a warm-up that hangs they are all that SGLang logs, for ever."""
    (tmp_path / "token").write_text("t")
    api = supervise.SupervisorApi("s", 15, tmp_path)
    access = '[2026-11-25 23:26:50] INFO:     10.42.0.1:4242 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    opener.text = f"Capture cuda graph end\n{access}{access}Health check failed. Server couldn't get a response\n"
    assert api.said(["g-0-0"]) == ["Capture cuda graph end"]
    opener.text = access * 50
    assert api.said(["g-0-0"]) == []
