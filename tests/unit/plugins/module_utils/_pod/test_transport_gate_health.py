# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar counts about the rails, the GPU and the node of its rank while it runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import HEALTH
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from gate_rank import FakeApi

RAILS = tuple(Rail(f"mlx{n}", f"net{n + 1}", f"10.10{n}.0.1", 9000) for n in range(2))
BEGAN = 1.8e9
TOTALS = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}
SECONDS = ("gpu_hot", "gpu_brake", "gpu_slow")
ZONE = {"type": "acpitz", "trip_point_0_type": "passive", "trip_point_0_temp": "95000"}
ZONE |= {"trip_point_1_type": "active", "trip_point_1_temp": "40000"}


class Node:
    """A node with two rails; VFs whose physical functions count PCIe errors, and one thermal zone."""

    def __init__(self, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sysfs, self.api, self.changes, self.now = sysfs, FakeApi(HEALTH), {"net1": 1, "net2": 1}, 0.0
        self.gids, self.mtus = frozenset(rail.address for rail in RAILS), {"net1": 9000, "net2": 9000}
        monkeypatch.setattr(evidence, "link", lambda name: {"carrier_changes": self.changes[name], "speed": None})
        monkeypatch.setattr(evidence, "gids_and_mtus", lambda *_: (self.gids, self.mtus))
        monkeypatch.setattr(watch.time, "time", lambda: BEGAN + self.now)
        monkeypatch.setattr(watch, "timestamp", lambda *at: f"{(*at, BEGAN + self.now)[0] - BEGAN:.0f}")
        for number in range(2):
            self.errors(number, 5)
            for kind in TOTALS:
                self.aer(number, kind, 7)
        for name, text in ZONE.items():
            self.write(f"class/thermal/thermal_zone0/{name}", text)
        self.heat(60)
        self.write("state/x", "")
        self.start()

    def start(self) -> None:
        """Start the sidecar, again if it ran."""
        base, labels = self.sysfs / "nccl", {"instance": "g", "rank": "2"}
        base.mkdir(exist_ok=True)
        self.watch = watch.Health(RAILS, str(self.sysfs), self.api, labels, base, self.sysfs / "state")  # type: ignore[arg-type]

    def gpu(self, xid: dict[str, int] | None = None, tells: Any = True, **seconds: int) -> None:
        told = {"xid": xid or {}, "seconds": dict.fromkeys(SECONDS, 0) | seconds, "tells_faults": tells}
        (self.sysfs / "nccl/gpu.json").write_text(json.dumps(told))

    def write(self, name: str, text: str) -> None:
        (self.sysfs / name).parent.mkdir(parents=True, exist_ok=True)
        (self.sysfs / name).write_text(f"{text}\n")

    def errors(self, rail: int, value: int, name: str = "out_of_sequence") -> None:
        self.write(f"class/infiniband/mlx{rail}/ports/1/hw_counters/{name}", str(value))

    def aer(self, rail: int, kind: str, value: int) -> None:
        text = f"RxErr {value}\nBadTLP 0\nTOTAL_ERR_{TOTALS[kind]} {value}"
        self.write(f"class/infiniband/mlx{rail}/device/physfn/aer_dev_{kind}", text)

    def heat(self, degrees: int) -> None:
        self.write("class/thermal/thermal_zone0/temp", str(1000 * degrees))


DAY = 86400
# What happens in turn, with the second of the next reading; the first reading is at 0.
Course = list[tuple[str, Callable[[Node], object], float]]
FAULTS: dict[str, Callable[[Node], object]] = {
    "link 2 changes 8 times": lambda node: node.changes.update(net2=9),
    "link 2 changes once": lambda node: node.changes.update(net2=2),
    "fatal PCIe error": lambda node: node.aer(0, "fatal", 8),
    "uncorrectable PCIe errors": lambda node: node.aer(1, "nonfatal", 9),
    "few corrected PCIe errors": lambda node: node.aer(1, "correctable", 1006),
    "corrected PCIe errors": lambda node: node.aer(1, "correctable", 1007),
    "few packets out of sequence": lambda node: node.errors(0, 1004),
    "packets out of sequence": lambda node: node.errors(0, 1005),
    "congestion is no error": lambda node: node.errors(0, 9999, "np_cnp_sent"),
    "the driver was loaded again": lambda node: node.aer(0, "fatal", 2),
    "hot": lambda node: node.heat(95),
    "warm": lambda node: node.heat(94),
    "no GIDs": lambda node: setattr(node, "gids", frozenset()),
    "an MTU fell": lambda node: node.mtus.update(net2=1500),
    "an MTU that is unknown": lambda node: node.mtus.pop("net2"),
    "Xid": lambda node: node.gpu({"79": 1, "31": 2}),
    "a GPU that was slow for a moment": lambda node: node.gpu(**dict.fromkeys(SECONDS, 599)),
    "a GPU that was hot": lambda node: node.gpu(gpu_hot=600),
    "a GPU that was slow": lambda node: node.gpu(gpu_brake=600, gpu_slow=601),
    "a driver that tells no faults": lambda node: node.gpu(tells=False),
    "a witness that says nonsense about the driver": lambda node: node.gpu(tells="no"),
}
COURSES: dict[str, Course] = {
    "a day has its errors, but ten days may have more": [
        ("errors", lambda node: node.errors(0, 5005), 10 * DAY),
        ("link 2", lambda node: node.changes.update(net2=2), 10 * DAY + 30),
        ("fatal", lambda node: node.aer(0, "fatal", 8), 10 * DAY + 60),
        ("nonfatal", lambda node: node.aer(0, "nonfatal", 8), 10 * DAY + 700),
    ],
    "the devices are read every 30 seconds, and growing counts do not fill etcd": [
        ("a link", lambda node: node.changes.update(net1=3), 29.9),
        ("the same", lambda _node: None, 30),
        *((f"link {n}", lambda node, n=n: node.changes.update(net1=n), 25 + 5 * n) for n in (5, 6, 121)),
        ("hot", lambda node: node.heat(95), 660),
        ("cool", lambda node: node.heat(60), 690),
        ("hot again, its metrics", lambda node: node.heat(95), 1300),
    ],
    "a sidecar that starts again goes on counting since the first start": [
        ("link and Xid", lambda node: (node.changes.update(net2=5), node.gpu({"31": 1})), 30),
        ("start", lambda node: (node.changes.update(net2=7), node.start()), 60),
        # The server started again too, and its witness counts from 0.
        ("no Xid", lambda node: node.gpu({"31": 0}), 90),
        ("Xid", lambda node: (node.gpu({"31": 1}), node.errors(0, 1505)), 2 * DAY),
    ],
}


def test_what_is_counted_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    courses = {title: [(title, fault, 1000)] for title, fault in FAULTS.items()} | COURSES
    found: dict[str, list[str]] = {}
    for number, (title, course) in enumerate(courses.items()):
        node, shown = Node(tmp_path / str(number), monkeypatch), stored.Once()
        lines = found.setdefault("one fault" if title in FAULTS else title, [])
        for name, happens, at in [("start", lambda _node: None, 0), *course]:
            happens(node)
            node.now = at
            node.watch.step(float(at))
            said = "; ".join(node.api.taken(shown)) or "nothing"
            lines += [f"{at} {name} → {said}"] * (title not in FAULTS or at > 0)
            lines += node.watch.text.splitlines() if "metrics" in name else []
    stored.compare("gate_health", found)


def test_the_days_before_the_sidecar_started_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch)
    for node.now, errors in ((9.0 * DAY, 5), (10.0 * DAY, 1005)):
        node.errors(0, errors)
        node.watch.step(node.now)
    assert node.api.conditions[-1].message.endswith("rail 0 (net1) counted 1000 errors and retransmissions")


def test_a_host_that_tells_nothing_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "x", monkeypatch)
    node.watch._sysfs = str(tmp_path / "none")
    node.watch.step(0.0)
    assert node.api.conditions[-1].reason == "Healthy"


@pytest.mark.parametrize("kept", ["", "[]", "{}", '{"began": 1, "hot": 0, "before": 1, "total": []}', "\udcff"])
def test_what_was_kept_and_cannot_be_read_is_forgotten(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch)
    (tmp_path / "state/health.json").write_text(kept, errors="surrogateescape")
    node.start()
    node.now = 100.0
    node.watch.step(100.0)
    assert node.api.conditions[-1].message == "since 100 nothing was counted"
    assert json.loads((tmp_path / "state/health.json").read_text())["began"] == BEGAN + 100


def test_a_file_of_the_server_that_is_nonsense_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, file = Node(tmp_path, monkeypatch), tmp_path / "nccl/gpu.json"
    told = ["", "[" * 4000, "{}", '{"xid": []}', '{"xid": {"x": 1}, "seconds": {}}']
    told += [f'{{"xid": {{"31": {number}}}, "seconds": {{}}}}' for number in ("NaN", "Infinity")]
    told += [json.dumps({"xid": {"9" * 50: 1, "-1": 1}, "seconds": dict.fromkeys(SECONDS, -9)})]
    for turn, text in enumerate(told):
        file.write_text(text)
        node.watch.step(1000.0 * turn)
    file.unlink()
    file.symlink_to("/dev/zero")
    node.watch.step(9000.0)
    assert [one.message for one in node.api.conditions] == ["since 0 nothing was counted"]
    # Nor do invented codes fill the condition.
    file.unlink()
    for turn in range(1, 40):
        node.gpu({str(25 * turn + code): 1 for code in range(25)})
        node.watch.step(9000.0 + 700 * turn)
    said = node.api.conditions[-1].message
    assert 0 < said.count("Xid") < 200
    assert len(said) < 9000
