# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an action that calls its module on the controller returns what the module returns, and when it calls it.

Ansible refuses options that are invalid. One play has all cases.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible

READS = [{"resource": "v1/pods", "namespace": "x"}]
OPTIONS: dict[str, dict[str, Any]] = {
    "tolerated": {"required": False, "reads": READS},
    "no file": {"reads": READS},
}
INVALID: dict[str, dict[str, Any]] = {
    "no boolean": {"required": "perhaps"},
    "no resource": {"reads": [{"namespace": "x"}]},
    "no such option": {"request": 1},
}
AUTHORITY = {"certificate-authority-data": "Y2E="}
CLUSTER = {"name": "default", "cluster": {"server": "https://127.0.0.1:6443", **AUTHORITY}}
USER = {"name": "default", "user": {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}}
CONTEXT = {"name": "default", "context": {"cluster": "default", "user": "default"}}
CONTENT = yaml.safe_dump({"clusters": [CLUSTER], "users": [USER], "contexts": [CONTEXT]})
# The result of a task, and whether Ansible started the module for it.
Done = tuple[dict[str, Any], bool]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("play")


@pytest.fixture(scope="module")
def done(directory: Path) -> dict[str, Done]:
    """Play each case; return what it did, by its name."""
    tasks: dict[str, dict[str, Any]] = {}
    for name, own in (OPTIONS | INVALID).items():
        options = {"kubeconfig": "~/missing", "context": "gb10", **own}
        tasks[f"{name}, here"] = {"gb10.cluster.api_info": options}
        if name in OPTIONS:
            tasks[f"{name}, there"] = {"gb10.cluster.api_info": options, "environment": {"SOME_PROXY": "http://proxy"}}
    other = directory / "python"
    other.symlink_to(sys.executable)
    options = {"kubeconfig": "/missing", "context": "gb10", "required": False}
    tasks["interpreter"] = {"gb10.cluster.api_info": options, "vars": {"ansible_python_interpreter": str(other)}}
    options = {"path": str(directory / "config"), "context": "mine", "content": CONTENT}
    complete = {"gb10.cluster.kubeconfig": {**options, "server": "https://spark1:6443"}}
    tasks |= {"first": complete, "second": complete, "incomplete": {"gb10.cluster.kubeconfig": options}}
    book: list[dict[str, Any]] = []
    for number, (name, task) in enumerate(tasks.items()):
        block = [{"name": name, **task, "delegate_to": "localhost", "register": f"done{number}"}]
        book.append({"block": block, "rescue": [{"ansible.builtin.assert": {"that": f"done{number} is failed"}}]})
    every = ", ".join(f"done{number}" for number in range(len(tasks)))
    book.append({"copy": {"content": f"{{{{ [{every}] | to_json }}}}", "dest": str(directory / "done.json")}})
    path = directory / "book.yml"
    path.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": book}]))
    play = ansible("ansible-playbook", "-vvv", path)
    assert play.returncode == 0, play.stdout
    results = json.loads((directory / "done.json").read_text())
    for result in results:
        result.pop("invocation", None)
    said = {name: play.stdout.partition(f"TASK [{name}]")[2].partition("TASK [")[0] for name in tasks}
    return {name: (result, "AnsiballZ_" in said[name]) for name, result in zip(tasks, results, strict=True)}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_result_is_that_of_the_module(done: dict[str, Done], name: str) -> None:
    (here, started), (there, started_there) = done[f"{name}, here"], done[f"{name}, there"]
    assert (started, started_there) == (False, True)
    assert here.get("failed", False) == there.get("failed", False)
    if "found" in there:
        assert here == there


@pytest.mark.parametrize("name", INVALID)
def test_ansible_refuses_invalid_options(done: dict[str, Done], name: str) -> None:
    result, started = done[f"{name}, here"]
    assert (result["failed"], started) == (True, True)


def test_another_interpreter_gets_the_module(done: dict[str, Done]) -> None:
    assert done["interpreter"][1]


def test_a_module_writes_the_strings_of_its_options(directory: Path, done: dict[str, Done]) -> None:
    assert [done[name][0]["changed"] for name in ("first", "second")] == [True, False]
    written = yaml.safe_load((directory / "config").read_text())
    assert written["clusters"][0]["cluster"]["server"] == "https://spark1:6443"
    result, started = done["incomplete"]
    assert started
    assert "state is present but all of the following are missing: server" in result["msg"]
