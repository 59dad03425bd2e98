# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the measurement of each rail between two hosts, and what its rates mean."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import stored
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import fabric_bandwidth as bandwidth
from ansible_collections.gb10.cluster.plugins.modules.fabric_bandwidth import (
    EXPECTED_FULL_GBPS,
    EXPECTED_HALF_GBPS,
    FULL_FLOOR,
    HALF_FLOOR,
    judge_bandwidth,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import fabric
from module_runs import Step, become_nobody, steps_of
from sysfs_samples import mlx5_vf

# one rail: the sample sysfs has the GID of its first VF
PLAN = plan_fabric(
    fabric(
        2,
        gb10_fabric_vf_count=1,
        gb10_fabric_rails=[{"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/16"}],
    )
)[0].as_dict()
ENDS = {"plan": PLAN, "host": "spark1", "partner": "spark2", "full_floor": 90}
FLOORS = (HALF_FLOOR, FULL_FLOOR)
RESULT = " 65536      115421           0.00               97.51                0.185985\n"


RUN = system.run


class Host:
    """A host with the GID of its planned address; perftest prints ``answers``, one a run, and then 97.51 Gb/s."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.patch = place, patch
        self.options = {**ENDS, "side": "client", "sysfs_root": str(place)}
        self.installed, self.answers = True, list[str]()
        self.commands: list[str] = []
        mlx5_vf(place)
        patch.setattr(system, "run", self.run)
        patch.setattr(bandwidth.shutil, "which", lambda name: name if self.installed else None)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(f"{' '.join(argv)} {options or ''}")
        return subprocess.CompletedProcess(argv, 0, self.answers.pop(0) if self.answers else RESULT, "")


def lose_rights(host: Host) -> None:
    become_nobody(host.patch)
    host.patch.setattr(system, "run", RUN)
    for name in ("systemctl", "systemd-run"):
        (host.place / name).write_text("#!/bin/sh\necho 'Failed to start unit: Access denied' >&2\nexit 1\n")
        (host.place / name).chmod(0o755)
    host.patch.setenv("PATH", f"{host.place}:{os.environ['PATH']}")


def lose_gid(host: Host) -> None:
    mlx5_vf(host.place / "other", address=None)
    host.options["sysfs_root"] = str(host.place / "other")


LATE, EMPTY = "Couldn't connect to 10.100.0.2:18515\n", "Conflicting CPU frequency values\n"
SERVER = {"side": "server"}
TWO = [bandwidth.Lane(f"rail{n}", f"rocep{n}", 3, f"10.10{n}.0.2", 18515 + n) for n in (0, 1)]
CASES: dict[str, list[Step]] = {
    "a client": [{}, {"half_floor": 98}, {"duration": 9}],
    "a client that is early": [{"answers": [LATE, LATE]}],
    "no result": [{"answers": [EMPTY]}],
    "a server, and one of two rails": [
        SERVER,
        lambda host: host.patch.setattr(bandwidth, "lanes", lambda *_words: TWO),
        SERVER,
    ],
    "no perftest": [{"installed": False}, {**SERVER, "installed": False}],
    "no GID": [lose_gid, {}],
    "no rights": [lose_rights, SERVER],
}
test_each_side = steps_of(clock=True, fabric_bandwidth=(bandwidth, Host, CASES))


FLOORS = (HALF_FLOOR, FULL_FLOOR)
# Rates of the rails, and the floors.
RATES: list[tuple[tuple[float | None, ...], tuple[float, float]]] = [
    *((rails, (90, 180)) for rails in ((97.5, 97.4), (97.5, None), (13.1, 12.9), (13.1, 97.0), (60.0, 97.0))),
    *((rails, (90, 180)) for rails in ((None, None), (97.5,), ())),
    ((91.0, 91.0), (90, 190)),
    # What owners measured.
    *((rails, FLOORS) for rails in ((80.5, 80.5), (97.0,), (86.0,), (97.0, 97.0), (97.0, 60.0), (71.0, 71.0))),
]


def test_bandwidth_verdicts() -> None:
    told = {}
    for rails, floors in RATES:
        good, text = judge_bandwidth({f"rail{number}": rate for number, rate in enumerate(rails)}, *floors)
        told[f"{', '.join(map(str, rails)) or 'nothing'}; floors {floors}"] = [f"{'good' if good else 'bad'}: {text}"]
    stored.compare("bandwidth_rates", told)


def test_the_expected_figures_are_the_same_everywhere() -> None:
    top = Path(bandwidth.__file__).resolve().parents[2]
    page = (top / "docs/prepare.md").read_text()
    assert f"one half (one rail) | {EXPECTED_HALF_GBPS:g} Gb/s" in page
    assert f"both halves at once | {EXPECTED_FULL_GBPS:g} Gb/s" in page
    defaults = yaml.safe_load((top / "roles/fabric_check/defaults/main.yml").read_text())
    assert (defaults["fabric_check_half_floor"], defaults["fabric_check_full_floor"]) == (HALF_FLOOR, FULL_FLOOR)
    for floor, expected in ((HALF_FLOOR, EXPECTED_HALF_GBPS), (FULL_FLOOR, EXPECTED_FULL_GBPS)):
        assert abs(floor - 0.9 * expected) < 1
