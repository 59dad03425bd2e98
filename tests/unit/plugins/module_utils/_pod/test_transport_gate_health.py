# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar counts about the rails and the node of its rank while it runs."""

import json
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import HEALTH
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from gate_rank import FakeApi

RAILS = tuple(Rail(f"mlx{n}", f"net{n + 1}", f"10.10{n}.0.1", 9000) for n in range(2))
STARTED = "2026-11-24T08:00:00Z"
BEGAN = 1.8e9


class Node:
    """A node with two rails; VFs whose physical functions count PCIe errors, and one thermal zone."""

    def __init__(self, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sysfs, self.api, self.changes = sysfs, FakeApi(HEALTH), {"net1": 1, "net2": 1}
        monkeypatch.setattr(evidence, "link", lambda name: {"carrier_changes": self.changes[name], "speed": None})
        monkeypatch.setattr(watch, "timestamp", lambda _seconds=0: STARTED)
        labels = {"instance": "g", "rank": "2"}
        self.base, self.state = sysfs / "nccl", sysfs / "state"
        for directory in (self.base, self.state):
            directory.mkdir(parents=True, exist_ok=True)
        self.gids, self.mtus = frozenset(rail.address for rail in RAILS), {"net1": 9000, "net2": 9000}
        monkeypatch.setattr(evidence, "gids_and_mtus", lambda *_: (self.gids, self.mtus))
        self.now = 0.0
        monkeypatch.setattr(watch.time, "time", lambda: BEGAN + self.now)
        self.labels = labels
        self.start()
        for number in range(2):
            self.count(number, "hw_counters/out_of_sequence", 5)
            for kind in ("fatal", "nonfatal", "correctable"):
                self.aer(number, kind, 7)
        self.write("class/thermal/thermal_zone0/type", "acpitz")
        self.write("class/thermal/thermal_zone0/trip_point_0_type", "passive")
        self.write("class/thermal/thermal_zone0/trip_point_0_temp", "95000")
        self.write("class/thermal/thermal_zone0/trip_point_1_type", "active")
        self.write("class/thermal/thermal_zone0/trip_point_1_temp", "40000")
        self.heat(60)

    def start(self) -> None:
        """Start the sidecar, again if it ran."""
        self.watch = watch.Health(RAILS, str(self.sysfs), self.api, self.labels, self.base, self.state)  # type: ignore[arg-type]

    def gpu(self, **told: object) -> None:
        seconds = {"gpu_hot": 0, "gpu_brake": 0, "gpu_slow": 0}
        (self.base / "gpu.json").write_text(json.dumps({"xid": {}, "seconds": seconds} | told))

    def write(self, name: str, text: str) -> None:
        path = self.sysfs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def count(self, rail: int, name: str, value: int) -> None:
        self.write(f"class/infiniband/mlx{rail}/ports/1/{name}", str(value))

    def aer(self, rail: int, kind: str, value: int) -> None:
        totals = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}
        name = f"class/infiniband/mlx{rail}/device/physfn/aer_dev_{kind}"
        self.write(name, f"RxErr {value}\nBadTLP 0\nTOTAL_ERR_{totals[kind]} {value}")

    def heat(self, degrees: int) -> None:
        self.write("class/thermal/thermal_zone0/temp", str(1000 * degrees))

    def step(self, now: float) -> str:
        self.now = now
        self.watch.step(now)
        last = self.api.conditions[-1]
        assert last.proven is (last.reason == "Healthy")
        return last.message.removeprefix(f"since {STARTED} ")


MUTE = "NVML tells no faults of the GPU (Xid), so only the node's kernel log has them"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path, monkeypatch)
    # What was counted before the rank started.
    assert made.step(0.0) == "nothing was counted"
    return made


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda node: node.changes.update(net2=9), "rail 1 (net2) lost its link 4 times"),
        (lambda node: node.changes.update(net2=2), "rail 1 (net2) lost its link 1 times"),
        (lambda node: node.aer(0, "fatal", 8), "rail 0 (net1) had 1 fatal PCIe errors"),
        (lambda node: node.aer(1, "nonfatal", 9), "rail 1 (net2) had 2 uncorrectable PCIe errors"),
        (lambda node: node.aer(1, "correctable", 1006), "nothing was counted"),
        (lambda node: node.aer(1, "correctable", 1007), "rail 1 (net2) had 1000 corrected PCIe errors"),
        (lambda node: node.count(0, "hw_counters/out_of_sequence", 1004), "nothing was counted"),
        (
            lambda node: node.count(0, "hw_counters/out_of_sequence", 1005),
            "rail 0 (net1) counted 1000 errors and retransmissions",
        ),
        (lambda node: node.count(0, "hw_counters/np_cnp_sent", 9999), "nothing was counted"),
        # The driver was loaded again.
        (lambda node: node.aer(0, "fatal", 2), "rail 0 (net1) had 2 fatal PCIe errors"),
        (lambda node: node.heat(95), "the node was 1 times at a limit of its temperature"),
        (lambda node: node.heat(94), "nothing was counted"),
        (
            lambda node: setattr(node, "gids", frozenset()),
            "rail 0 (net1) lost its RoCE address (GID) 1 times; rail 1 (net2) lost its RoCE address (GID) 1 times",
        ),
        (lambda node: node.mtus.update(net2=1500), "rail 1 (net2) had less than its MTU 1 times"),
        (lambda node: node.mtus.pop("net2"), "nothing was counted"),
        (
            lambda node: node.gpu(xid={"79": 1, "31": 2}),
            "the GPU reported Xid 31 2 times; the GPU reported Xid 79 1 times",
        ),
        (lambda node: node.gpu(seconds={"gpu_hot": 599, "gpu_brake": 599, "gpu_slow": 599}), "nothing was counted"),
        (
            lambda node: node.gpu(seconds={"gpu_hot": 600, "gpu_brake": 0, "gpu_slow": 0}),
            "the GPU was slowed down by heat for 600 s",
        ),
    ],
)
def test_a_fault_is_told_with_its_rail_and_since_when(fault: object, said: str, node: Node) -> None:
    assert callable(fault)
    fault(node)
    assert node.step(100.0) == said
    assert node.api.events == ([] if said == "nothing was counted" else ["HealthDegraded"])


@pytest.mark.parametrize(("tells", "said"), [(True, ""), (False, f"; {MUTE}"), ("no", "")])
def test_a_driver_that_tells_no_faults_is_named(tells: object, said: str, node: Node) -> None:
    node.gpu(tells_faults=tells)
    # A message that grows is written every ten minutes.
    assert node.step(1000.0) == f"nothing was counted{said}"


def test_a_day_has_its_errors_but_ten_days_may_have_more(node: Node) -> None:
    node.count(0, "hw_counters/out_of_sequence", 5005)
    assert node.step(10 * 86400.0) == "nothing was counted"
    node.changes["net2"] = 2
    for kind in ("fatal", "nonfatal"):
        node.aer(0, kind, 8)
    assert node.step(10 * 86400.0 + 30) == (
        "rail 0 (net1) had 1 fatal PCIe errors; rail 0 (net1) had 1 uncorrectable PCIe errors; "
        "rail 1 (net2) lost its link 1 times"
    )


def test_the_days_before_the_sidecar_started_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Node(tmp_path, monkeypatch)
    made.step(9 * 86400.0)
    made.count(0, "hw_counters/out_of_sequence", 1005)
    assert made.step(10 * 86400.0) == "rail 0 (net1) counted 1000 errors and retransmissions"


def test_growing_counts_do_not_fill_etcd(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "timestamp", lambda *began: STARTED if began else f"after {len(node.api.conditions)}")
    for turn in range(1, 41):
        node.changes["net1"] += 2
        node.heat(95 if turn % 2 else 60)
        node.step(30.0 * turn)
    told = [condition.message.partition(" times")[0].rpartition(" ")[2] for condition in node.api.conditions]
    assert told[1:] == ["1", "21"]
    assert node.api.times[1:] == ["after 1"] * 2
    assert node.api.events == ["HealthDegraded"]
    assert 'gb10_health_events_total{instance="g",rank="2",rail="0",event="link_lost"} 40\n' in node.watch.text
    assert 'gb10_health_hot{instance="g",rank="2"} 0\n' in node.watch.text


def test_the_devices_are_read_every_30_seconds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def count(_rails: object, root: str) -> dict[object, int]:
        read.append(root)
        return {}

    monkeypatch.setattr(watch, "count", count)
    for now, times in ((29.9, 0), (30.0, 1), (59.9, 1), (60.0, 2)):
        node.watch.step(now)
        assert len(read) == times


def test_a_host_that_tells_nothing_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Node(tmp_path / "x", monkeypatch)
    made.watch._sysfs = str(tmp_path / "none")
    assert made.step(0.0) == "nothing was counted"


def test_a_sidecar_that_starts_again_goes_on_counting_since_the_first_start(node: Node) -> None:
    node.changes.update(net2=5)
    node.gpu(xid={"31": 1})
    said = "the GPU reported Xid 31 1 times; rail 1 (net2) lost its link 2 times"
    assert node.step(30.0) == said
    node.changes.update(net2=7)
    node.start()
    assert node.step(60.0) == said.replace("link 2", "link 3")
    # The server started again too, and its witness counts from 0.
    node.gpu(xid={"31": 0})
    node.step(90.0)
    node.gpu(xid={"31": 1})
    node.count(0, "hw_counters/out_of_sequence", 1505)
    assert node.step(2 * 86400.0) == said.replace("Xid 31 1", "Xid 31 2").replace("link 2", "link 3")


@pytest.mark.parametrize("kept", ["", "[]", "{}", '{"began": 1, "hot": 0, "before": 1, "total": []}', "\udcff"])
def test_what_was_kept_and_cannot_be_read_is_forgotten(kept: str, node: Node) -> None:
    (node.state / "health.json").write_text(kept, errors="surrogateescape")
    node.start()
    assert node.step(100.0) == "nothing was counted"
    assert json.loads((node.state / "health.json").read_text())["began"] == BEGAN + 100


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[" * 4000,
        "{}",
        '{"xid": []}',
        '{"xid": {"x": 1}, "seconds": {}}',
        '{"xid": {"31": NaN}, "seconds": {}}',
        '{"xid": {"31": Infinity}, "seconds": {}}',
        json.dumps({"xid": {"9" * 50: 1, "-1": 1}, "seconds": dict.fromkeys(("gpu_hot", "gpu_brake", "gpu_slow"), -9)}),
    ],
)
def test_a_file_of_the_server_that_is_nonsense_counts_nothing(told: str, node: Node) -> None:
    (node.base / "gpu.json").write_text(told)
    assert node.step(100.0) == "nothing was counted"
    (node.base / "gpu.json").unlink()
    (node.base / "gpu.json").symlink_to("/dev/zero")
    assert node.step(200.0) == "nothing was counted"


def test_a_server_that_invents_codes_fills_no_condition(node: Node) -> None:
    for turn in range(1, 40):
        node.gpu(xid={str(25 * turn + code): 1 for code in range(25)})
        said = node.step(30.0 * turn)
    assert said.count("Xid") < 200
    assert len(said) < 9000
