# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import bandwidth
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check.bandwidth import judge_bandwidth


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
