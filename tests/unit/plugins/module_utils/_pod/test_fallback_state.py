# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when a group moves to its fallback, when it returns, and that two presets never run on one node."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import (
    MAIN,
    Choice,
    Node,
    Seen,
    Settings,
    Status,
    decide,
    in_its_way,
    read_node,
    steps,
)

NODES = ("spark1", "spark2", "spark3", "spark4")
AFTER, BACK, STEP = 600, 300, 5


def choice(name: str, nodes: Iterable[str]) -> Choice:
    named = tuple(nodes)
    infix = "" if name == MAIN else f"{name}-"
    preset = "four" if name == MAIN else "two"
    return Choice(name, preset, named, tuple(f"g-{infix}{rank}" for rank in range(len(named))))


SETTINGS = Settings(
    "g",
    "s",
    (
        choice(MAIN, NODES),
        choice("f1", ("spark2", "spark3")),
        choice("f2", ("spark1", "spark3")),
        choice("f3", ("spark1", "spark2")),
    ),
    AFTER,
    BACK,
)


@dataclass
class Cluster:
    """Nodes and StatefulSets as Kubernetes keeps them; pods of nodes that are down stay until the node is back."""

    now: float = 0.0
    ready: dict[str, tuple[bool, float]] = field(default_factory=lambda: dict.fromkeys(NODES, (True, -1e6)))
    cordoned: set[str] = field(default_factory=set)
    replicas: dict[str, int] = field(default_factory=dict)
    pods: dict[str, str] = field(default_factory=dict)
    status: Status = field(default_factory=Status)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for one in SETTINGS.choices:
            for name, node in zip(one.sets, one.nodes, strict=True):
                self.replicas[name] = int(one.name == MAIN)
                if one.name == MAIN:
                    self.pods[name] = node
        self.nodes_of = {n: node for one in SETTINGS.choices for n, node in zip(one.sets, one.nodes, strict=True)}

    def down(self, *names: str) -> None:
        self.ready |= dict.fromkeys(names, (False, self.now))

    def up(self, *names: str) -> None:
        self.ready |= dict.fromkeys(names, (True, self.now))

    def seen(self) -> Seen:
        nodes = {name: Node(ready, since, name in self.cordoned) for name, (ready, since) in self.ready.items()}
        return Seen(self.now, nodes, dict(self.replicas))

    def is_up(self, node: str) -> bool:
        return node in self.ready and self.ready[node][0]

    def run(self, seconds: float) -> str:
        """Let the switch look every few seconds for so long, and return what serves then."""
        for _turn in range(int(seconds // STEP)):
            self.now += STEP
            before = self.status
            self.status = decide(SETTINGS, self.seen(), before)
            if (self.status.reason, self.status.message) != (before.reason, before.message):
                self.told.append(self.status.reason)
            self.replicas |= self.steps(self.status)
            self.settle()
            self.check()
        return self.status.serving

    def steps(self, status: Status) -> dict[str, int]:
        """Return what the switch scales now: it starts nothing beside a pod of another preset."""
        todo = dict(steps(SETTINGS, self.seen(), status))
        blocked = any(name in self.pods for name in in_its_way(SETTINGS, status))
        return {} if blocked and any(todo.values()) else todo

    def settle(self) -> None:
        """Do what the controllers and kubelets of Kubernetes do."""
        for name, node in self.nodes_of.items():
            if name in self.pods and not self.replicas.get(name) and self.is_up(node):
                del self.pods[name]
            elif name not in self.pods and self.replicas.get(name):
                self.pods[name] = node

    def check(self) -> None:
        """Fail if two presets have a pod on a node that can run them."""
        running: dict[str, str] = {}
        for name, node in self.pods.items():
            if self.is_up(node):
                assert node not in running, f"{name} and {running[node]} on {node}"
                running[node] = name

    def serving(self) -> set[str]:
        return {name for name, number in self.replicas.items() if number}


def test_nothing_happens_while_all_nodes_are_there() -> None:
    cluster = Cluster()
    assert cluster.run(4 * AFTER) == MAIN
    assert cluster.told == []
    assert cluster.serving() == set(SETTINGS.main.sets)


@pytest.mark.parametrize(("lost", "fits"), [("spark1", "f1"), ("spark2", "f2"), ("spark3", "f3"), ("spark4", "f1")])
def test_a_lost_node_moves_the_group_after_the_limit_and_brings_it_back(lost: str, fits: str) -> None:
    cluster = Cluster()
    cluster.run(60)
    cluster.down(lost)
    assert cluster.run(AFTER - STEP) == MAIN
    assert cluster.run(STEP) == fits
    cluster.run(3 * STEP)
    assert cluster.serving() == set(SETTINGS.choice(fits).sets)
    assert cluster.status.settled
    assert lost in cluster.status.message
    cluster.up(lost)
    assert cluster.run(BACK - STEP) == fits
    assert cluster.run(STEP) == MAIN
    cluster.run(4 * STEP)
    assert cluster.serving() == set(SETTINGS.main.sets)
    assert cluster.told == ["NodeLost", "NodesReturned"]


def test_a_node_that_flaps_changes_nothing_in_either_direction() -> None:
    cluster = Cluster()
    for _turn in range(20):
        cluster.down("spark2")
        cluster.run(AFTER - STEP)
        cluster.up("spark2")
        cluster.run(STEP)
    assert (cluster.status.serving, cluster.told) == (MAIN, [])
    cluster.down("spark2")
    cluster.run(AFTER + 60)
    for _turn in range(20):
        cluster.up("spark2")
        cluster.run(BACK - STEP)
        cluster.down("spark2")
        cluster.run(STEP)
    assert (cluster.status.serving, cluster.told) == ("f2", ["NodeLost"])


def test_it_says_that_it_cannot_when_two_nodes_are_lost_that_every_set_needs() -> None:
    cluster = Cluster()
    cluster.down("spark1", "spark2")
    assert cluster.run(2 * AFTER) == MAIN
    assert cluster.told == ["NoFallbackFits"]
    assert "spark1, spark2" in cluster.status.message
    assert cluster.serving() == set(SETTINGS.main.sets)
    # One of the two is enough.
    cluster.up("spark2")
    assert cluster.run(STEP) == "f1"
    cluster.up("spark1")
    cluster.run(BACK + 60)
    assert cluster.status.serving == MAIN
    assert cluster.told == ["NoFallbackFits", "NodeLost", "NodesReturned"]


def test_two_lost_nodes_are_no_obstacle_if_a_set_needs_neither() -> None:
    cluster = Cluster()
    cluster.down("spark3", "spark4")
    assert cluster.run(AFTER + STEP) == "f3"


def test_all_nodes_that_return_at_once_end_the_complaint() -> None:
    cluster = Cluster()
    cluster.down("spark1", "spark2")
    cluster.run(2 * AFTER)
    cluster.up("spark1", "spark2")
    cluster.run(STEP)
    assert (cluster.status.serving, cluster.told) == (MAIN, ["NoFallbackFits", "NodesReturned"])


def test_a_node_lost_during_the_fallback_moves_it_to_another_set() -> None:
    cluster = Cluster()
    cluster.down("spark4")
    assert cluster.run(AFTER + 60) == "f1"
    cluster.down("spark3")
    assert cluster.run(AFTER - STEP) == "f1"
    assert cluster.run(STEP) == "f3"
    cluster.run(60)
    assert cluster.serving() == set(SETTINGS.choice("f3").sets)
    cluster.down("spark2")
    assert cluster.run(2 * AFTER) == "f3"
    assert cluster.status.reason == "NoFallbackFits"


def test_a_cordoned_node_is_neither_used_nor_returned_to() -> None:
    cluster = Cluster()
    cluster.cordoned.add("spark2")
    cluster.down("spark4")
    assert cluster.run(AFTER + 60) == "f2"
    cluster.up("spark4")
    assert cluster.run(4 * BACK) == "f2"
    cluster.cordoned.clear()
    assert cluster.run(STEP) == MAIN


def test_a_node_that_was_deleted_counts_from_when_it_was_first_missed() -> None:
    cluster = Cluster()
    cluster.run(60)
    del cluster.ready["spark1"]
    assert cluster.run(AFTER) == MAIN
    assert cluster.run(STEP) == "f1"
    cluster.up("spark1")
    assert cluster.run(BACK) == MAIN


def test_the_fallback_waits_for_the_pods_of_the_planned_preset() -> None:
    cluster = Cluster()
    cluster.down("spark4")
    cluster.now = AFTER
    status = decide(SETTINGS, cluster.seen(), Status())
    assert cluster.steps(status) == dict.fromkeys(SETTINGS.main.sets, 0)
    cluster.replicas |= dict.fromkeys(SETTINGS.main.sets, 0)
    assert cluster.steps(status) == {}
    # The pod on the lost node is no obstacle.
    cluster.pods = {"g-3": "spark4"}
    assert cluster.steps(status) == {"g-f1-0": 1, "g-f1-1": 1}


def test_a_switch_that_restarts_anywhere_finishes_what_was_decided() -> None:
    for moment in range(0, 60, STEP):
        cluster = Cluster()
        cluster.down("spark1")
        cluster.run(AFTER + moment)
        cluster.status = Status.parse(cluster.status.as_json())
        cluster.now += 120  # nobody looks
        cluster.run(60)
        assert cluster.serving() == {"g-f1-0", "g-f1-1"}
        assert cluster.told == ["NodeLost"]


def test_the_status_of_a_newer_or_an_older_release_is_read() -> None:
    """After a downgrade the switch ended with a traceback at each start."""
    assert Status.parse('{"serving": "f1", "since": 5.0, "added_later": [1]}') == Status("f1", since=5.0)
    assert Status.parse("{}") == Status()


def test_a_group_that_its_owner_stops_is_left_alone() -> None:
    cluster = Cluster()
    cluster.replicas |= dict.fromkeys(SETTINGS.main.sets, 0)
    cluster.run(60)
    assert cluster.serving() == set()
    cluster.replicas.clear()
    cluster.pods.clear()
    cluster.down("spark1")
    cluster.run(AFTER + 60)
    assert cluster.replicas == {}


def test_a_planned_preset_that_is_started_during_the_fallback_is_stopped_again() -> None:
    cluster = Cluster()
    cluster.down("spark4")
    cluster.run(AFTER + 60)
    seen = replace(cluster.seen(), replicas=cluster.replicas | {"g-0": 1})
    assert steps(SETTINGS, seen, cluster.status) == [("g-0", 0)]


def test_a_set_that_a_later_deployment_does_not_have_is_that_of_the_planned_preset() -> None:
    assert decide(SETTINGS, Cluster().seen(), Status(serving="f9")).serving == MAIN


@pytest.mark.parametrize("order", list(itertools.permutations(("spark1", "spark3", "spark4"))))
def test_no_order_of_losses_and_returns_runs_two_presets_on_one_node(order: tuple[str, ...]) -> None:
    cluster = Cluster()
    for name in order:
        cluster.down(name)
        cluster.run(AFTER / 2)
    cluster.run(AFTER)
    for name in order:
        cluster.up(name)
        cluster.run(BACK / 2)
    assert cluster.run(BACK + AFTER) == MAIN
    assert cluster.serving() == set(SETTINGS.main.sets)


@pytest.mark.parametrize(
    ("status", "spec", "expected"),
    [
        ("True", {}, Node(True, 60.0)),
        ("Unknown", {}, Node(False, 60.0)),
        ("False", {"unschedulable": True}, Node(False, 60.0, True)),
        (None, {}, Node(False, 0.0)),
    ],
)
def test_how_a_node_is_read(status: str | None, spec: dict[str, Any], expected: Node) -> None:
    ready = [{"type": "Ready", "status": status, "lastTransitionTime": "1970-01-01T00:01:00Z"}] if status else []
    other = {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "1970-01-01T00:05:00Z"}
    node = {"metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"}, "spec": spec}
    found = read_node(node | {"status": {"conditions": [other, *ready]}})
    assert found == expected
    assert found.usable is (status == "True")
