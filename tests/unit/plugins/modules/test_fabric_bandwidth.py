# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import fabric_bandwidth
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
from module_runs import become_nobody, run_module
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


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A host with the GID of its planned address; perftest prints 97.51 Gb/s."""
    mlx5_vf(tmp_path)
    commands: list[list[str]] = []

    def run(argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(list(argv))
        return subprocess.CompletedProcess(argv, 0, RESULT, "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(bandwidth.shutil, "which", str)
    return commands


def test_a_client_measures_every_rail_and_a_slow_one_is_a_result(
    tmp_path: Path, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = run_module(fabric_bandwidth, capsys, **ENDS, side="client", sysfs_root=str(tmp_path))
    assert (status, result["ok"], result["measured"]) == (0, True, {"rail0": 97.51})
    assert result["pair"] == ["spark1", "spark2"]
    assert ran[0][-1] == "10.100.0.2"
    assert ran[0][1:5] == ["-d", "rocep1s0f0v0", "-x", "3"]
    options = {**ENDS, "half_floor": 98, "sysfs_root": str(tmp_path)}
    status, result = run_module(fabric_bandwidth, capsys, **options, side="client")
    assert (status, result["ok"], "slow: rail0 below 98 Gb/s" in result["msg"]) == (0, False, True)


def test_a_server_starts_units_that_end_by_themselves(
    tmp_path: Path, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = run_module(fabric_bandwidth, capsys, **ENDS, side="server", sysfs_root=str(tmp_path))
    assert (status, result["pair"]) == (0, ["spark2", "spark1"])
    assert "--property=RuntimeMaxSec=65" in ran[1]


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_host_without_perftest_is_told_the_package(
    side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlx5_vf(tmp_path)
    monkeypatch.setattr(bandwidth.shutil, "which", lambda _name: None)
    status, result = run_module(fabric_bandwidth, capsys, **ENDS, side=side, sysfs_root=str(tmp_path))
    assert (status, "sudo apt-get install perftest" in result["msg"]) == (1, True)


def test_an_address_without_gid_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlx5_vf(tmp_path, address=None)
    monkeypatch.setattr(bandwidth.shutil, "which", str)
    status, result = run_module(fabric_bandwidth, capsys, **ENDS, side="client", sysfs_root=str(tmp_path))
    assert (status, result["ok"]) == (1, False)
    assert "gid.absent" in result["msg"]


def test_a_user_without_become_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlx5_vf(tmp_path)
    become_nobody(monkeypatch)
    programs = tmp_path / "bin"
    programs.mkdir()
    refusal = "#!/bin/sh\necho 'Failed to start transient service unit: Access denied' >&2\nexit 1\n"
    for name in ("systemd-run", "ib_write_bw"):
        (programs / name).write_text(refusal)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    status, result = run_module(fabric_bandwidth, capsys, **ENDS, side="server", sysfs_root=str(tmp_path))
    assert status == 1
    assert "ran as user ansible" in result["msg"]


@pytest.mark.parametrize(
    ("rails", "floors", "good", "word"),
    [
        ((97.5, 97.4), (90, 180), True, "97.5"),
        ((97.5, None), (90, 180), False, "half-rail: rail1"),
        ((13.1, 12.9), (90, 180), False, "degraded: rail0, rail1"),
        ((13.1, 97.0), (90, 180), False, "degraded: rail0"),
        ((60.0, 97.0), (90, 180), False, "slow: rail0"),
        ((None, None), (90, 180), False, "no RDMA traffic at all"),
        ((97.5,), (90, 180), True, "97.5"),
        ((), (90, 180), False, "nothing was measured"),
        ((91.0, 91.0), (90, 190), False, "slow"),
        # What owners measured, and whether it is good.
        ((80.5, 80.5), FLOORS, True, ""),
        ((97.0,), FLOORS, True, ""),
        ((86.0,), FLOORS, False, ""),
        ((97.0, 97.0), FLOORS, True, ""),
        ((97.0, 60.0), FLOORS, False, ""),
        ((71.0, 71.0), FLOORS, False, ""),
    ],
)
def test_bandwidth_verdicts(
    rails: tuple[float | None, ...], floors: tuple[float, float], good: bool, word: str
) -> None:
    found, text = judge_bandwidth({f"rail{number}": rate for number, rate in enumerate(rails)}, *floors)
    assert (found, word in text) == (good, True)


def test_average_of_perftest() -> None:
    output = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      115421           0.00               97.51 \t\t     0.185985
---------------------------------------------------------------------------------------
"""
    assert bandwidth.parse_average(output) == 97.51
    assert bandwidth.parse_average("Couldn't connect to 10.100.0.1:18515") is None


def test_the_expected_figures_are_the_same_everywhere() -> None:
    top = Path(bandwidth.__file__).resolve().parents[2]
    page = (top / "docs/prepare.md").read_text()
    assert f"one half (one rail) | {EXPECTED_HALF_GBPS:g} Gb/s" in page
    assert f"both halves at once | {EXPECTED_FULL_GBPS:g} Gb/s" in page
    defaults = yaml.safe_load((top / "roles/fabric_check/defaults/main.yml").read_text())
    assert (defaults["fabric_check_half_floor"], defaults["fabric_check_full_floor"]) == (HALF_FLOOR, FULL_FLOOR)
    for floor, expected in ((HALF_FLOOR, EXPECTED_HALF_GBPS), (FULL_FLOOR, EXPECTED_FULL_GBPS)):
        assert abs(floor - 0.9 * expected) < 1
