# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy rings of three and four in both cablings from the map of their cables, move a cable, and take it over.

No Kubernetes; test_ring.py and test_ring_alike.py serve groups on rings.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from cables import cables_of, plug
from labcommand import LabCommand, changed
from sitecommand import Site

COVERS = (
    "playbooks/discover.yml",
    "playbooks/preflight.yml",
    "roles/fabric_discover",
    "plugins/modules/cabling_info.py",
    "plugins/action/cabling_report.py",
    "plugins/plugin_utils/_fabric",
)


def mapped(lab: LabCommand, path: Path) -> Site:
    """Return the lab with its own inventory and the map of its cables, which ``discover`` writes."""
    inventory = lab.state / "inventory"
    done = lab.run(*LabCommand(lab.state, (inventory,)).playbook("discover", fabric_discover_map=str(path)))
    assert changed(done.stdout) == 1, done.stdout + done.stderr
    return Site(LabCommand(lab.state, (inventory, path)), values={"gb10_fabric_vf_count": 2})


def vf_addresses(lab: LabCommand, host: str) -> list[str]:
    return sorted(lab.shell(host, "ip -4 -br address show | awk '/v[01] / {print $3}'").split())


# With the second and the fourth host exchanged, a ring of four joins like cages only, and one of three all but one.
@pytest.mark.parametrize(("nodes", "exchanged"), [(4, (2, 4)), (3, (2,)), (4, ()), (3, ())])
def test_a_ring_is_deployed_from_the_map_of_its_cables_and_a_moved_cable_is_named(
    make_lab: Callable[..., LabCommand], tmp_path: Path, nodes: int, exchanged: tuple[int, ...]
) -> None:
    lab = make_lab()
    lab.up(nodes=nodes, layout="ring")
    plug(lab, cables_of(nodes, *exchanged))
    site = mapped(lab, tmp_path / "cables.yml")
    # each host has two neighbours, each on two rails with two VFs
    assert f"{8 * nodes} directions on all rails and VFs pass with full-size packets" in site.play("fabric")

    # somebody works at the third host and plugs its cables into the other cages
    plug(lab, cables_of(nodes, *exchanged, 3))
    near = int(2 in exchanged)
    moved = (
        f"the plan joins spark2 enp1s0f{near}np{near} and spark3 enp1s0f1np1, "
        f"but spark2 enp1s0f{near}np{near} sees spark3 enp1s0f0np0"
    )
    assert moved in " ".join(site.play("preflight", check=False).split())
    if not exchanged:
        had = vf_addresses(lab, "spark3")
        again = mapped(lab, tmp_path / "moved.yml")
        assert f"{8 * nodes} directions on all rails and VFs pass" in again.play("fabric")
        assert vf_addresses(lab, "spark3") == had
    lab("down")
