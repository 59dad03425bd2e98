# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Go from the addresses of hosts to a served group, with the inventory that inventory_new writes, unchanged."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from documented import commands, fences
from labcommand import LabCommand, changed
from sitecommand import Site
from test_discover import OVERLAY, write_inventory
from test_ring import PROFILE

COVERS = (
    "playbooks/inventory_new.yml",
    "playbooks/discover.yml",
    "roles/inventory_new",
    "plugins/action/inventory_new.py",
    "README.md",
)

# What README says of the short way: its playbooks, and the end of a good deployment.
SHORT = [command for _page, command in commands("short") if command.startswith("ansible-playbook")]
(GOOD,) = [text for page, _language, text in fences() if page == "README.md" and text.startswith("rank  node")]


def written(lab: LabCommand, path: Path, *addresses: str) -> Site:
    """Write an inventory for hosts by the command of the short way, and return the lab with it."""
    write_inventory(lab, path, *addresses, documented=SHORT[0])
    return Site(LabCommand(lab.state, (path, OVERLAY)))


@pytest.mark.parametrize(
    ("layout", "nodes", "kind", "topology", "ranks"),
    [
        ("switch", 2, "spark", "direct", 2),
        ("b300", 1, "kind", "single", 1),
    ],
    ids=["2x-gb10-direct", "1x-b300"],
)
def test_site_serves_the_hosts_of_a_layout_with_the_inventory_that_was_written(
    make_lab: Callable[..., LabCommand], tmp_path: Path, layout: str, nodes: int, kind: str, topology: str, ranks: int
) -> None:
    lab = make_lab()
    lab.up(nodes=nodes, layout=layout, hosts=kind, kubernetes=True)
    first = 21 if layout == "b300" else 11
    site = written(lab, tmp_path / "mine", *[f"10.99.0.{first + number}" for number in range(nodes)])
    group = yaml.safe_load((tmp_path / "mine/group_vars/gb10_cluster.yml").read_text(encoding="utf-8"))
    assert group["gb10_fabric_topology"] == topology
    assert group["gb10_models_dir"] == "/srv/models"
    _new, deploy, ask = SHORT
    assert deploy == "ansible-playbook -i inventory/mine -K playbooks/site.yml"
    said = site.play("site")
    assert ranks == 1 or GOOD in said
    assert "kubectl" in said
    start, _chat, words = ask.partition(" playbooks/chat.yml ")
    assert start == "ansible-playbook -i inventory/mine"
    assert topology != "direct" or "tokens, the first after" in site.play("chat", *shlex.split(words))
    site.group = group["serving_plan_profile"]
    assert len(site.incarnations()) == ranks
    lab("down")


def test_a_ring_of_four_is_served_by_two_neighbours_with_what_was_written_and_then_by_all_hosts(
    make_lab: Callable[..., LabCommand], tmp_path: Path
) -> None:
    nodes = 4
    lab = make_lab()
    lab.up(nodes=nodes, layout="ring", kubernetes=True)
    discovered = lab.play("discover")
    assert discovered.count(" === ") == nodes
    assert changed(discovered) == 0
    site = written(lab, tmp_path / "mine", *[f"10.99.0.{11 + number}" for number in range(nodes)])
    assert "(rdma), by channels evidence, as expected" in site.play("site")
    assert len(site.incarnations()) == 2

    name = f"ring-of-{nodes}"
    profile = {**PROFILE, "name": name, "topology": {"nodes": nodes, "tp": nodes}}
    (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    whole = {
        "gb10_profile_dirs": [str(tmp_path)],
        "profile": name,
        "preset": "default",
        "serving_plan_nodes": [f"spark{number + 1}" for number in range(nodes)],
    }
    site.play("serve_stop", profile=site.group)
    told = " ".join(site.play("site", "--tags", "serve,verify", **whole).split())
    latest = max(lab.results.glob("**/transport.json"), key=lambda path: path.stat().st_mtime)
    verdict = json.loads(latest.read_text(encoding="utf-8"))
    assert (verdict["transport_class"], verdict["satisfied"]) == ("rdma", True)
    for rank in range(nodes):
        for peer in ((rank + 1) % nodes, (rank - 1) % nodes):
            assert re.search(rf"Cable {name}-{rank}-0 to {name}-{peer}-0 \([^)]+\): [\d.]+ MB by RDMA", told), told
    # the gate of every rank agrees
    site.group = name
    site.incarnations()
    lab("down")
