# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that only a task that asks for it goes on with a host that could not be read, and what a login prints."""

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gb10.cluster.plugins.action import preflight_info


@pytest.fixture(autouse=True)
def without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ansible run the module, as it does on a host whose Python it does not find."""
    monkeypatch.setattr(preflight_info, "discover_interpreter", lambda *_words: "")
    monkeypatch.setattr(preflight_info, "without_library", lambda _action, _python: None)


def run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    def unreachable(_self: object, **_options: Any) -> dict[str, Any]:
        raise AnsibleConnectionFailure("Host key verification failed.")

    action = preflight_info.ActionModule.__new__(preflight_info.ActionModule)
    action._task = SimpleNamespace(args=options)
    action._play_context = SimpleNamespace(remote_user="nvidia")
    monkeypatch.setattr(preflight_info.ActionBase, "run", lambda *_words: {})
    monkeypatch.setattr(preflight_info.ActionModule, "_execute_module", unreachable)
    return dict(action.run(None, {"ansible_host": "192.0.2.1"}))


def test_a_host_that_can_not_be_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        run(monkeypatch)


def test_preflight_goes_on_with_the_error_as_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = run(monkeypatch, keep_unread=True)["ansible_facts"]
    assert facts["gb10_preflight"] is None
    assert run(monkeypatch, keep_unread=True, loads_only=True)["ansible_facts"] == {"gb10_loads": []}
    unread = facts["gb10_preflight_unread"]
    assert unread.pop("error").endswith("Host key verification failed.")
    assert unread == {"address": "192.0.2.1", "user": "nvidia"}


@pytest.mark.parametrize("asked", ["Failed to connect to the host via ssh: Host key verification failed.", ""])
def test_a_module_that_could_not_be_sent_asks_ssh_for_the_cause(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    told = "Data could not be sent to remote host 'spark1'. Make sure this host can be reached over SSH."

    def unsent(_self: object, **_options: Any) -> dict[str, Any]:
        raise AnsibleConnectionFailure(told)

    def try_ssh(_self: object, command: str, sudoable: bool) -> dict[str, Any]:
        assert (command, sudoable) == ("true", False)
        if asked:
            raise AnsibleConnectionFailure(asked)
        return {"rc": 0}

    action = preflight_info.ActionModule.__new__(preflight_info.ActionModule)
    action._task = SimpleNamespace(args={"keep_unread": True})
    action._play_context = SimpleNamespace(remote_user="nvidia")
    monkeypatch.setattr(preflight_info.ActionBase, "run", lambda *_words: {})
    monkeypatch.setattr(preflight_info.ActionModule, "_execute_module", unsent)
    monkeypatch.setattr(preflight_info.ActionModule, "_low_level_execute_command", try_ssh)
    facts = action.run(None, {"ansible_host": "192.0.2.1"})["ansible_facts"]
    assert facts["gb10_preflight_unread"]["error"] == (f"{asked}\n{told}" if asked else told)


@pytest.mark.parametrize(
    ("stdout", "printed"),
    [
        ('Welcome to \x1b[1mspark1\nlast login\nBECOME-SUCCESS-xyz\n{"a": 1}', "Welcome to \x1b[1mspark1"),
        ('\n{"a": 1}', ""),
        ('{"a": "{"}\nbye', ""),
        ("PLATFORM\nLinux\nFOUND\n/usr/bin/python3\nENDFOUND", ""),
    ],
    ids=["prints", "silent", "prints later", "search for Python"],
)
def test_what_the_login_prints_before_the_answer_is_a_fact(
    monkeypatch: pytest.MonkeyPatch, stdout: str, printed: str
) -> None:
    def read(self: Any, **_options: Any) -> dict[str, Any]:
        self._low_level_execute_command("python3")
        return {"ansible_facts": {"gb10_preflight": {}}}

    action = preflight_info.ActionModule.__new__(preflight_info.ActionModule)
    action._task = SimpleNamespace(args={"keep_unread": True})
    monkeypatch.setattr(preflight_info.ActionBase, "run", lambda *_words: {})
    monkeypatch.setattr(preflight_info.ActionBase, "_low_level_execute_command", lambda *_words: {"stdout": stdout})
    monkeypatch.setattr(preflight_info.ActionModule, "_execute_module", read)
    assert action.run(None, {})["ansible_facts"]["gb10_preflight_unread"] == ({"printed": printed} if printed else {})


@pytest.mark.parametrize("told", [{"gb10_preflight": {}}, None, []], ids=["facts", "none", "no facts"])
def test_the_first_task_of_a_run_finds_python_and_tells_it(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    action = preflight_info.ActionModule.__new__(preflight_info.ActionModule)
    action._task = SimpleNamespace(args={"keep_unread": True})
    modules: list[str] = []

    def read(_self: object, **_options: Any) -> dict[str, Any]:
        modules.append("run")
        return {"ansible_facts": {"gb10_preflight": {}}}

    asked: list[str] = []
    monkeypatch.setattr(preflight_info.ActionBase, "run", lambda *_words: {})
    monkeypatch.setattr(preflight_info.ActionModule, "_execute_module", read)
    monkeypatch.setattr(
        preflight_info, "discover_interpreter", lambda *words: asked.append(words[2]) or "/usr/bin/python3"
    )
    monkeypatch.setattr(preflight_info, "without_library", lambda _action, _python: {"ansible_facts": told})
    facts = action.run(None, {})["ansible_facts"]
    assert asked == ["auto_silent"]
    assert modules == ([] if isinstance(told, dict) else ["run"])
    assert facts.get("discovered_interpreter_python") == ("/usr/bin/python3" if isinstance(told, dict) else None)
