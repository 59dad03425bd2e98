# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import io

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl_expect import Expectation, judge
from ansible_collections.gb10.cluster.plugins.module_utils._nccl_log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl_overall import expectation, final, judge_all


def log(*lines: str) -> NcclLog:
    text = "".join(f"s1:1:1 [0] NCCL INFO {line}\n" for line in lines)
    return NcclLog().read(io.BytesIO(text.encode()).read)


BOTH = [f"Channel 0{n}/0 : 0[0] -> 1[0] [send] via NET/IB/{n % 2}" for n in range(4)]


@pytest.mark.parametrize(
    ("expect", "lines", "failure"),
    [
        (Expectation(min_devices=2), BOTH[:1], "uses 1 of 2 devices"),
        (Expectation(balance=0.5), [*BOTH, *BOTH[::2], *BOTH[::2]], "unequally"),
        (Expectation(gdr=True), BOTH, "without GPUDirect RDMA"),
        (Expectation(gdr=False), [BOTH[0] + "/GDRDMA"], "with GPUDirect RDMA"),
        (Expectation(nodes=2), BOTH, "0 of 2 nodes"),
        (Expectation(ranks=2), BOTH, "1 of 2 ranks"),
        (Expectation(networks=("IBext*",)), BOTH, "IB where IBext* is expected"),
        (Expectation(), ["Using network IB"], "only the selection says so"),
    ],
)
def test_what_is_missing_is_said(expect: Expectation, lines: list[str], failure: str) -> None:
    report = judge(log(*lines), "x", expect)
    assert not report.satisfied
    assert any(failure in text for text in report.failures), report.failures


def test_what_is_there_satisfies() -> None:
    assert judge(log(*BOTH), "x", Expectation(min_devices=2, balance=1.0, gdr=False, networks=("IB",))).satisfied
    assert judge(log("Using network IB"), "x", Expectation(evidence="selection")).satisfied
    assert judge(log(), "x", Expectation(allow_unknown=True)).satisfied


def test_devices_that_nccl_overrides_are_not_counted_as_used() -> None:
    report = judge(
        log(*BOTH, "NET/IB: Subnet-aware routing: overriding dev 1 with dev 0"), "x", Expectation(min_devices=2)
    )
    assert not report.satisfied


def test_sources_must_agree_and_the_weakest_evidence_counts() -> None:
    both = judge_all({"a": log(*BOTH), "b": log("Using network Socket")}, Expectation())
    assert (both["verdict"], both["evidence"], both["satisfied"]) == ("mixed", "selection", False)
    silent = judge_all({"a": log(*BOTH), "b": log()}, Expectation())
    assert (silent["verdict"], silent["satisfied"]) == ("unknown", False)
    assert judge_all({}, Expectation())["failures"] == ["there was no log to read"]


def test_waiting_ends_when_nothing_can_get_better() -> None:
    assert final(judge_all({"a": log(*BOTH)}, Expectation()))
    assert final(judge_all({"a": log(BOTH[0].replace("IB", "Socket"))}, Expectation()))
    assert not final(judge_all({"a": log("Using network IB")}, Expectation()))
    assert not final(judge_all({}, Expectation()))


def test_expectations_are_checked() -> None:
    assert expectation({"networks": ["IB"], "gdr": None}) == Expectation(networks=("IB",))
    with pytest.raises(ValueError, match="unknown expectation: rank"):
        expectation({"rank": 2})
    with pytest.raises(ValueError, match="evidence must be one of"):
        expectation({"evidence": "hearsay"})
