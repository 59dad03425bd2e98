# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve one group on a ring of four whose cables join cage 0 to cage 0 and cage 1 to cage 1, by the map of its cables.

The simulated SGLang joins ranks by their subnets. Whether NCCL does so with joined ports is not tested here.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import yaml
from cables import cables_of, plug
from labcommand import LabCommand
from sitecommand import Site, ring_profile

COVERS = (
    "playbooks/discover.yml",
    "plugins/plugin_utils/_fabric",
    "plugins/plugin_utils/_serving",
    "roles/fabric_discover",
)

NAME = "four-ranks"
HALVES = {cage: f"rocep1s0f{cage}v0, roceP2p1s0f{cage}v0" for cage in (0, 1)}


def test_a_ring_of_like_cages_is_served_with_joined_ports_and_each_cable_is_proven(
    make_lab: Callable[..., LabCommand], tmp_path: Path
) -> None:
    lab = make_lab()
    lab.up(nodes=4, layout="ring", kubernetes=True)
    plug(lab, cables_of(4, 2, 4))
    found = tmp_path / "cables.yml"
    told = lab.play("discover", check=False, fabric_discover_map=str(found))
    assert "all cables join the same cages of their hosts" in " ".join(told.split())
    (tmp_path / f"{NAME}.yml").write_text(yaml.safe_dump(ring_profile(NAME, 4)), encoding="utf-8")
    site = Site(
        LabCommand(lab.state, (lab.state / "inventory", found)),
        group=NAME,
        values={"gb10_profile_dirs": [str(tmp_path)], "profile": NAME, "preset": "default"},
    )
    told = " ".join(site.play("site").split())
    # spark1 reaches spark2 over cage 0 and spark4 over cage 1, and so on round the ring
    for rank in range(4):
        for step in (1, -1):
            cage = (rank + (step < 0)) % 2
            pair = f"{NAME}-{rank}-0 to {NAME}-{(rank + step) % 4}-0 ({HALVES[cage]})"
            assert re.search(rf"Cable {re.escape(pair)}: [\d.]+ MB by RDMA", told), (pair, told[-4000:])
    verdict = json.loads(next(lab.results.glob("**/transport.json")).read_text(encoding="utf-8"))
    assert (verdict["transport_class"], verdict["satisfied"]) == ("rdma", True)
    assert len(site.incarnations()) == 4
    env = dict(line.split("=", 1) for line in site.in_head("env").splitlines() if "=" in line)
    wanted = {"NCCL_IB_MERGE_NICS": "1", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_ALGO": "Ring"}
    assert env.items() >= wanted.items()

    plug(lab, cables_of(4, 2, 3, 4))
    moved = "the plan joins spark2 enp1s0f1np1 and spark3 enp1s0f1np1, but spark2 enp1s0f1np1 sees spark3 enp1s0f0np0"
    assert moved in " ".join(site.play("preflight", check=False).split())
