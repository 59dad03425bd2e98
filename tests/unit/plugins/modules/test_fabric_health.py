# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that link changes, speeds and errors since the previous run are reported once."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import fabric_health
from module_runs import Step, play


class Host:
    """A sysfs with one port, and the module's file."""

    def __init__(self, place: Path, _patch: pytest.MonkeyPatch) -> None:
        self.root, self.saved = place / "sys", place / "snapshot.json"
        self.options = {"sysfs_root": str(self.root), "path": str(self.saved)}
        self.hides = r"\b[01](\.\d)?(?= s\b| min\b| seconds)|in .* s$"
        write(carrier_changes=2, speed=200000, out_of_sequence=0, np_cnp_sent=0)(self)

    def shows(self) -> dict[str, Any]:
        text = self.saved.read_text() if self.saved.exists() else ""
        return {
            "seconds": (self.last["seconds"] in {0, 1}) if "seconds" in self.last else "",
            "size": str(len(text) > 99),
        }

    last: dict[str, Any]


def write(**values: int) -> Any:
    def step(host: Host) -> None:
        netdev = host.root / "class/net/enp1s0f0np0"
        counters = host.root / "class/infiniband/rocep1s0f0/ports/1/hw_counters"
        (netdev / "device").mkdir(parents=True, exist_ok=True)
        (netdev / "device/sriov_totalvfs").write_text("8\n")
        counters.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (netdev if name in {"carrier_changes", "speed"} else counters).joinpath(name).write_text(f"{value}\n")

    return step


def has(text: str) -> Step:
    return lambda host: host.saved.write_text(text)


CASES: dict[str, list[Step]] = {
    "the first, and a quiet time": [{}, {}],
    "reported once": [
        {},
        write(carrier_changes=4, speed=100000, out_of_sequence=7, np_cnp_sent=99),
        {"check": True},
        {},
        {},
    ],
    # A link that is down has no other speed, and counters that were reset count from zero.
    "down, after a reset": [
        write(out_of_sequence=50),
        {},
        write(carrier_changes=3, speed=-1, out_of_sequence=2),
        {},
    ],
    **{
        f"a file with {text!r}": [has(text), {}]
        for text in ("", "[]", '{"time": 1}', '{"time": "x", "links": 3, "counters": {}}')
    },
    "no directory": [lambda host: {"path": str(host.saved.parent / "missing/snapshot.json")}],
}


def test_each_snapshot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("fabric_health", fabric_health, CASES, Host, capsys, tmp_path)
