# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that one run at a time holds the lock, with a simulated API that checks versions."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action import run_lock
from ansible_collections.gb10.cluster.plugins.action import run_lock as action
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import started

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


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(action, "Cluster", lambda _kubeconfig, _context: made)
    return made


def run(state: str = "held", check: bool = False) -> dict[str, Any]:
    task: Any = SimpleNamespace(_task=SimpleNamespace(check_mode=check))
    return action.ActionModule.act(task, OPTIONS | {"state": state}, {})


def test_a_run_takes_renews_and_gives_back(api: Api) -> None:
    assert run()["held"]
    assert run_lock.holder(api.lease) == run_lock.this_run("serve")
    assert run()["held"]
    assert api.lease["metadata"]["resourceVersion"] == "2"
    api.held_by(replace(run_lock.this_run("serve"), run="another task of this run"))
    assert run()["held"]
    assert not run("released")["held"]
    assert api.lease == {}
    assert not run("released").get("failed")


ELSEWHERE = run_lock.Holder("alice", "laptop", 4711, "99", "start of group a")


def test_another_run_is_named_and_its_lock_is_left(api: Api) -> None:
    api.held_by(ELSEWHERE)
    said = run()
    assert said["failed"]
    assert "namespace ns: alice@laptop, process 4711, start of group a, since 2" in said["msg"]
    assert "kubectl --kubeconfig /k --context gb10 -n ns delete lease gb10-run" in said["msg"]
    run("released")
    assert run_lock.holder(api.lease) == ELSEWHERE


def this_process() -> run_lock.Holder:
    """Return another run on this machine. The tests of a fork of pytest must not compare the process that forked."""
    return replace(run_lock.this_run("serve"), pid=os.getpid(), started=started(os.getpid()))


@pytest.mark.parametrize(
    ("who", "age", "free"),
    [
        (lambda: ELSEWHERE, 59, False),
        (lambda: ELSEWHERE, 61, True),
        (this_process, 0, False),
        (lambda: replace(this_process(), started="1"), 0, True),
        (lambda: replace(this_process(), pid=2**22 + 1), 0, True),
        (lambda: replace(this_process(), pid=2**22 + 1, host="elsewhere"), 0, False),
    ],
    ids=["held", "expired", "another run here", "its number is used again", "ended here", "perhaps ended elsewhere"],
)
def test_who_no_longer_holds_it(api: Api, who: Callable[[], run_lock.Holder], age: float, free: bool) -> None:
    api.held_by(who(), age)
    assert run()["held"] is free
    assert (run_lock.holder(api.lease) == run_lock.this_run("serve")) is free


@pytest.mark.parametrize("before", [{}, {"metadata": {"resourceVersion": "5"}, "spec": {}}], ids=["none", "damaged"])
def test_of_two_at_the_same_moment_one_gets_it(api: Api, before: dict[str, Any]) -> None:
    api.lease = before
    api.meanwhile = run_lock.lease_of(ELSEWHERE, datetime.now(UTC), 60, "6")
    assert "a run that took it at the same moment" in run()["msg"]
    assert run_lock.holder(api.lease) == ELSEWHERE


def test_a_lease_of_another_program_is_respected(api: Api) -> None:
    api.held_by(ELSEWHERE)
    api.lease["metadata"]["annotations"] = {run_lock.HOLDER: "[]"}
    api.lease["spec"]["holderIdentity"] = "a robot"
    assert "namespace ns: a robot, since" in run()["msg"]


@pytest.mark.parametrize(("status", "failed"), [(403, False), (0, True), (500, True)])
def test_without_the_right_a_run_goes_on_and_without_an_api_it_does_not(api: Api, status: int, failed: bool) -> None:
    api.status = status or -1
    said = run()
    assert bool(said.get("failed")) is failed
    assert not said["held"]
    assert "can't read Lease" in said["msg"]
    assert not run("released").get("failed")


def test_check_mode_takes_nothing(api: Api) -> None:
    assert not run(check=True)["held"]
    assert api.lease == {}
