# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the order of the steps of playbook update for a group that is proved: role update and the plays are real, and
all other roles and modules only note that they were called, or fail where a case says so.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import Server, ansible

ROOT = Path(__file__).resolve().parents[3]
PLAN = {"instance": "gemma", "ranks": [{"node": "a"}, {"node": "b"}], "expect": {"ranks": 2}}
ROLES = {
    "k3s": ["drain", "ready", "uncordon", "upgrade_mark", "upgrade_unmark"],
    "sglang": ["main", "stop"],
    "nccl_verify": ["main", "answers"],
    "serving_plan": ["main"],
    "fabric_plan": ["main"],
    "preflight": ["main"],
    "fabric_check": ["main"],
}
SILENT = ("ready", "serving_plan", "fabric_plan", "nccl_verify", "preflight", "planned", "installing")
SILENT += ("installed", "fabric_ping", "fabric_check")
ACTION = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = self._task.delegate_to or task_vars["inventory_hostname"]
        what = self._task.args.get("state", "fabric_ping")
        with open(task_vars["log"], "a+") as stream:
            stream.write(f"{what} {host}\\n")
            stream.seek(0)
            times = stream.read().splitlines().count(f"{what} {host}")
        state = {"open": False, "kernel_after": "new"}
        wrong = times <= task_vars["fails"].count(f"{what} {host}")
        result = {"failed": wrong, "msg": f"{what} of {host} is wrong"}
        own = {"serving_plan": {"gb10_serving_plan": task_vars["plan"]}, "preflight": {"gb10_preflight_findings": []}}
        result |= {"results": [], "reboot": False, "busy": False, "found": {"state": state}}
        return {**result, "ansible_facts": own.get(what, {})}
"""


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a playbook that begins after the plan, beside a collection of its own."""
    top = tmp_path_factory.mktemp("flow")
    ours = top / "ansible_collections" / "gb10" / "cluster"
    shutil.copytree(ROOT / "roles" / "update", ours / "roles" / "update")
    for name in ("node_update", "fabric_ping"):
        write(ours / "plugins" / "action" / f"{name}.py", ACTION)
    for role, files in ROLES.items():
        for file in files:
            called = {"gb10.cluster.node_update": {"state": role if file == "main" else file}, "run_once": True}
            task = {"name": file, **called, "register": f"{role}_result"}
            write(ours / "roles" / role / "tasks" / f"{file}.yml", [task])
    shutil.copytree(ROOT / "playbooks", top / "playbooks", ignore=shutil.ignore_patterns("collections"))
    plays = yaml.safe_load((ROOT / "playbooks" / "update.yml").read_text(encoding="utf-8"))
    (first,) = [
        number for number, play in enumerate(plays) if play["name"] == "Require the fabric before a group stops"
    ]
    known = {"update_read": {"found": {"state": {"open": False}}}, "update_errors": [], "gb10_preflight": {}}
    known |= {"update_fabric": {"stat": {"exists": True}}, "gb10_fabric_plan": {}}
    known["gb10_preflight"] = {"kubernetes": {"units": {"k3s": True}}}
    tasks = [{"ansible.builtin.set_fact": {**known, "cacheable": True}}]
    begin = {"hosts": "gb10_nodes", "gather_facts": False, "tasks": tasks}
    write(top / "playbooks" / "book.yml", [begin, *plays[first:]])
    return top / "playbooks" / "book.yml"


@pytest.fixture(scope="module")
def server(book: Path) -> Iterator[Server]:
    """Return a server of plays for this collection, which runs its actions without a fork."""
    here = "gb10.cluster.node_update gb10.cluster.fabric_ping"
    found = Server(ANSIBLE_COLLECTIONS_PATH=str(book.parents[1]), GB10_TEST_HERE=here)
    yield found
    found.stop()


# The steps on a node that are the same in several cases; the letter is the node.
UP = {node: f"drain {node}, booted {node}, running {node}, uncordon {node}" for node in "ab"}
BACK = {node: f"drain {node}, returned {node}, running {node}, uncordon {node}" for node in "ab"}
PROVED = {node: f"sglang {node}, answers {node}" for node in "ab"}
SETTLED = {node: f"settled {node}, closed {node}" for node in "ab"}
FAILED_HERE = "drain b, booted b, running b, returned b, running b, uncordon b, closed b"
BOTH = {"update_proof": "group"}
SERVES, STOPPED = "The group serves again, and is proved.", "The group does not serve: run playbook serve"

BEFORE = "answers a, upgrade_mark a, stop a"

# What fails (as often as it is named), other variables, the steps, and a part of the message at the end
CASES: dict[str, tuple[list[str], dict[str, Any], list[str], list[str]]] = {
    "each node is proved before it settles": (
        [],
        {},
        [BEFORE, UP["a"], PROVED["a"], SETTLED["a"], "stop a", UP["b"], PROVED["b"], SETTLED["b"], "upgrade_unmark a"],
        [],
    ),
    "the node with which the proof fails steps back, and no node after it changes": (
        ["sglang a"],
        {},
        [BEFORE, UP["a"], "sglang a", "stop a", BACK["a"], "closed a", PROVED["a"], "upgrade_unmark a"],
        ["a: failed after the update (sglang of a is wrong)", "about kernel new.", SERVES],
    ),
    "all nodes settle with one proof": (
        [],
        {**BOTH, "begins": False},
        [
            "upgrade_mark a, stop a",
            UP["a"],
            UP["b"],
            PROVED["b"],
            "settled a, settled b, closed a, closed b, upgrade_unmark a",
        ],
        [],
    ),
    "all nodes step back after one proof, and the group may fail without the update too": (
        ["answers b", "answers b"],
        BOTH,
        [BEFORE, UP["a"], UP["b"], PROVED["b"], "stop b", BACK["a"], SETTLED["a"], BACK["b"], "closed b", PROVED["b"]],
        ["a, b: failed after the update", STOPPED],
    ),
    "a check that fails leaves the nodes before it to the proof without that node": (
        ["preflight b"],
        BOTH,
        [BEFORE, UP["a"], FAILED_HERE, PROVED["b"], SETTLED["a"], "upgrade_unmark b"],
        ["b: failed after the update (preflight of b is wrong)", SERVES],
    ),
    "a kernel that cannot become the default is left": (
        ["settled a"],
        {"served": False},
        [UP["a"], "settled a", BACK["a"], "closed a"],
        ["a: failed after the update", "No group was stopped."],
    ),
    "a node without a rank is not proved, and the group starts at the end": (
        [],
        {"plan": {**PLAN, "ranks": [{"node": "a"}], "expect": {"ranks": 1}}},
        [BEFORE, UP["a"], PROVED["a"], SETTLED["a"], "stop a", UP["b"], SETTLED["b"], PROVED["a"], "upgrade_unmark a"],
        [],
    ),
    "a group that fails its proof already is not stopped": (
        ["nccl_verify a"],
        {},
        [],
        ["nccl_verify of a is wrong"],
    ),
    "a group whose hosts do not reach each other is not stopped": (
        ["fabric_check a"],
        {},
        [],
        ["fabric_check of a is wrong"],
    ),
    "a node that is not reached after the group has stopped gets its pods and the group back": (
        ["fabric_ping b"],
        {},
        [
            BEFORE,
            UP["a"],
            PROVED["a"],
            SETTLED["a"],
            "stop a, drain b, uncordon b",
            PROVED["b"],
            SETTLED["a"],
            "upgrade_unmark b",
        ],
        ["b: the fabric fails without the pods (fabric_ping of b is wrong), so nothing was changed", SERVES],
    ),
    "on the way back on purpose, the group is proved once": (
        [],
        {"update_back": True, "begins": False},
        ["upgrade_mark a, stop a", BACK["a"], SETTLED["a"], BACK["b"], SETTLED["b"], PROVED["a"], "upgrade_unmark a"],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_steps_have_their_order(case: str, book: Path, server: Server) -> None:
    fails, given, steps, said = CASES[case]
    top = book.parents[1]
    (top / "log").write_text("")
    hosts = {"hosts": {"a": {}, "b": {}}}
    served = hosts if given.get("served", True) else {}
    groups = {"gb10_nodes": hosts, "run_update_node": hosts, "run_stop_group": served, "run_start_group": served}
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    values = {"log": str(top / "log"), "fails": fails, "plan": PLAN, **given}
    values["update_planned"] = {"groups": ["gemma"], "begins": given.get("begins", True)}
    write(top / "hosts.yml", {**groups, "all": {"vars": {**local, **values}}})
    done = ansible("ansible-playbook", "-i", top / "hosts.yml", book, env=server.environment, server=server)
    text = " ".join((done.stdout + done.stderr).split())
    noted = [line for line in (top / "log").read_text().splitlines() if line.split()[0] not in SILENT]
    assert ", ".join(noted) == ", ".join(steps), text
    assert (done.returncode != 0) is bool(said), text
    assert [words for words in said if words not in text[text.rfind("fatal: ") :]] == []
