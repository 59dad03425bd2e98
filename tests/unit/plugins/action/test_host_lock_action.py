# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that one run at a time changes a host, with the module itself and a record in a directory of the test."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import host_lock as action
from ansible_collections.gb10.cluster.plugins.modules import host_lock as module
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import Holder, started, this_run
from module_runs import run_module

ROLES = Path(__file__).resolve().parents[4] / "roles"
ELSEWHERE = Holder("alice", "laptop", 4711, "99", "")
ENDED = replace(this_run(""), started="1")


class Host:
    """A host whose only file is the record."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str], python: str) -> None:
        self.path, self._capsys, self.python = path, capsys, python
        self.modules = 0

    def task(self, check: bool = False, **options: Any) -> dict[str, Any]:
        args = {"path": str(self.path), **options}

        def execute(module_args: dict[str, Any], **_options: Any) -> dict[str, Any]:
            self.modules += 1
            status, told = run_module(module, self._capsys, check=check, **module_args)
            return told | ({"failed": True} if status else {})

        def low_level(command: str, in_data: bytes) -> dict[str, Any]:
            done = subprocess.run(["/bin/sh", "-c", command], input=in_data, capture_output=True, check=False)
            return {"rc": done.returncode, "stdout": f"Welcome!\n{done.stdout.decode()}", "stderr": done.stderr}

        made: Any = object.__new__(action.ActionModule)
        words = {"check_mode": check, "delegate_to": None, "async_val": 0, "environment": []}
        made._task = SimpleNamespace(action="gb10.cluster.host_lock", args=args, **words)
        made._is_pipelining_enabled = lambda _style: True
        made._templar = SimpleNamespace(template=str)
        made._execute_module, made._low_level_execute_command = execute, low_level
        return dict(made.run(task_vars={"ansible_facts": {"discovered_interpreter_python": self.python}}))

    def held_by(self, who: Holder, until: float = 2e10, **more: Any) -> None:
        record = {"holder": json.dumps(asdict(who)), "run": "playbook fabric", "until": until, **more}
        self.path.write_text(json.dumps(record))

    def holder(self) -> Holder | None:
        return action.holder(module.read(self.path.read_text())[0])


@pytest.fixture(params=["", "/no/python", sys.executable], ids=["unknown Python", "failing Python", "program"])
def host(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Host:
    monkeypatch.setattr(ActionBase, "run", lambda *_arguments: {})
    return Host(tmp_path / "gb10-run.json", capsys, request.param)


def test_a_run_takes_renews_and_gives_back(host: Host) -> None:
    assert host.task(run="playbook fabric")["held"]
    first = json.loads(host.path.read_text())
    assert host.task(run="playbook kubernetes", duration=9000)["held"]
    second = json.loads(host.path.read_text())
    assert (second["run"], second["holder"]) == ("playbook kubernetes", first["holder"])
    assert second["until"] > first["until"]
    assert host.holder() == this_run("")
    assert not host.task(state="released").get("failed")
    assert host.path.read_text() == ""
    assert not host.task(state="released").get("failed")
    assert host.modules == (0 if host.python == sys.executable else 4)


@pytest.mark.parametrize(
    ("who", "until", "free"),
    [
        (lambda: ELSEWHERE, 2e10, False),
        (lambda: ELSEWHERE, 1.0, True),
        (lambda: replace(ENDED, pid=os.getpid(), started=started(os.getpid())), 2e10, False),
        (lambda: ENDED, 2e10, True),
    ],
    ids=["held", "expired", "another run here", "ended here"],
)
def test_who_no_longer_holds_it(host: Host, who: Callable[[], Holder], until: float, free: bool) -> None:
    host.held_by(who(), until)
    told = host.task()
    assert bool(told.get("failed")) is not free
    assert (host.holder() == this_run("")) is free


def test_another_run_is_named_and_its_lock_is_left(host: Host) -> None:
    host.held_by(ELSEWHERE)
    said = host.task()["msg"]
    assert "alice@laptop, process 4711, playbook fabric, at most until 2603-" in said
    assert f"sudo rm {host.path} on this host" in said
    host.task(state="released")
    assert host.holder() == ELSEWHERE


@pytest.mark.parametrize("text", ["", "x", "[]", '{"holder": 5}', '{"holder": "a", "run": "", "until": "x"}'])
def test_a_damaged_record_holds_nothing(host: Host, text: str) -> None:
    host.path.write_text(text)
    assert host.task()["held"]


@pytest.mark.parametrize("who", ["\x1b[2J", "[" * 10_000, '{"user": "a"}', json.dumps(asdict(ENDED) | {"pid": "a\0b"})])
def test_a_host_that_names_any_holder_refuses_only_itself(host: Host, who: str) -> None:
    host.held_by(ELSEWHERE, holder=who, run="\x1b[2J" * 1000)
    told = host.task()
    assert len(told.get("msg", "")) < 1000
    assert told.get("msg", "").isprintable()


def test_check_mode_takes_nothing(host: Host) -> None:
    assert not host.task(check=True)["held"]
    assert not host.path.exists()


def test_a_directory_that_cannot_be_written_is_explained(host: Host) -> None:
    host.path = host.path / "none" / "run.json"
    told = host.task()
    assert told["failed"]
    assert "No such file" in told["msg"]


def test_roles_take_it_before_their_first_check_and_give_it_back_last() -> None:
    """Roles netplan and k3s are checked on all hosts before any host changes."""
    for first, last in (
        ("netplan/tasks/check.yml", "netplan/tasks/main.yml"),
        ("k3s/tasks/preconditions.yml", "k3s/tasks/main.yml"),
        ("k3s/tasks/upgrade.yml", "k3s/tasks/upgrade.yml"),
    ):
        take = yaml.safe_load((ROLES / first).read_text(encoding="utf-8"))[0]
        give = yaml.safe_load((ROLES / last).read_text(encoding="utf-8"))[-1]
        assert take["gb10.cluster.host_lock"]["run"].startswith("playbook ")
        assert give["gb10.cluster.host_lock"] == {"state": "released"}
