# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that only a task that asks for it goes on with a host that could not be read, and what a login prints."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gb10.cluster.plugins.action import preflight_info

Step = Callable[..., dict[str, Any]]
TOLD = "Data could not be sent to remote host 'spark1'. Make sure this host can be reached over SSH."
REFUSED = "Host key verification failed."


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the action; ``module`` and ``command`` are what Ansible does with the host.

    By default Ansible runs the module, as on a host whose Python it does not find.
    """

    def run(module: Step, command: Step | None = None, python: str = "", told: Any = None, **options: Any) -> Any:
        action = preflight_info.ActionModule.__new__(preflight_info.ActionModule)
        action._task = SimpleNamespace(args=options)
        action._play_context = SimpleNamespace(remote_user="nvidia")
        monkeypatch.setattr(preflight_info.ActionBase, "run", lambda *_words: {})
        monkeypatch.setattr(preflight_info.ActionModule, "_execute_module", module)
        if command:
            monkeypatch.setattr(preflight_info.ActionBase, "_low_level_execute_command", command)
        monkeypatch.setattr(
            preflight_info, "discover_interpreter", lambda *words: python if words[2] == "auto_silent" else ""
        )
        monkeypatch.setattr(preflight_info, "without_library", lambda _action, _python: told)
        return action.run(None, {"ansible_host": "192.0.2.1"})["ansible_facts"]

    return run


def fails(text: str) -> Step:
    def fail(_self: object, *_words: Any, **_options: Any) -> dict[str, Any]:
        raise AnsibleConnectionFailure(text)

    return fail


def test_preflight_alone_goes_on_with_a_host_that_can_not_be_read(run: Any) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        run(fails(REFUSED))
    facts = run(fails(REFUSED), keep_unread=True)
    assert facts["gb10_preflight"] is None
    assert run(fails(REFUSED), keep_unread=True, loads_only=True) == {"gb10_loads": []}
    unread = facts["gb10_preflight_unread"]
    assert unread.pop("error").endswith(REFUSED)
    assert unread == {"address": "192.0.2.1", "user": "nvidia"}


@pytest.mark.parametrize("asked", [f"Failed to connect to the host via ssh: {REFUSED}", ""])
def test_a_module_that_could_not_be_sent_asks_ssh_for_the_cause(run: Any, asked: str) -> None:
    def try_ssh(_self: object, command: str, sudoable: bool) -> dict[str, Any]:
        assert (command, sudoable) == ("true", False)
        return fails(asked)(None) if asked else {"rc": 0, "stdout": ""}

    facts = run(fails(TOLD), try_ssh, keep_unread=True)
    assert facts["gb10_preflight_unread"]["error"] == (f"{asked}\n{TOLD}" if asked else TOLD)


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
def test_what_the_login_prints_before_the_answer_is_a_fact(run: Any, stdout: str, printed: str) -> None:
    def read(self: Any, **_options: Any) -> dict[str, Any]:
        self._low_level_execute_command("python3")
        return {"ansible_facts": {"gb10_preflight": {}}}

    facts = run(read, lambda *_words: {"stdout": stdout}, keep_unread=True)
    assert facts["gb10_preflight_unread"] == ({"printed": printed} if printed else {})


@pytest.mark.parametrize("told", [{"gb10_preflight": {}}, None, []], ids=["facts", "none", "no facts"])
def test_the_first_task_of_a_run_finds_python_and_tells_it(run: Any, told: Any) -> None:
    modules: list[str] = []

    def read(_self: object, **_options: Any) -> dict[str, Any]:
        modules.append("run")
        return {"ansible_facts": {"gb10_preflight": {}}}

    facts = run(read, python="/usr/bin/python3", told={"ansible_facts": told}, keep_unread=True)
    assert modules == ([] if isinstance(told, dict) else ["run"])
    assert facts.get("discovered_interpreter_python") == ("/usr/bin/python3" if isinstance(told, dict) else None)
