# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a whole transfer by the module: a download, a process that serves, and copies in slices."""

import itertools
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share
from ansible_collections.gb10.cluster.plugins.modules import model_share
from model_transfers import FILES, REPO, SECRET, Hub, address, free_port, model
from module_runs import run_module

TOTAL = sum(map(len, FILES.values()))


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Return a port; end the processes of the test."""
    yield free_port()
    for path in tmp_path.glob("*.pid"):
        share.stop(path)


def order(tmp_path: Path, number: int, others: list[int], port: int, hub: str = "") -> dict[str, Any]:
    return {
        "process": str(tmp_path / f"{number}.pid"),
        "place": number,
        "models": [model(tmp_path / f"spark{number}" / "org--tiny")],
        "hub": [f"{REPO}/{name}" for name in FILES] if hub else [],
        "peers": [{"name": f"spark{n}", "paths": [{"to": address(n), "via": address(number)}]} for n in others],
        "addresses": [address(number)] if others else [],
        "port": port,
        "secret": SECRET,
        "url": hub or "http://127.0.0.1:1",
    }


def test_two_nodes_fetch_a_model_once(tmp_path: Path, hub: Hub, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = order(tmp_path, 1, [2], port, hub.url), order(tmp_path, 2, [1], port)
    status, result = run_module(model_share, capsys, check=True, state="downloaded", **one)
    assert (status, result["changed"], result["msg"]) == (0, True, "4.4 MB would be fetched.")
    assert list(tmp_path.iterdir()) == []
    rate = r"[\d.]+ .B/s in \d+ s"
    for given, state, said in (
        (one, "downloaded", rf"models: 3 of 3 files, 100 % \(4.4 MB of 4.4 MB\), 4.4 MB downloaded, {rate}"),
        (two, "downloaded", r"models: 0 of 3 files, 0 % \(0 B of 4.4 MB\)"),
        (one, "served", r"3 files are served on 127\.0\.7\.1\."),
        (two, "copied", rf"models: 3 of 3 files, 100 % .* 4.4 MB copied, {rate}"),
    ):
        if state == "served":
            hub.shutdown()  # a process with threads had better not fork
        status, result = run_module(model_share, capsys, state=state, **given)
        assert (status, result["done"]) == (0, True), result["msg"]
        assert re.fullmatch(said, result["msg"]), result["msg"]
        assert result["changed"] is (result["msg"].startswith("models: 3"))
        # A second run fetches nothing.
        assert run_module(model_share, capsys, state=state, **given)[1]["changed"] is False
    assert hub.sent == TOTAL
    assert run_module(model_share, capsys, state="absent", **one)[1]["msg"] == "The files are no longer served."
    assert run_module(model_share, capsys, state="absent", **one)[1]["msg"] == "No files were served."
    with socket.socket() as probe:
        assert probe.connect_ex((address(1), port)) != 0
    assert not list(tmp_path.glob("*.pid"))


def test_a_slice_ends_with_the_progress_and_the_next_one_has_it(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "PAUSE", 0.01)
    monkeypatch.setattr(model_share, "SLICE", 600.0)
    # The time of the first slice is over after ten looks at the clock.
    real, looks = share.Slice._alive, itertools.count()
    monkeypatch.setattr(share.Slice, "_alive", lambda each: next(looks) < 10 and real(each))
    given = order(tmp_path, 2, [1], port) | {"state": "copied"}
    status, result = run_module(model_share, capsys, **given)
    assert (status, result["done"], result["lacking"]) == (0, False, 3)
    assert result["msg"] == "models: 0 of 3 files, 0 % (0 B of 4.4 MB), no answer from spark1"
    monkeypatch.setattr(share.Slice, "_alive", real)
    late = result["progress"] | {"silent": share.PATIENCE_NODES}
    status, result = run_module(model_share, capsys, progress=late, **given)
    assert (status, result["done"]) == (1, False)
    assert result["msg"].startswith("3 files of the models can't be fetched: org/tiny/")
    assert "spark1 does not answer (" in result["msg"]
    assert result["msg"].endswith("Run again when this is repaired: files that are there are kept.")
    status, result = run_module(model_share, capsys, may_lack=True, progress=late, **given)
    assert (status, result["done"], result["lacking"]) == (0, True, 3), "another round follows"


def test_a_failed_download_fails_the_task_with_its_reason(
    tmp_path: Path, hub: Hub, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuse = 403
    status, result = run_module(model_share, capsys, state="downloaded", **order(tmp_path, 1, [], port, hub.url))
    assert status == 1 and "has not accepted the model's licence" in result["msg"]


def test_without_a_token_or_with_a_port_in_use_nothing_starts(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = order(tmp_path, 1, [2], port) | {"state": "served"}
    status, result = run_module(model_share, capsys, **{**given, "secret": ""})
    assert status == 1 and "secret is empty" in result["msg"]
    assert run_module(model_share, capsys, check=True, **given)[1]["msg"] == "Nothing is served in check mode."
    with socket.socket() as other:
        other.bind((address(1), port))
        other.listen()
        status, result = run_module(model_share, capsys, **given)
    assert status == 1 and "choose another one with models_share_port" in result["msg"]
    assert not list(tmp_path.glob("*.pid"))


def test_a_file_that_leaves_the_directory_is_refused(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = order(tmp_path, 1, [2], port)
    given["models"][0]["files"][0]["name"] = "../evil"
    for state in ("downloaded", "served", "copied"):
        status, result = run_module(model_share, capsys, state=state, **given)
        assert status == 1 and "This is no list of files of a model" in result["msg"]
