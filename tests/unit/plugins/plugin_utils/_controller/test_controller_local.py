# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an action that calls its module on the controller returns what the module returns, and when it calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[5]
READS = [{"resource": "v1/pods", "namespace": "x"}]


def play(
    tmp_path: Path, options: dict[str, Any], module: str = "api_info", **keywords: Any
) -> tuple[dict[str, Any], bool]:
    """Return the result of a task on the controller, and whether Ansible started the module for it."""
    task = {f"gb10.cluster.{module}": options, "delegate_to": "localhost", "register": "found"}
    caught = {"block": [task | keywords], "rescue": [{"ansible.builtin.assert": {"that": "found is failed"}}]}
    content = {"copy": {"content": "{{ found | to_json }}", "dest": str(tmp_path / "found.json")}}
    book = tmp_path / "book.yml"
    tasks = [caught, content]
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    done = ansible("ansible-playbook", "-vvv", book)
    assert done.returncode == 0, done.stdout
    result = json.loads((tmp_path / "found.json").read_text())
    result.pop("invocation", None)
    return result, f"AnsiballZ_{module}.py" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        {"required": False, "reads": READS},
        {"reads": READS},
        {"required": "perhaps"},
        {"reads": [{"namespace": "x"}]},
        {"request": 1},
    ],
)
def test_the_result_is_that_of_the_module(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"kubeconfig": "~/missing", "context": "gb10"} | options
    here, started = play(tmp_path, options)
    there, started_there = play(tmp_path, options, environment={"SOME_PROXY": "http://proxy"})
    assert (started, started_there) == (False, True)
    assert here.get("failed", False) == there.get("failed", False)
    if "found" in there:
        assert here == there


def test_another_interpreter_gets_the_module(tmp_path: Path) -> None:
    options = {"kubeconfig": "/missing", "context": "gb10", "required": False}
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert play(tmp_path, options, vars={"ansible_python_interpreter": str(other)})[1]


def test_a_module_writes_the_strings_of_its_options(tmp_path: Path) -> None:
    authority = {"certificate-authority-data": "Y2E="}
    cluster = {"name": "default", "cluster": {"server": "https://127.0.0.1:6443", **authority}}
    user = {"name": "default", "user": {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}}
    context = {"name": "default", "context": {"cluster": "default", "user": "default"}}
    content = yaml.safe_dump({"clusters": [cluster], "users": [user], "contexts": [context]})
    options = {"path": str(tmp_path / "config"), "context": "mine", "server": "https://spark1:6443", "content": content}
    assert [play(tmp_path, options, "kubeconfig")[0]["changed"] for _run in range(2)] == [True, False]
    written = yaml.safe_load((tmp_path / "config").read_text())
    assert written["clusters"][0]["cluster"]["server"] == options.pop("server")
    result, started = play(tmp_path, options, "kubeconfig")
    assert not started
    assert "state is present but all of the following are missing: server" in result["msg"]
