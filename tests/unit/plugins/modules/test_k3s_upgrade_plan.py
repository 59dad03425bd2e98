# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the order of an upgrade, what it refuses, and that it goes on wherever it was interrupted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.modules import k3s_upgrade_plan as upgrade
from hypothesis import given
from hypothesis import strategies as st
from module_runs import Step, steps_of

OLD, NEW = "v1.36.4+k3s1", "v1.36.5+k3s1"
MARK = {"annotations": {"gb10.cluster/upgrade": NEW}}


def host(name: str, installed: str = OLD, **more: Any) -> dict[str, Any]:
    return {"host": name, "node": f"node-{name}", "server": name == "control", "installed": installed, **more}


class Cluster:
    """A cluster with model groups, of which an interrupted upgrade may have stopped one; it may have marked nodes."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        self.hosts = [host("spark1"), host("control"), host("spark2")]
        self.groups, self.marked = ["b", "a", "b"], list[str]()
        self.stopped = False
        patch.setattr(upgrade, "Cluster", self.use)

    @property
    def options(self) -> dict[str, Any]:
        where = {"kubeconfig": "/k", "context": "gb10", "namespace": "gb10-serving"}
        return {**where, "version": NEW, "nodes": self.hosts}

    def use(self, _kubeconfig: str, context: str) -> "Cluster":
        if context != "gb10":
            raise ClusterError(f"can't use context {context}")
        return self

    def nodes(self) -> list[dict[str, Any]]:
        names = [one["node"] for one in self.hosts if one["node"] != "node-new"]
        return [{"metadata": {"name": name} | (MARK if name in self.marked else {})} for name in names]

    def pods(self, _namespace: str, _selector: str) -> list[dict[str, Any]]:
        labels = [{"labels": {"gb10.cluster/instance": name}} for name in self.groups]
        return [{"metadata": meta} for meta in (*labels, {})]

    def objects(self, _resource: str, name: str) -> list[dict[str, Any]]:
        return [{"metadata": {"name": name} | (MARK if self.stopped else {})}]


NONE: dict[str, Any] = {"groups": []}
HALF = [host("control", NEW, stale=True), host("spark1")]
DONE = [host(name, NEW) for name in ("spark1", "control", "spark2")]
CASES: dict[str, list[Step]] = {
    "servers first, and the groups around all": [{}, NONE, {"version": "v1.37.0+k3s1"}],
    "nothing to do": [{"version": OLD}],
    "refused": [
        {"version": each} for each in ("v1.38.0+k3s1", "v2.0.0+k3s1", "v1.36.3+k3s1", "v1.35.9+k3s2", "latest")
    ],
    "no version, and no hosts": [{"hosts": [], "version": "latest"}],
    "a host outside the cluster": [{"hosts": [host("control"), host("spark9", "")]}],
    "a new node": [{"hosts": [host("control"), host("new")]}],
    "the groups were stopped": [{**NONE, "stopped": True}],
    "between binary and restart": [{**NONE, "stopped": True, "hosts": HALF, "marked": ["node-control"]}],
    # A person has started the group meanwhile: it is stopped again only for an upgrade.
    "before the mark goes and the groups start": [
        {"stopped": True, "hosts": DONE, "marked": ["node-spark2"], "groups": groups} for groups in ([], ["a"])
    ],
    "no cluster": [{"context": "nosuch"}],
}
test_each_plan = steps_of(k3s_upgrade_plan=(upgrade, Cluster, CASES))


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_an_upgrade_completes_wherever_it_was_interrupted(
    states: list[tuple[bool, bool, bool, bool]], running: bool, stopped: bool
) -> None:
    nodes = [
        upgrade.Node(f"h{index}", server, NEW if new else OLD, stale, marked)
        for index, (server, new, stale, marked) in enumerate(states)
    ]
    plan = upgrade.plan_upgrade(nodes, NEW, group_running=running, group_stopped_by_us=stopped)
    kinds = [nodes[int(step.host[1:])].server for step in plan.steps if step.host]
    assert kinds == sorted(kinds, reverse=True)
    if stopped or (running and any(step.action == "upgrade" for step in plan.steps)):
        assert [step.action for step in plan.steps[-2:]] == ["start-group", "verify"]
    finished = [replace(node, installed=NEW, stale=False, marked=False) for node in nodes]
    assert upgrade.plan_upgrade(finished, NEW, group_running=running, group_stopped_by_us=False).steps == ()
