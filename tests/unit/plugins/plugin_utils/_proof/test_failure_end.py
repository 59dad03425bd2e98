# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the file and the result of a failed task: no secrets, for its owner only, and only the title as the message."""

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import action
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import Screen
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import failed, failed_text, group_screen
from failed_group import GROUP, TCP, failed_group

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
KNOWN = "correct horse battery"


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(action.Waiting, "loaded", True)
    spark1 = {"sglang_hf_token": KNOWN, "ansible_become_password": "first of sudo", "ansible_ssh_pass": "second of ssh"}
    variables = {"gb10_results_dir": str(tmp_path / "out"), "hostvars": {"spark1": spark1}}
    return lambda screen, details, **more: failed(screen, "my group/1", details, variables, str, **more)


def test_the_structures_go_to_a_file_of_its_owner_and_not_to_the_result(fail: Any, tmp_path: Path) -> None:
    result = failed_group([TCP] * 4, {0: [f"token {TOKEN}", f"said {KNOWN}"]})
    ended = fail(group_screen(result, GROUP), result)
    assert set(ended) == {"failed", "msg", "invocation"}
    path = tmp_path / "out" / "failed-my-group-1.txt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"Logs and all details: {path}" in re.sub(r"\n  ", " ", action.held(ended))
    kept = path.read_text()
    assert kept.startswith(f"Group {GROUP} is not ready")
    assert '"no_rdma_device"' in kept
    assert (TOKEN in kept, KNOWN in kept) == (False, False)


def test_the_screen_has_no_secrets(fail: Any) -> None:
    said = f"token={TOKEN} and {KNOWN}, first of sudo, second of ssh"
    shown = action.held(fail(Screen("No.", evidence=said), {"msg": "No."}))
    assert [word for word in (TOKEN, KNOWN, "first", "second") if word in shown] == []
    assert "Evidence: token=<removed>" in shown


def test_a_file_that_cannot_be_written_does_not_hide_the_failure(fail: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    shown = action.held(fail(Screen("It failed."), {"msg": ""}))
    assert " ".join(shown.split()).startswith("It failed. Details: not kept, ")


def test_check_mode_and_other_files_write_nothing(fail: Any, tmp_path: Path) -> None:
    fail(Screen("No."), {}, write=False)
    assert "details: results/proof.json" in action.held(fail(Screen("No.", details="results/proof.json"), {}))
    assert not (tmp_path / "out").exists()


def test_a_message_of_many_lines_is_held_and_its_structures_go_to_a_file(fail: Any, tmp_path: Path) -> None:
    result = {"msg": f"After 9 s: 1 of 2 pods.\n  pod a: waits\n{KNOWN}, https://hook.", "pods": ["a"] * 50}
    hook = {"name": "waits", "url": "https://hook"}
    host = {"mine": "pods", "my_password": KNOWN, "monitoring_alertmanager": {"receivers": [hook]}}
    variables = {"gb10_results_dir": str(tmp_path), "hostvars": {"spark1": host}}
    ended = failed_text("node_wait-spark1", result, variables, str)
    assert ended["msg"] == "After 9 s: 1 of 2 pods."
    lines = action.held(ended).splitlines()
    assert lines[:3] == ["After 9 s: 1 of 2 pods.", "  pod a: waits", "<removed>, <removed>."]
    assert '"pods"' in (tmp_path / "failed-node-wait-spark1.txt").read_text()
    assert set(failed_text("x", result, variables, str, write=False)) == {"failed", "msg", "invocation"}
