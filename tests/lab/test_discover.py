# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Discover cables, name miswired ones, and deploy with the inventories that inventory_new writes.

No Kubernetes; test_inventory_new.py runs the whole playbook site. Every cable of a ring is its own layer-2 segment.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from cables import cables_of, plug
from documented import commands
from labcommand import CHECKOUT, LabCommand, changed
from sitecommand import Site

COVERS = (
    "playbooks/discover.yml",
    "roles/fabric_discover",
    "plugins/modules/cabling_info.py",
    "plugins/action/cabling_report.py",
    "plugins/action/inventory_new.py",
)

OVERLAY = CHECKOUT / "inventory" / "lab"
SITE = ("site", "--tags", "plan,preflight,fabric")
(DOCUMENTED,) = {command for _page, command in commands("discover")}


def write_inventory(lab: LabCommand, path: Path, *addresses: str, documented: str = DOCUMENTED) -> str:
    """Run inventory_new as documented, for these addresses and with the plumbing of the lab; its output."""
    ssh = lab.state / "ssh"
    plumbing = {
        "ansible_become_password": (lab.state / "become-password").read_text(encoding="utf-8"),
        "ansible_ssh_private_key_file": str(ssh / "id_ed25519"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={ssh / 'known_hosts'}",
        "gb10_sysfs_root": "/run/gb10-lab/sys",
        "inventory_new_path": str(path),
    }
    typed = re.sub(r"-i \S+,", f"-i {','.join(addresses)},", documented).replace("-bK", "-b")
    done = lab.run(CHECKOUT / ".venv" / "bin" / "ansible-playbook", *typed.split()[1:], "-e", json.dumps(plumbing))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabCommand]) -> LabCommand:
    lab = make_lab("3x-gb10-ring", "lab")
    lab.up(nodes=3, layout="ring")
    return lab


PLANNED = cables_of(3)
SWAPPED = cables_of(3, 2)
LOOSE = {f"{port}": "" for port, cable in PLANNED.items() if cable.startswith("ring31")}


@pytest.mark.parametrize(
    ("cables", "told"),
    [
        (
            SWAPPED,
            ["[cabling.same_cage]", "spark1 cage 0 - spark2 cage 0", "spark2 cage 1 - spark3 cage 1",
             "the plan joins spark1 enp1s0f0np0 and spark2 enp1s0f1np1",
             "but spark1 enp1s0f0np0 sees spark2 enp1s0f0np0"],
        ),
        (
            {"spark2-r2": "ring12b", "spark2-r3": "ring12a"},
            ["[cabling.halves]", "enp1s0f0np0 - enP2p1s0f1np1, enP2p1s0f0np0 - enp1s0f1np1"],
        ),
        (
            LOOSE | {"spark1-r0": "", "spark1-r1": "", "spark1-r2": "ring12a", "spark1-r3": "ring12b"},
            ["spark1 enp1s0f0np0 has no link, and spark2 enp1s0f1np1 sees spark1 enp1s0f1np1"],
        ),
        (
            LOOSE | {"spark3-r2": "", "spark3-r3": "", "spark1-r2": "ring23a", "spark1-r3": "ring23b"},
            ["[cabling.double]", "2 cables join spark1 and spark2"],
        ),
        (
            LOOSE | {"spark2-r2": "", "spark2-r3": "", "spark1-r2": "ring12a", "spark1-r3": "ring12b"},
            ["[cabling.loop]", "spark1 cage 0 === spark1 cage 1", "spark1 enp1s0f0np0 sees spark1 enp1s0f1np1"],
        ),
        ({"spark3-r1": ""}, ["[cabling.half_missing]", "spark3 enP2p1s0f0np0 has no link"]),
    ],
    ids=["same cage", "crossed halves", "other cage", "two cables between two hosts", "one host", "pulled half"],
)  # fmt: skip
def test_a_miswired_ring_is_named(ring: LabCommand, cables: Mapping[str, str], told: list[str]) -> None:
    plug(ring, cables)
    try:
        said = " ".join(ring.play("discover", check=False).split())
    finally:
        plug(ring, PLANNED)
    assert "[cabling.inventory]" in said
    assert not [words for words in told if words not in said], said


def test_a_pair_at_half_speed_is_named(ring: LabCommand) -> None:
    for host, ports in (("spark1", ("enp1s0f0np0", "enP2p1s0f0np0")), ("spark2", ("enp1s0f1np1", "enP2p1s0f1np1"))):
        for port in ports:
            ring.shell(host, f"echo 100000 > /run/gb10-lab/sys/class/net/{port}/speed")
    said = " ".join(ring.play("discover").split())
    assert said.count("[cabling.slow]") == 4
    assert "slower than other ports, which have 200 Gb/s" in said


def test_health_tells_what_happened_since_the_previous_run(ring: LabCommand) -> None:
    health = ("fabric", "--tags", "health")
    said = ring.play(*health)
    assert "the first snapshot since the host started" in said
    assert changed(said) == 0
    plug(ring, {"spark1-r0": ""})
    plug(ring, PLANNED)
    counter = "/run/gb10-lab/sys/class/infiniband/rocep1s0f0/ports/1/hw_counters/out_of_sequence"
    ring.shell("spark3", f"echo 7 > {counter}")
    said = " ".join(ring.play(*health).split())
    assert said.count("[health.link]") == 1, "the lab's cable is a switch, so the other end keeps its link"
    assert said.count("[health.errors]") == 1
    assert "out_of_sequence +7" in said
    assert "[health." not in ring.play(*health)


@pytest.mark.parametrize(("layout", "cables", "rails"), [("rings", 6, 12), ("switches", 4, 4)])
def test_two_rings_and_two_switches_are_deployed_with_the_inventory_that_was_written(
    make_lab: Callable[..., LabCommand], tmp_path: Path, layout: str, cables: int, rails: int
) -> None:
    lab = make_lab()
    lab.up(nodes=6, layout=layout)
    said = write_inventory(lab, tmp_path / "mine", *[f"10.99.0.{10 + number}" for number in (6, 5, 4, 3, 2, 1)])
    assert said.count(" === " if layout == "rings" else "switch: ") == cables
    assert "[cabling." not in said
    group = yaml.safe_load((tmp_path / "mine/group_vars/gb10_cluster.yml").read_text(encoding="utf-8"))
    assert (group["gb10_fabric_topology"], len(group["gb10_fabric_rails"])) == ("mixed", rails)
    # every host reaches two others on two rails with two VFs
    written = Site(LabCommand(lab.state, (tmp_path / "mine", OVERLAY)))
    assert "48 directions on all rails and VFs pass with full-size packets" in written.play(*SITE)
    assert layout == "switches" or changed(written.play(*SITE)) == 0
    lab("down")
