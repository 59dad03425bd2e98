# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a run ends with one line per cause that kept Ansible from its hosts, and leaves other errors alone."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.callback import contact
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import action
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import hold


def told(monkeypatch: pytest.MonkeyPatch, *results: Any, method: str) -> list[str]:
    shown: list[str] = []
    monkeypatch.setattr(contact, "tell", lambda text, colour: shown.append(colour(text)))
    callback = contact.CallbackModule()
    monkeypatch.setattr(callback, "_values", lambda host: {"ansible_host": host.address, "ansible_user": "nvidia"})
    for result in results:
        getattr(callback, method)(result)
    callback.v2_playbook_on_stats(SimpleNamespace())
    return "\n".join(shown).splitlines()


def result(host: str, msg: str, **more: Any) -> Any:
    return SimpleNamespace(
        result={"msg": msg, **more},
        host=SimpleNamespace(name=host, address=f"{host}.example"),
        task=SimpleNamespace(remote_user=None),
    )


def test_hosts_without_a_known_key_are_named_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    msg = "Task failed: Failed to connect to the host via ssh: Host key verification failed."
    lines = told(monkeypatch, result("spark1", msg), result("spark2", msg), method="v2_runner_on_unreachable")
    first = [line.partition(" = ")[0] for line in lines if line.startswith("error")]
    assert first == ["error: spark1: ssh", "error: spark2: ssh"]
    assert "Run ssh nvidia@spark1.example once" in " ".join(" ".join(lines).split())


def test_a_missing_sudo_password_is_told_once_for_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [result(host, "Task failed: Missing sudo password") for host in ("spark1", "spark2")]
    lines = told(monkeypatch, *failed, method="v2_runner_on_failed")
    assert lines[0].startswith("error: spark1, spark2: sudo = 'Missing sudo password'")
    assert "\n".join(lines).count("error: ") == 1
    assert any(line.startswith("    Run the command again with -K.") for line in lines)


@pytest.mark.parametrize(("plans", "times"), [(["fabric", "serving"], 1), (["fabric"], 0), (None, 0)])
def test_a_run_that_plans_a_group_loads_flags_and_profiles_before_the_first_process(
    monkeypatch: pytest.MonkeyPatch, plans: list[str] | None, times: int
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(contact, "read_for_all", lambda *_words: [])
    monkeypatch.setattr(contact.context, "CLIARGS", {})
    monkeypatch.setattr(import_module(contact.PROFILES).Library, "load", lambda: loaded.append("all"))
    callback = contact.CallbackModule()
    for _play in range(2):
        own = {"needed_plans": plans} if plans else {}
        play = SimpleNamespace(vars=own, get_loader=lambda: SimpleNamespace(load_from_file=None))
        callback.v2_playbook_on_play_start(play)
    assert len(loaded) == times


def test_the_host_of_a_delegated_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    delegated = {"ansible_delegated_host": "control", "ansible_host": "192.0.2.9"}
    one = result("spark1", "Host key verification failed.", _ansible_delegated_vars=delegated)
    lines = told(monkeypatch, one, method="v2_runner_on_unreachable")
    assert "error: control: ssh" in lines[0]
    assert "nvidia@192.0.2.9" in " ".join(lines)


@pytest.mark.parametrize("msg", ["rsync: Permission denied (publickey)", "No space left on device", "NCCL fell back"])
def test_errors_of_a_task_that_ran_are_left_alone(monkeypatch: pytest.MonkeyPatch, msg: str) -> None:
    assert told(monkeypatch, result("spark1", msg), method="v2_runner_on_failed") == []


def test_ignored_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact, "tell", pytest.fail)
    callback = contact.CallbackModule()
    callback.v2_runner_on_failed(result("spark1", "Missing sudo password"), ignore_errors=True)
    callback.v2_playbook_on_stats(SimpleNamespace())


def block(*tasks: Any, rescue: tuple[Any, ...] = (), parent: Any = None) -> Any:
    """Return a block of Ansible that contains these tasks or blocks."""
    made = SimpleNamespace(block=list(tasks), rescue=list(rescue), _parent=parent)
    for task in (*tasks, *rescue):
        task._parent = made
    return made


def failure(text: str, task: Any = None) -> Any:
    made = result("spark1", "It failed.", **hold(text))
    made.task = task or SimpleNamespace(remote_user=None)
    return made


def test_the_screen_of_a_failed_task_is_printed_once_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "tell", pytest.fail)
    contact.CallbackModule()
    screen = failure("It failed.\nCause: A.")
    lost = result("spark2", "Task failed: Missing sudo password")
    lines = told(monkeypatch, screen, lost, screen, method="v2_runner_on_failed")
    assert lines[0].startswith("error: spark2: sudo")
    assert lines[-3:] == ["", "It failed.", "Cause: A."]


def test_a_failure_that_the_play_rescues_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, after = SimpleNamespace(remote_user=None), SimpleNamespace(remote_user=None)
    block(block(inner), rescue=(after,))
    assert told(monkeypatch, failure("gone", inner), method="v2_runner_on_failed") == []
    assert told(monkeypatch, failure("stays", after), method="v2_runner_on_failed") == ["stays"]


def test_the_verdict_of_a_task_that_did_not_fail_is_printed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, failure("0 errors."), failure("0 errors."), method="v2_runner_on_ok") == ["0 errors."]


def test_without_this_callback_the_screen_is_printed_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(action.Waiting, "loaded", False)
    assert action.held(hold("It failed.\nCause: A.")) == "It failed.\nCause: A."
    assert capsys.readouterr().out == "It failed.\nCause: A.\n"
