# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when a group moves to its fallback, when it returns, and that two presets never run on one node."""

import itertools
import json
import sys
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._pod import fallback
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import Settings, Status, read_node
from gate_rank import Server

NODES = ("spark1", "spark2", "spark3", "spark4")
CHOICES = {"main": NODES, "f1": NODES[1:3], "f2": (NODES[0], NODES[2]), "f3": NODES[:2]}
SETS = {
    name: {f"g-{rank}" if name == "main" else f"g-{name}-{rank}": node for rank, node in enumerate(nodes)}
    for name, nodes in CHOICES.items()
}
PLACES = {name: node for sets in SETS.values() for name, node in sets.items()}
CHOSEN = [
    {"name": name, "preset": "four" if name == "main" else "two", "nodes": nodes, "sets": list(SETS[name])}
    for name, nodes in CHOICES.items()
]
JSON = json.dumps({"instance": "g", "namespace": "s", "after": 600, "return_after": 300, "choices": CHOSEN})
SETTINGS = Settings.parse(JSON)
STEP = 5


def refused(code: int) -> HTTPError:
    return HTTPError("https://api", code, "refused", Message(), None)


class Cluster(fallback.SwitchApi):
    """Keeps objects as Kubernetes does; pods of nodes that are down stay until the node is back."""

    def __init__(self, account: Path) -> None:
        super().__init__("s", "g", account)
        self.now = 0.0
        self.ready = dict.fromkeys(NODES, (True, -1e6))
        self.cordoned, self.stuck = set[str](), set[str]()
        self.wanted = {name: int(name in SETS["main"]) for name in PLACES}
        self.pods = dict(SETS["main"])
        self.memory, self.version, self.others_write = "", 1, False
        self.lines: list[str] = []

    def call(self, method: str, path: str, body: Any = None, kind: str = "") -> Any:
        """Answer as the API server, and note what is written, and which pods are asked for."""
        *_unused, of, name = path.removesuffix("/scale").split("/")
        assert path.startswith(("/api/v1/nodes", "/api/v1/namespaces/s/", "/apis/apps/v1/namespaces/s/statefulsets/"))
        assert (kind == "application/merge-patch+json") is (method == "PATCH")
        if name == "nodes":
            self.version += self.others_write
            return {"items": [self.node(name) for name in self.ready]}
        if name == "events":
            about = f"{body['involvedObject']['kind']} {body['involvedObject']['name']}"
            self.lines.append(f"event {body['type']} {body['reason']} of {about}: {body['message']}")
        elif of == "configmaps":
            if method == "PATCH":
                if body["metadata"]["resourceVersion"] != str(self.version):
                    raise refused(409)
                self.memory, self.version = body["data"]["status"], self.version + 1
                status = Status.parse(self.memory)
                self.lines.append(f"keep {status.serving}, {'settled' if status.settled else 'moving'}")
            data = {"data": {"status": self.memory}} if self.memory else {}
            return {"metadata": {"resourceVersion": str(self.version)}, **data}
        elif of == "pods":
            name = name.removesuffix("-0")
            self.lines.append(f"delete {name}-0 in {body['gracePeriodSeconds']} s" if body else f"ask for {name}-0")
            if name not in self.pods:
                raise refused(404)
        else:
            if name not in self.wanted:
                raise refused(404)
            if method == "PATCH":
                self.wanted[name] = body["spec"]["replicas"]
                self.lines.append(f"scale {name} to {self.wanted[name]}")
            return {"spec": {"replicas": self.wanted[name]} if self.wanted[name] else {}}
        return {}

    def node(self, name: str) -> dict[str, Any]:
        ready, since = self.ready[name]
        stamp = fallback.time.strftime("%Y-%m-%dT%H:%M:%SZ", fallback.time.gmtime(since))
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": stamp}
        labels = {"kubernetes.io/hostname": name}
        spec = {"unschedulable": True} if name in self.cordoned else {}
        metadata = {"name": f"node-{name}", "labels": labels}
        return {"metadata": metadata, "spec": spec, "status": {"conditions": [condition]}}

    def run(self, seconds: int) -> None:
        """Let the switch look every few seconds for so long, and note what it does then."""
        for _turn in range(seconds // STEP):
            self.now += STEP
            before = len(self.lines)
            try:
                assert fallback.step(SETTINGS, self) == Status.parse(self.memory)
            except HTTPError as error:
                self.lines.append(str(error))
            self.settle()
            done = "; ".join(self.lines[before:])
            self.lines[before:] = [f"    {self.now:.0f} {done}"] if done else []

    def settle(self) -> None:
        """Do what the controllers and kubelets do; fail if two presets have a pod on a node that can run them."""
        running: dict[str, str] = {}
        for name, node in PLACES.items():
            up = self.ready.get(node, (False, 0))[0]
            if name in self.pods and not self.wanted.get(name) and up and name not in self.stuck:
                del self.pods[name]
            elif name not in self.pods and self.wanted.get(name):
                self.pods[name] = node
            if name in self.pods and up:
                assert node not in running, f"{name} and {running[node]} on {node}"
                running[node] = name

    def happen(self, event: str) -> None:
        """Run for so many seconds, or let something happen to nodes, sets of pods, or the kept status."""
        what, _space, given = event.strip().partition(" ")
        names = given.split(", ")
        if what.isdigit():
            self.run(int(what))
            return
        self.lines.append(f"{self.now:.0f} {event.strip()}")
        kept: dict[str, dict[str, Any]] = {
            **{
                state: {"ready": self.ready | dict.fromkeys(names, (state == "up", self.now))}
                for state in ("up", "down")
            },
            "remove": {"ready": {name: state for name, state in self.ready.items() if name != given}},
            "cordon": {"cordoned": {*names}},
            "uncordon": {"cordoned": set()},
            "stick": {"stuck": {*names}},
            "free": {"stuck": set()},
            "start": {"wanted": self.wanted | {given: 1}},
            "stop": {"wanted": self.wanted | dict.fromkeys(SETS["main"], 0)},
            "delete": {"wanted": {}, "pods": {}},
            "pause": {"now": self.now + 120},
            "keep": {"memory": json.dumps({"serving": given})},
            "another": {"others_write": True},
            "no": {"others_write": False},
        }
        vars(self).update(kept[what])


COURSES = {
    "all nodes are there": "2400",
    **{f"{name} is lost": f"60; down {name}; 620; up {name}; 330" for name in NODES},
    "a node flaps": (
        "down spark2; 595; up spark2; 5; down spark2; 595; up spark2; 5; down spark2; 660; up spark2; 295; "
        "down spark2; 5; up spark2; 295; down spark2; 5"
    ),
    "two nodes are lost that every set needs, and one is enough": (
        "down spark1, spark2; 1200; up spark2; 5; up spark1; 360"
    ),
    "both return at once": "down spark1, spark2; 1200; up spark1, spark2; 5",
    "two nodes are lost that one set does not need": "down spark3, spark4; 605",
    "nodes are lost during the fallback": "down spark4; 660; down spark3; 660; down spark2; 1200",
    "a cordoned node is neither used nor returned to": (
        "cordon spark2; down spark4; 660; up spark4; 1200; uncordon spark2; 20"
    ),
    "a node that was deleted counts from when it was first missed": "60; remove spark1; 620; up spark1; 320",
    "the fallback waits for the pods of the planned preset": "down spark4; stick g-2; 620; free g-2; 20",
    "nobody looks during the move": "down spark1; 605; pause 120; 20",
    "an owner stops the group": "5; stop; 60",
    "a group that is deleted": "5; delete; down spark1; 660",
    "the planned preset is started during the fallback": "down spark4; 660; start g-0; 10",
    "a set that a later deployment does not have": "keep f9; 20",
    "a second switch is refused before it acts": "5; down spark1; another switch; 605; no other switch; 20",
}


def test_when_a_group_moves_is_as_stored(server: Server, tmp_path: Path) -> None:
    found = {}
    for title, course in COURSES.items():
        cluster = Cluster(tmp_path)
        for event in course.split(";"):
            cluster.happen(event)
        wanted = [name for name, number in cluster.wanted.items() if number]
        found[title] = [*cluster.lines, f"in the end: {', '.join(wanted) or 'nothing'}"]
    assert server.requests == []
    stored.compare("fallback_courses", found)


@pytest.mark.parametrize("order", list(itertools.permutations(("spark1", "spark3", "spark4"))))
def test_no_order_of_losses_and_returns_runs_two_presets_on_one_node(
    order: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path)
    for event in (*(f"down {name}; 300" for name in order), "600", *(f"up {name}; 150" for name in order), "900"):
        for part in event.split(";"):
            cluster.happen(part)
    assert {name for name, number in cluster.wanted.items() if number} == {*SETS["main"]}


def test_how_a_node_is_read_and_what_the_metrics_say_is_as_stored() -> None:
    other = {"type": "MemoryPressure", "status": "False", "lastTransitionTime": "1970-01-01T00:05:00Z"}
    found: dict[str, list[Any]] = {"nodes": []}
    for status, spec in (("True", {}), ("Unknown", {}), ("False", {"unschedulable": True}), (None, {})):
        ready = [{"type": "Ready", "status": status, "lastTransitionTime": "1970-01-01T00:01:00Z"}] if status else []
        node = {"metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"}, "spec": spec}
        read = read_node(node | {"status": {"conditions": [other, *ready]}})
        found["nodes"].append(f"{status} {spec}: {read}{', usable' * read.usable}")
    for status in (Status(), Status("f1", "NodeLost"), Status(reason="NoFallbackFits")):
        found[f"metrics of {status.serving}, {status.reason}"] = fallback.metrics(SETTINGS, status).splitlines()
    stored.compare("fallback_metrics", found)


def test_the_status_of_a_newer_or_an_older_release_is_read() -> None:
    """After a downgrade the switch ended with a traceback at each start."""
    assert Status.parse('{"serving": "f1", "since": 5.0, "added_later": [1]}') == Status("f1", since=5.0)
    assert Status.parse("{}") == Status()


def test_old_metrics_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    page, now = fallback.Page(), 100.0
    monkeypatch.setattr(fallback.time, "monotonic", lambda: now)
    assert page.read("/metrics")[0] == 503
    page.write("a 1\n")
    assert page.read("/metrics") == (200, "a 1\n")
    assert page.read("/other")[0] == 404
    now += 60
    # An API that does not answer is no reason to restart the program.
    assert (page.read("/metrics")[0], page.read("/live")[0]) == (503, 200)


def test_the_program_survives_every_failure_of_the_api_and_looks_every_second_during_a_move(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paused: list[float] = []
    results = iter(
        [
            *(refused(409), refused(403), OSError("no route"), ValueError("no JSON")),
            *(Status("f1", "NodeLost", settled=False), Status("f1", "NodeLost"), SystemExit(0)),
        ]
    )

    def step(*_given: object) -> Status:
        result = next(results)
        if isinstance(result, Status):
            return result
        raise result

    monkeypatch.setattr(fallback, "SwitchApi", lambda *_given: None)
    monkeypatch.setattr(fallback, "step", step)
    monkeypatch.setattr(fallback.signal, "signal", lambda *_given: None)
    monkeypatch.setattr(fallback, "serve_pages", lambda port, _page: paused.append(port))
    monkeypatch.setattr(fallback.time, "sleep", paused.append)
    monkeypatch.setattr(sys, "argv", ["switch", "--settings", JSON])
    with pytest.raises(SystemExit):
        fallback.main()
    # The port of its pages, and its pauses.
    assert paused == [0, 5, 5, 5, 5, 1, 5]
    said = capsys.readouterr().out
    for text in ("watching spark1, spark2", "another switch has written", "HTTP Error 403", "no route", "no JSON"):
        assert text in said
