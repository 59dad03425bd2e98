# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import bandwidth
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check.bandwidth import (
    EXPECTED_FULL_GBPS,
    EXPECTED_HALF_GBPS,
    FULL_FLOOR,
    HALF_FLOOR,
    judge_bandwidth,
)


@pytest.mark.parametrize(
    ("measured", "good", "word"),
    [
        ({"rail0": 97.5, "rail1": 97.4}, True, "97.5"),
        ({"rail0": 97.5, "rail1": None}, False, "half-rail: rail1"),
        ({"rail0": 13.1, "rail1": 12.9}, False, "degraded: rail0, rail1"),
        ({"rail0": 13.1, "rail1": 97.0}, False, "degraded: rail0"),
        ({"rail0": 60.0, "rail1": 97.0}, False, "slow: rail0"),
        ({"rail0": None, "rail1": None}, False, "no RDMA traffic at all"),
        ({"rail0": 97.5}, True, "97.5"),
        ({}, False, "nothing was measured"),
    ],
)
def test_bandwidth_verdicts(measured: dict[str, float | None], good: bool, word: str) -> None:
    found, text = judge_bandwidth(measured, 90, 180)
    assert found is good
    assert word in text


def test_both_halves_together_have_a_floor() -> None:
    assert judge_bandwidth({"rail0": 91.0, "rail1": 91.0}, 90, 190)[0] is False


def test_average_of_perftest() -> None:
    output = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      115421           0.00               97.51 \t\t     0.185985
---------------------------------------------------------------------------------------
"""
    assert bandwidth.parse_average(output) == 97.51
    assert bandwidth.parse_average("Couldn't connect to 10.100.0.1:18515") is None


def test_what_owners_measure_is_not_called_slow() -> None:
    found = {halves: judge_bandwidth(dict(enumerate_rails(halves)), HALF_FLOOR, FULL_FLOOR)[0] for halves in HALVES}
    assert found == HALVES


# Gb/s of the rails of one pair, measured at once, and whether they are good
HALVES = {
    (80.5, 80.5): True,
    (97.0,): True,
    (86.0,): False,
    (97.0, 97.0): True,
    (97.0, 60.0): False,
    (71.0, 71.0): False,
}


def enumerate_rails(halves: tuple[float, ...]) -> list[tuple[str, float]]:
    return [(f"rail{number}", half) for number, half in enumerate(halves)]


def test_the_expected_figures_are_the_same_everywhere() -> None:
    top = Path(bandwidth.__file__).resolve().parents[3]
    page = (top / "docs/prepare.md").read_text()
    assert f"one half (one rail) | {EXPECTED_HALF_GBPS:g} Gb/s" in page
    assert f"both halves at once | {EXPECTED_FULL_GBPS:g} Gb/s" in page
    defaults = yaml.safe_load((top / "roles/fabric_check/defaults/main.yml").read_text())
    assert (defaults["fabric_check_half_floor"], defaults["fabric_check_full_floor"]) == (HALF_FLOOR, FULL_FLOOR)
    for floor, expected in ((HALF_FLOOR, EXPECTED_HALF_GBPS), (FULL_FLOOR, EXPECTED_FULL_GBPS)):
        assert abs(floor - 0.9 * expected) < 1
