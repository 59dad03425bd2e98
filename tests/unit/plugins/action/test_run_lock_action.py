# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that one run at a time holds the lock, with a simulated API that checks versions."""

import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action import run_lock
from ansible_collections.gb10.cluster.plugins.action import run_lock as action
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import started
from stored import compare

OPTIONS = {"kubeconfig": "/k", "context": "gb10", "namespace": "ns", "run": "serve", "duration": 60}


class Api:
    """The Leases of a namespace."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {}
        self.status = 0
        self.meanwhile: dict[str, Any] = {}

    def read_lease(self, _namespace: str, name: str) -> dict[str, Any]:
        assert name == "gb10-run"
        if self.status:
            raise ClusterError("can't read Lease gb10-run", self.status)
        found = self.lease
        self.lease = self.meanwhile or self.lease
        return found

    def write_lease(self, _namespace: str, lease: dict[str, Any]) -> None:
        version = self.lease.get("metadata", {}).get("resourceVersion", "")
        if lease["metadata"].get("resourceVersion", "") != version:
            raise ClusterError("conflict", 409)
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": f"{int(version or 0) + 1}"}}

    def delete_lease(self, _namespace: str, _name: str, version: str) -> None:
        assert version == self.lease["metadata"]["resourceVersion"]
        self.lease = {}

    def held_by(self, who: run_lock.Holder, age: float = 0) -> None:
        moment = datetime.now(UTC) - timedelta(seconds=age)
        self.lease = run_lock.lease_of(who, moment, 60, "5")


def run(state: str = "held", check: bool = False) -> dict[str, Any]:
    task: Any = SimpleNamespace(_task=SimpleNamespace(check_mode=check))
    return action.ActionModule.act(task, OPTIONS | {"state": state}, {})


ELSEWHERE = run_lock.Holder("alice", "laptop", 4711, "99", "start of group a")


def this_process(**changes: Any) -> run_lock.Holder:
    """Return another run on this machine. The tests of a fork of pytest must not compare the process that forked."""
    own = {"pid": os.getpid(), "started": started(os.getpid()), **changes}
    return replace(run_lock.this_run("serve"), **own)


DAMAGED = {"metadata": {"resourceVersion": "5"}, "spec": {}}
# Who holds the lock and for how long, or another state of the API
CASES: dict[str, dict[str, Any]] = {
    "free": {},
    "free, check mode": {"check": True},
    "held": {"who": lambda: ELSEWHERE, "age": 59},
    "expired": {"who": lambda: ELSEWHERE, "age": 61},
    "held by another task of this run": {"who": lambda: replace(run_lock.this_run("serve"), run="another task")},
    "held by another run here": {"who": this_process},
    "held by a process whose number is used again": {"who": lambda: this_process(started="1")},
    "held by a process that has ended here": {"who": lambda: this_process(pid=2**22 + 1)},
    "held by a process that may have ended elsewhere": {"who": lambda: this_process(pid=2**22 + 1, host="elsewhere")},
    "held by another program": {"who": lambda: ELSEWHERE, "program": "a robot"},
    "taken at the same moment": {"taken": True},
    "damaged, and taken at the same moment": {"lease": DAMAGED, "taken": True},
    **{f"status {status}": {"status": status} for status in (403, 500, -1)},
}


def named(lease: dict[str, Any]) -> str:
    """Return whose lease it is."""
    who = run_lock.holder(lease) if lease else None
    own = run_lock.this_run("serve")
    return "nobody" if not lease else "this run" if who == own else "another run" if who else "no run"


def test_who_gets_the_lock_and_what_is_said_is_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, case in CASES.items():
        api = Api()
        monkeypatch.setattr(action, "Cluster", lambda _kubeconfig, _context, api=api: api)
        api.lease, api.status = case.get("lease", {}), case.get("status", 0)
        if "who" in case:
            api.held_by(case["who"](), case.get("age", 0))
        if "program" in case:
            api.lease["metadata"]["annotations"] = {run_lock.HOLDER: "[]"}
            api.lease["spec"]["holderIdentity"] = case["program"]
        if "taken" in case:
            api.meanwhile = run_lock.lease_of(ELSEWHERE, datetime.now(UTC), 60, "6")
        lines = []
        for state in ("held", "held", "released", "released"):
            said = run(state, case.get("check", False))
            text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:]+", "TIME", said.get("msg", ""))
            text = re.sub(r"\S+@(?!laptop)\S+, process \d+", "somebody, process N", text)
            text = text if name == "held" else text.partition(" Two at once")[0]
            version = api.lease.get("metadata", {}).get("resourceVersion", "")
            result = f"{'held' if said['held'] else 'not held'}{', failed' * bool(said.get('failed'))}"
            lines.append(f"{state}: {result}; the lease is of {named(api.lease)} {version}; {text}".rstrip("; "))
        found[name] = [line for number, line in enumerate(lines) if line not in lines[:number]]
    compare("run_locks", found)
