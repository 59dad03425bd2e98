# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Go from the addresses of the hosts of a ring, where only neighbours have a cable, to a group on all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from labcommand import LabCommand, changed
from sitecommand import Site
from test_discover import OVERLAY, write_inventory
from test_ring import PROFILE


@pytest.mark.parametrize("nodes", [4, 6])
def test_a_ring_is_discovered_and_served_and_every_cable_is_proven(
    make_lab: Callable[..., LabCommand], tmp_path: Path, nodes: int
) -> None:
    lab = make_lab()
    lab.up(nodes=nodes, layout="ring", kubernetes=True)
    discovered = lab.play("discover")
    assert discovered.count(" === ") == nodes
    assert changed(discovered) == 0
    write_inventory(lab, tmp_path / "mine", *[f"10.99.0.{10 + number}" for number in range(1, nodes + 1)])
    name = f"ring-of-{nodes}"
    profile = {**PROFILE, "name": name, "topology": {"nodes": nodes, "tp": nodes}}
    (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    ranks = [f"spark{number}" for number in range(1, nodes + 1)]
    values = {
        "gb10_profile_dirs": [str(tmp_path)], "profile": name, "preset": "default", "serving_plan_nodes": ranks
    }  # fmt: skip
    site = Site(LabCommand(lab.state, (tmp_path / "mine", OVERLAY)), group=name, values=values)
    told = " ".join(site.play("site").split())
    verdict = json.loads(next(lab.results.glob("**/transport.json")).read_text(encoding="utf-8"))
    assert (verdict["transport_class"], verdict["satisfied"]) == ("rdma", True)
    for rank in range(nodes):
        for peer in ((rank + 1) % nodes, (rank - 1) % nodes):
            assert re.search(rf"Cable {name}-{rank}-0 to {name}-{peer}-0 \([^)]+\): [\d.]+ MB by RDMA", told), told
    # the gate of every rank agrees
    site.incarnations()
    lab("down")
