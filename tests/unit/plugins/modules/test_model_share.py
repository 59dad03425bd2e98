# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a whole transfer by the module, in processes of their own."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import control
from ansible_collections.gb10.cluster.plugins.modules import model_share
from model_transfers import FILES, REPO, SECRET, Hub, address, free_port, model
from module_runs import run_module

TOTAL = sum(map(len, FILES.values()))


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Return a port; end the transfers of the test."""
    yield free_port()
    for path in tmp_path.glob("*/.gb10-share"):
        control.Control(path).stop()


def order(tmp_path: Path, number: int, others: list[int], port: int, hub: str = "") -> dict[str, Any]:
    peers = [{"name": f"spark{n}", "paths": [{"to": address(n), "via": address(number)}]} for n in others]
    return {
        "control": str(tmp_path / f"spark{number}" / ".gb10-share"),
        "place": number,
        "models": [model(tmp_path / f"spark{number}" / "org--tiny")],
        "hub": [f"{REPO}/{name}" for name in FILES] if hub else [],
        "peers": peers,
        "addresses": [address(number)] if others else [],
        "port": port,
        "secret": SECRET,
        "url": hub,
    }


def watch(capsys: pytest.CaptureFixture[str], given: dict[str, Any], seconds: float = 15) -> tuple[int, dict[str, Any]]:
    return run_module(model_share, capsys, state="watched", control=given["control"], slice_seconds=seconds)


def absent(capsys: pytest.CaptureFixture[str], given: dict[str, Any]) -> str:
    status, result = run_module(model_share, capsys, state="absent", control=given["control"])
    assert (status, result["changed"]) == (0, False)
    return str(result["msg"])


def test_two_nodes_fetch_a_model_once(tmp_path: Path, hub: Hub, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = order(tmp_path, 1, [2], port, hub.url), order(tmp_path, 2, [1], port)
    for given in (one, two):
        status, result = run_module(model_share, capsys, **given)
        assert (status, result["changed"], result["msg"]) == (0, False, "The transfer is running: 3 files of 1 models.")
    results = [watch(capsys, given) for given in (one, two)]
    assert [(status, result["changed"], result["done"]) for status, result in results] == [(0, True, True)] * 2
    assert "3 of 3 files, 100 %" in results[0][1]["msg"] and "4.4 MB downloaded" in results[0][1]["msg"]
    assert re.search(r"4\.4 MB copied, [\d.]+ .B/s in \d+ s$", results[1][1]["msg"])
    assert hub.sent == TOTAL
    pid = results[0][1]["status"]["pid"]
    for path in (f"/proc/{pid}/cmdline", f"/proc/{pid}/environ"):
        assert SECRET not in Path(path).read_text(errors="replace")
    assert not any(SECRET in path.read_text() for path in Path(one["control"]).iterdir())
    assert absent(capsys, one) == absent(capsys, two) == "The transfer has ended."
    assert absent(capsys, one) == "No transfer runs on this node."
    with socket.socket() as probe:
        assert probe.connect_ex((address(1), port)) != 0
    assert not Path(one["control"]).exists()
    for given in (one, two):
        run_module(model_share, capsys, **given)
        assert watch(capsys, given)[1]["changed"] is False, "a second run fetches nothing"
    assert hub.sent == TOTAL


def test_a_slice_ends_with_the_progress(
    tmp_path: Path, hub: Hub, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = order(tmp_path, 1, [2], port)
    run_module(model_share, capsys, **given)
    status, result = watch(capsys, given, 2)
    assert (status, result["done"]) == (0, False)
    assert result["msg"].startswith("models: 0 of 3 files, 0 % (0 B of 4.4 MB)")
    assert result["msg"].endswith("no answer from spark2")


def test_check_mode_says_what_would_be_fetched(tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = order(tmp_path, 1, [2], port, "http://127.0.0.1:1"), order(tmp_path, 2, [1], port)
    for given in (one, two):
        status, result = run_module(model_share, capsys, check=True, **given)
        assert (status, result["changed"], result["msg"]) == (0, True, "4.4 MB would be fetched.")
    status, result = run_module(model_share, capsys, check=True, state="watched", control=one["control"])
    assert (status, result["changed"], result["done"]) == (0, False, True)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_killed_is_noticed(tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = order(tmp_path, 1, [2], port)
    run_module(model_share, capsys, **given)
    at = control.Control(Path(given["control"]))
    os.kill(int(at.read()["pid"]), 9)
    while at.is_locked():
        time.sleep(0.05)
    status, result = watch(capsys, given)
    assert status == 1 and "No transfer runs on this node" in result["msg"]


def test_a_second_run_is_refused_and_an_abandoned_one_replaced(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = order(tmp_path, 1, [2], port)
    run_module(model_share, capsys, **given)
    monkeypatch.setattr(model_share, "PATIENCE", 0)
    status, result = run_module(model_share, capsys, **given)
    assert status == 1 and "Another transfer of models runs on this node, by process " in result["msg"]
    monkeypatch.setattr(model_share, "ABANDONED", -1)
    assert run_module(model_share, capsys, **given)[0] == 0


def test_a_run_that_was_refused_does_not_end_the_transfer_of_the_first_one(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_share, "PATIENCE", 0)
    given = order(tmp_path, 1, [2], port)
    run_module(model_share, capsys, **given)
    other = {**given, "secret": "of another run"}
    assert run_module(model_share, capsys, **other)[0] == 1
    status, result = run_module(model_share, capsys, **{**other, "state": "absent"})
    assert status == 0 and "Another run's transfer of models goes on on this node" in result["msg"]
    at = control.Control(Path(given["control"]))
    assert at.is_locked()
    assert run_module(model_share, capsys, **{**given, "state": "absent"})[1]["msg"] == "The transfer has ended."
    assert not at.is_locked()


def test_a_failed_download_fails_the_task_with_its_reason(
    tmp_path: Path, hub: Hub, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuse = 403
    given = order(tmp_path, 1, [], port, hub.url)
    run_module(model_share, capsys, **given)
    status, result = watch(capsys, given)
    assert status == 1 and "has not accepted the model's licence" in result["msg"]


def test_without_a_token_or_with_a_port_in_use_nothing_starts(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = order(tmp_path, 1, [2], port)
    status, result = run_module(model_share, capsys, **{**given, "secret": ""})
    assert status == 1 and "secret is empty" in result["msg"]
    with socket.socket() as other:
        other.bind((address(1), port))
        other.listen()
        status, result = run_module(model_share, capsys, **given)
    assert status == 1 and "choose another one with models_share_port" in result["msg"]
    assert not Path(given["control"]).exists()
