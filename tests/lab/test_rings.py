# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve one group on all hosts of a ring of four, in which only neighbours have a cable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import yaml
from labcommand import LabCommand
from sitecommand import Site
from test_ring import PROFILE

NODES = 4
NAME = f"ring-of-{NODES}"


def test_a_whole_ring_is_served_and_every_cable_is_proven(make_lab: Callable[..., LabCommand], tmp_path: Path) -> None:
    lab = make_lab()
    lab.up(nodes=NODES, layout="ring", kubernetes=True)
    profile = {**PROFILE, "name": NAME, "topology": {"nodes": NODES, "tp": NODES}}
    (tmp_path / f"{NAME}.yml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    site = Site(lab, group=NAME, values={"gb10_profile_dirs": [str(tmp_path)], "profile": NAME, "preset": "default"})
    told = " ".join(site.play("site").split())
    verdict = json.loads(next(lab.results.glob("**/transport.json")).read_text(encoding="utf-8"))
    assert (verdict["transport_class"], verdict["satisfied"]) == ("rdma", True)
    for rank in range(NODES):
        for peer in ((rank + 1) % NODES, (rank - 1) % NODES):
            assert re.search(rf"Cable {NAME}-{rank}-0 to {NAME}-{peer}-0 \([^)]+\): [\d.]+ MB by RDMA", told), told
    # the gate of every rank agrees
    site.incarnations()
