# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module says of who holds devices."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._node_room import Holder, Room
from ansible_collections.gb10.cluster.plugins.modules import node_room_info


def test_every_holder_is_a_line() -> None:
    holders = [
        Holder("gb10-serving", "one-0-0", "one", {"rdma/gb10": 1, "nvidia.com/gpu": 1}),
        Holder("notebooks", "jupyter", "", {"nvidia.com/gpu": 1}),
    ]
    found = [
        Room("spark1", "spark1", "", False, {"nvidia.com/gpu": 2}, holders),
        Room("spark2", "spark2", "", False, {}, []),
    ]
    assert node_room_info.message(found).splitlines() == [
        "spark1: gb10-serving/one-0-0 holds 1 nvidia.com/gpu, 1 rdma/gb10",
        "spark1: notebooks/jupyter holds 1 nvidia.com/gpu",
    ]
