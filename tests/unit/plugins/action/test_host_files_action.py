# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that modules run without Ansible's library only where they change nothing, and what reaches a host's journal."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import host_files as action
from ansible_plays import ansible
from module_runs import run_module

ROOT = Path(__file__).resolve().parents[4]
NAMES = [*action.READING, *action.CONVERGING, *action.READ]
TASK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - gb10.cluster.host_files:
        secret_files: [{{path: "{path}", content: "s3cr3t-token\\nof two lines\\n"}}]
"""
Task = Callable[..., dict[str, Any]]


def test_no_argument_of_the_module_is_logged_on_the_host(tmp_path: Path) -> None:
    play, token = tmp_path / "play.yml", tmp_path / "token"
    play.write_text(TASK.format(path=token), encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    # The module that stays below this directory has the arguments that Ansible gave to it.
    kept = {
        "ANSIBLE_KEEP_REMOTE_FILES": "1",
        "ANSIBLE_PIPELINING": "0",
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
    }
    words = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", play]
    done = ansible("ansible-playbook", *words, env={**own, **kept})
    assert done.returncode == 0, done.stdout + done.stderr
    assert token.read_text(encoding="utf-8") == "s3cr3t-token\nof two lines\n"
    (module,) = (tmp_path / "remote").rglob("AnsiballZ_*.py")
    assert '"_ansible_no_log": true' in module.read_text(encoding="utf-8")
    assert "s3cr3t" not in done.stdout + done.stderr


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Task:
    """Return a function that runs a task of the action on this machine, and tells whether Ansible ran the module.

    The programs run in a home directory with a file that has the name of a module of Python.
    """
    home = tmp_path / "home"
    home.mkdir()
    (home / "shutil.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(ActionBase, "run", lambda *_arguments: {})

    def run(name: str, python: str = sys.executable, pipelining: bool = True, **options: Any) -> dict[str, Any]:
        def execute(**_options: Any) -> dict[str, Any]:
            module = import_module(f"{action.OWN}plugins.modules.{name}")
            status, told = run_module(module, capsys, **options)
            return told | {"by_ansible": True} | ({"failed": True} if status else {})

        def low_level(command: str, in_data: bytes) -> dict[str, Any]:
            done = subprocess.run(["/bin/sh", "-c", command], input=in_data, capture_output=True, check=False, cwd=home)
            return {"rc": done.returncode, "stdout": f"Welcome!\n{done.stdout.decode()}", "stderr": done.stderr}

        made: Any = object.__new__(action.ActionModule)
        words = {"check_mode": False, "delegate_to": None, "async_val": 0, "environment": [{}]}
        made._task = SimpleNamespace(action=f"gb10.cluster.{name}", args=options, **words)
        made._templar = SimpleNamespace(template=str)
        made._execute_module, made._low_level_execute_command = execute, low_level
        made._is_pipelining_enabled = lambda _style: pipelining
        return dict(made.run(task_vars={"ansible_facts": {"discovered_interpreter_python": python}}))

    return run


def test_a_module_that_changes_something_is_run_by_ansible_and_one_that_does_not_is_not(
    task: Task, tmp_path: Path
) -> None:
    token, plain = tmp_path / "token", tmp_path / "plain"
    options = {
        "files": [{"path": str(plain), "content": "a ~ and a $HOME, \N{SNOWMAN}\n", "mode": "0600"}],
        "secret_files": [{"path": str(token), "content": "s3cr3t\ntoken", "keep": "yes"}],
    }
    first = task("host_files", **options)
    assert (first["changed"], first["by_ansible"]) == (True, True)
    again = task("host_files", **options)
    assert again == {"changed": False, "paths": [], "msg": "All paths are as wanted.", "diff": []}
    plain.chmod(0o644)
    assert task("host_files", **options)["paths"] == [str(plain)]
    assert f"{plain.stat().st_mode:o}".endswith("600")
    for other in ({"python": ""}, {"python": "/no/python"}, {"pipelining": False}):
        assert task("host_files", **options, **other)["by_ansible"]


@pytest.mark.parametrize(
    "options",
    [
        {"files": [{"path": "~/x", "content": ""}]},
        {"absent": ["$HOME/no-such-file"]},
        {"directories": [{"path": "/tmp", "mode": "rwx"}]},
        {"directories": [{}]},
    ],
    ids=["home", "variable", "failing", "invalid"],
)
def test_options_that_only_the_host_can_complete_and_failures_are_those_of_ansible(
    task: Task, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert task("host_files", **options)["by_ansible"]


def test_a_module_that_only_reads_returns_the_same_as_with_ansible(task: Task, tmp_path: Path) -> None:
    (tmp_path / "org--model").mkdir()
    (tmp_path / "org--model" / "weights").write_text("four")
    models = [{"repo": "org/model", "revision": "main"}]
    # Nothing listens at port 9 of this machine.
    options = {"path": str(tmp_path), "models": models, "token": "s3cr3t", "url": "http://127.0.0.1:9"}
    told = task("model_stock_info", **options)
    by_ansible = task("model_stock_info", python="", **options)
    for each in (told, by_ansible):
        del each["stock"]["disk"]["free_bytes"]
    assert by_ansible.pop("by_ansible")
    by_ansible.pop("invocation", None)  # of ansible-core 2.19
    assert told == by_ansible
    assert told["stock"]["models"]["org/model"]["held"] == {"weights": {"digest": "", "size": 4}}
    # A result with a secret is Ansible's, which masks it.
    assert task("model_stock_info", **{**options, "token": "weights"})["by_ansible"]


def test_a_change_that_a_module_of_the_first_kind_makes_is_told(task: Task, tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "key": "0.5.20-amd64-0123456789ab", "owner": os.geteuid()}
    assert [task("jit_cache", **options)["changed"] for _run in range(2)] == [True, False]


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"msg": ""}',
        '{"changed": "no"}',
        '{"changed": 0}',
        '{"changed": false, "failed": 1}',
    ],
)
def test_whatever_else_a_host_prints_leaves_the_module_to_ansible(printed: str) -> None:
    assert action.settled({"rc": 0, "stdout": printed}, []) is None


def test_keys_on_which_ansible_acts_are_not_taken_from_a_host() -> None:
    told = {"changed": False, "ansible_facts": {"a": 1}, "_ansible_delegated_vars": {}, "ansible_job_id": "1"}
    assert action.settled({"rc": 0, "stdout": json.dumps(told)}, []) == {"changed": False, "ansible_facts": {"a": 1}}


# Each module in a process of its own; without options it fails at the first one.
EACH = """
import os
for name, sources in {given}:
    if os.fork():
        os.wait()
        continue
    try:
        main(name, sources, "{{}}", False)
    except (KeyError, TypeError):
        print(name, flush=True)
    os._exit(0)
"""


def test_each_module_runs_with_python_alone_from_what_is_sent() -> None:
    given = {f"{action.OWN}plugins.modules.{name}": action.shipped(name) for name in NAMES}
    program = action.BEGIN + EACH.format(given=list(given.items()))
    command = [sys.executable, "-I", "-S", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    assert done.stdout.split() == list(given), done.stderr


def test_the_action_is_that_of_all_these_modules() -> None:
    routes = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["plugin_routing"]["modules"]
    own = {"action_plugin": "gb10.cluster.host_files"}
    assert {name for name, route in routes.items() if route == own} | {
        "host_files",
        "host_lock",
        "preflight_info",
    } == set(NAMES)
