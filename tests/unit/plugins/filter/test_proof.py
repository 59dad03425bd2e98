# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the comparison of the two transports."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter.proof import FilterModule


def proof(*rates: float, bus: float | None = None) -> dict[str, Any]:
    measured = [{"tokens_per_second": rate} for rate in rates]
    return {"measured": measured, "msg": "proved", "bandwidth": {"busbw": bus} if bus else None}


def compared(rdma: dict[str, Any], tcp: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = FilterModule().filters()["compare_speed"]({"rdma": rdma, "tcp": tcp}, "gemma", 256)
    return result


def test_medians_and_every_run_are_shown() -> None:
    found = compared(proof(28.0, 30.0, 31.0, bus=22.1), proof(9.0, 10.0, 40.0, bus=1.9))
    assert found["ratio"] == 3.0
    assert found["lines"] == [
        "gemma: one stream of 256 tokens, 3 runs each",
        "RDMA  median 30.0 tok/s  (28.0, 30.0, 31.0)  proved",
        "TCP   median 10.0 tok/s  (9.0, 10.0, 40.0)  proved",
        "RDMA is 3.0 times as fast as TCP",
        "all-reduce on the bus: RDMA 22.1 GB/s, TCP 1.9 GB/s",
    ]


@pytest.mark.parametrize(("rdma", "tcp"), [(None, 1.9), (22.1, None), (None, None)])
def test_without_both_bandwidths_none_is_compared(rdma: float | None, tcp: float | None) -> None:
    assert len(compared(proof(30.0, bus=rdma), proof(10.0, bus=tcp))["lines"]) == 4


def test_a_run_without_tokens_does_not_divide_by_zero() -> None:
    assert compared(proof(1.0), proof(0.0))["ratio"] == 1000.0


def test_a_ratio_below_the_least_is_a_problem() -> None:
    compare = FilterModule().filters()["compare_speed"]
    both = {"rdma": proof(30.0), "tcp": proof(10.0)}
    assert compare(both, "gemma", 256, 3.0)["findings"] == []
    (found,) = compare(both, "gemma", 256, 3.5)["findings"]
    assert (found["value"], found["reason"]) == (3.5, "RDMA is 3.0 times as fast as TCP")


def test_one_transport_alone_is_not_compared() -> None:
    found = FilterModule().filters()["compare_speed"]({"rdma": proof(30.0)}, "gemma", 256, 2.0)
    assert found["lines"] == [] and found["findings"][0]["rule"] == "verify.compare.unproved"
