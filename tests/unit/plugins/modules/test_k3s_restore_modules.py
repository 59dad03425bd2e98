# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the modules that start K3s and exchange its state. tests/unit/hostile/test_hostile_archive.py tests refusals."""

from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import k3s_backup_info, k3s_service, k3s_state
from module_runs import run_module

Capture = pytest.CaptureFixture[str]


def systemd(monkeypatch: pytest.MonkeyPatch, state: str, fails: str = "", told: str = "", times: int = 9) -> list[str]:
    """Play a systemd in which the command ``fails`` fails so many times; return its commands."""
    called: list[str] = []

    def run(_module: AnsibleModule, command: list[str]) -> tuple[int, str, str]:
        called.append(" ".join(command[:2]))
        if command[1] == "show":
            return 0, f"ActiveState={state}\nUnitFileState=disabled\n", ""
        failed = command[1] == fails and sum(one.split()[1] == fails for one in called) <= times
        return (1, "", "Job for k3s.service failed.") if failed else (0, "", "")

    monkeypatch.setattr(AnsibleModule, "run_command", run)
    monkeypatch.setattr(system, "last_words", lambda unit, _since: told if unit == "k3s.service" else "")
    return called


@pytest.mark.parametrize(
    ("state", "options", "commands"),
    [
        ("active", {}, []),
        ("inactive", {}, ["systemctl start"]),
        ("activating", {}, ["systemctl start"]),
        ("active", {"state": "restarted"}, ["systemctl restart"]),
        ("active", {"enabled": True}, ["systemctl enable"]),
        (
            "failed",
            {"enabled": True, "daemon_reload": True},
            ["systemctl daemon-reload", "systemctl enable", "systemctl start"],
        ),
    ],
)
def test_what_is_needed_is_done(
    state: str, options: dict[str, object], commands: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    called = systemd(monkeypatch, state)
    status, result = run_module(k3s_service, capsys, name="k3s", **options)
    assert (status, result["changed"], called[1:]) == (0, bool(commands), commands)


def test_check_mode_starts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    called = systemd(monkeypatch, "inactive")
    assert run_module(k3s_service, capsys, name="k3s", check=True)[1]["changed"]
    assert called == ["systemctl show"]


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        ("the token is another", "k3s did not start: the token is another"),
        ("", "k3s did not start: Job for k3s.service failed."),
    ],
)
def test_a_start_that_fails_quotes_k3s(
    journal: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    systemd(monkeypatch, "inactive", "start", journal)
    status, result = run_module(k3s_service, capsys, name="k3s")
    assert (status, result["msg"]) == (1, told)


@pytest.mark.parametrize(("state", "first"), [("inactive", "start"), ("active", "restart")])
def test_a_server_that_ends_once_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, state: str, first: str
) -> None:
    called, warned = systemd(monkeypatch, state, first, "etcd is slow", times=1), list[str]()
    # Ansible prints a warning instead of returning it as soon as a test of this process has imported its controller.
    monkeypatch.setattr(k3s_service.AnsibleModule, "warn", lambda _module, text: warned.append(text))
    status, result = run_module(k3s_service, capsys, name="k3s", state=f"{first}ed")
    assert (status, result["changed"], called[1:]) == (0, True, [f"systemctl {first}", "systemctl start"])
    assert ["etcd is slow" in text for text in warned] == [True]


def test_a_host_without_systemd_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    systemd(monkeypatch, "inactive", "show")
    monkeypatch.setattr(AnsibleModule, "run_command", lambda *_: (1, "", "no bus"))
    assert run_module(k3s_service, capsys, name="k3s")[1]["msg"] == "systemctl show failed: no bus"


def test_the_state_of_a_server_is_moved_away_put_back_and_deleted(tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "data/server/db"
    state.mkdir(parents=True)
    options = {"data_dir": "/data", "root": str(tmp_path)}
    assert run_module(k3s_state, capsys, state="aside", check=True, **options)[1]["changed"]
    assert state.exists()
    for wanted, there in (("aside", False), ("kept", True), ("aside", False), ("settled", False)):
        assert run_module(k3s_state, capsys, state=wanted, **options)[1]["changed"]
        assert state.exists() is there
    for wanted in ("aside", "kept", "settled"):
        assert not run_module(k3s_state, capsys, state=wanted, **options)[1]["changed"]


def test_a_missing_archive_is_named(tmp_path: Path, capsys: Capture) -> None:
    status, result = run_module(k3s_backup_info, capsys, path=str(tmp_path / "a.gz"), data_dir="/data")
    assert (status, "a.gz" in result["msg"]) == (1, True)
