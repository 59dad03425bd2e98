# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that only causes are listed that no other one explains."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import BY_ID
from ansible_collections.gb10.cluster.plugins.plugin_utils._failure.causes import CONSEQUENCES, merged, roots


def cause(name: str, rank: int | None, confidence: float) -> dict[str, Any]:
    return {
        "id": name,
        "rank": rank,
        "source": f"g-{rank}-0",
        "summary": f"{name}.",
        "remedy": f"Mend {name}.",
        "line": "",
        "confidence": confidence,
    }


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ([("no_rdma_device", 0, 0.7), ("hca_selection", 0, 0.5)], [("no_rdma_device", 0)]),
        ([("peer_gone", 1, 0.6), ("reg_mr", 0, 0.9)], [("reg_mr", 0)]),
        ([("peer_gone", 1, 0.6), ("bootstrap", 0, 0.4)], [("peer_gone", 1), ("bootstrap", 0)]),
        ([("reg_mr", 0, 0.2)], []),
        ([("reg_mr", None, 0.9), ("gid_changed", None, 0.6)], [("reg_mr", None)]),
    ],
)
def test_a_rank_has_one_cause_and_consequences_give_way(
    found: list[tuple[str, int | None, float]], left: list[tuple[str, int | None]]
) -> None:
    assert [(each["id"], each["rank"]) for each in roots(cause(*one) for one in found)] == left


def test_a_cause_of_several_ranks_is_said_once() -> None:
    shown = merged([cause("a", 2, 0.9), cause("a", 0, 0.9), cause("b", 1, 0.5)], 3)
    assert [(one.text, one.who) for one in shown] == [("a.", "ranks 0, 2"), ("b.", "rank 1")]
    assert merged([cause("a", rank, 0.9) for rank in range(2)], 2)[0].who == ""
    assert merged([cause("a", None, 0.9)], 2)[0].who == "pod g-None-0"


def test_consequences_are_in_the_catalogue() -> None:
    assert set(BY_ID) > CONSEQUENCES
