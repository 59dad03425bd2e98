# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what Ansible prints when an action fails with findings, with the repository's settings and with Ansible's."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import action
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import (
    ControllerAction,
    explain,
    held,
    refusal,
)
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[5]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_failure_prints_each_finding_once_on_a_line_of_its_own(tmp_path: Path, form: str) -> None:
    settings = tmp_path / "ansible.cfg"
    settings.write_text(f"[defaults]\ncollections_path = {ROOT}/collections\ncallback_result_format = {form}\n")
    inventory = ROOT / "inventory" / "4x-gb10-switch"
    words = ["-i", inventory, "gb10.cluster.preflight", "-e", "gb10_fabirc_mtu=1", "-e", "gb10_fabric_mtu=no"]
    done = ansible("ansible-playbook", *words, cwd=tmp_path, env={**os.environ, "ANSIBLE_CONFIG": str(settings)})
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    at = lines.index("error: all hosts: gb10_fabirc_mtu: nothing reads it.")
    assert lines[at + 1 : at + 3] == [
        "    Did you mean gb10_fabric_mtu? [variables.unknown]",
        "    Set in option -e of the command.",
    ]
    assert (done.stdout + done.stderr).count("Did you mean") == 1
    # The list is the last thing on the screen; the task says how many errors there are.
    assert at > next(number for number, line in enumerate(lines) if line.startswith("PLAY RECAP"))
    assert done.stdout.count("variables.value") == 1
    assert "2 errors, each explained at the end of the output." in " ".join(done.stdout.partition("fatal: ")[2].split())


@pytest.mark.parametrize(
    ("columns", "terminal", "width"),
    [(79, False, action.WITHOUT_TERMINAL), (79, True, 79), (60, True, 60), (120, False, 120), (120, True, 120)],
)
def test_a_text_is_as_wide_as_the_terminal(
    columns: int, terminal: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action, "_TERMINAL", terminal)
    monkeypatch.setattr(action, "Display", lambda: SimpleNamespace(columns=columns))
    assert action.width() == width


def test_what_records_a_run_without_its_output_keeps_the_explanation() -> None:
    error = Finding("error", "fabric.mtu", "gb10_fabric_mtu", 9, "too small", "Use 9000", place="hosts.yml:3")
    result = refusal({"failed": True, "msg": "Nothing was changed.\nmore", "findings": [error.as_dict()]})
    assert held(result).splitlines() == [
        "Nothing was changed.",
        "error: gb10_fabric_mtu = 9: too small.",
        "    Use 9000 [fabric.mtu]",
        "    Set in hosts.yml:3.",
    ]
    assert result["msg"] == "Nothing was changed: 1 error, each explained at the end of the output."


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "results/mine.html"), "Give the user who runs Ansible"),
        (OSError(errno.EROFS, "Read-only file system", "results/mine.html"), "use a directory of another one"),
        (OSError(errno.ENOSPC, "No space left on device"), "Free some space"),
        (FileExistsError(errno.EEXIST, "File exists", "results"), "Remove it, or use another path."),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), ""),
    ],
)
def test_a_file_that_an_action_cannot_write_is_named_with_what_to_do(error: OSError, remedy: str) -> None:
    message = explain(error)
    assert (remedy in message, bool(message)) == (True, bool(remedy))
    assert (error.filename or "") in message or not remedy


def test_a_file_that_cannot_be_written_ends_the_task_without_a_raw_error(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    options = json.dumps({"journal": f"{tmp_path}/results/mine.jsonl", "record": {"kind": "note"}})
    done = ansible("ansible", "localhost", "-m", "gb10.cluster.sweep_record", "-a", options)
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode, "[Errno" in said) == (2, False)
    assert f"{tmp_path}/results: File exists on the machine that runs Ansible. Remove it, or use another path." in said


class Shown(ControllerAction):
    ROLE = "gateway"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        return dict(options)


def test_what_a_task_gives_replaces_the_option_of_the_role_with_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_arguments: {})
    monkeypatch.setattr(action, "documented_spec", lambda _name: {"services": {"type": "list"}})
    monkeypatch.setattr(action, "role_options", lambda *_arguments: {"services": [], "port": 30000})
    given = {"services": ["one"]}
    made: Any = Shown.__new__(Shown)
    made._task, made._templar = SimpleNamespace(args=given), SimpleNamespace(template=None)
    made.validate_argument_spec = lambda _spec: (None, {**given, "live": {}})
    assert made.run(None, {}) == {"services": ["one"], "port": 30000, "live": {}}
