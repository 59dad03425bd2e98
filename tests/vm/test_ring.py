# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test three machines in a ring: RDMA on the cable of every pair, LLDP with the packaged lldpd, and transit in a chain.

The tests build on each other, in the order of this file.
"""

import json
import time
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import delta, moved_bytes
from test_fabric import MESSAGES, SIZE, counters, play
from vms import Vm, Vms

COVERS = ("roles/fabric_check", "plugins/module_utils/_fabric", "plugins/plugin_utils/_fabric", "lab/vm")

DISCOVER = Path(__file__).resolve().parents[2] / "playbooks" / "discover.yml"
# Card 0 of a machine is connected to card 1 of the next one; QEMU's cards are not called after cages.
CARDS = ("p1s0", "p2s0")
PAIRS = [(0, 1), (1, 2), (2, 0)]


def address(one: int, subnet: int, vm: int) -> str:
    """Return the address of a machine on the cable that begins at machine ``one``, counted from 0."""
    return f"10.10{one + 1}.{subnet}.{vm + 1}"


def write(machines: Vms, ends: tuple[tuple[Vm, str, str], tuple[Vm, str, str]]) -> None:
    """Write 8 MiB by RDMA from one end (machine, device, address) to the other."""
    gid = "$(basename $(grep -l {} /sys/class/infiniband/{}/ports/1/gids/* | tail -1))"
    programs = []
    for _vm, device, own in ends:
        mapped = "ffff:" + ":".join(f"{int(a):02x}{int(b):02x}" for a, b in [own.split(".")[:2], own.split(".")[2:]])
        programs.append(f"ib_write_bw -F -d {device} -x {gid.format(mapped, device)} -s {SIZE} -n {MESSAGES}")
    (client, _device, _own), (server, _other, far) = ends
    machines.ssh(server, f"nohup {programs[1]} > /tmp/server.log 2>&1 < /dev/null &")
    time.sleep(5)
    machines.ssh(client, f"{programs[0]} {far}")


def test_every_vf_of_a_ring_has_its_gid_and_every_pair_passes(ring: Vms) -> None:
    assert "12 directions on all rails and VFs pass with full-size packets" in play(ring)
    for number, vm in enumerate(ring.vms):
        for card, first in ((CARDS[0], number), (CARDS[1], (number - 1) % 3)):
            gids = ring.ssh(vm, f"cat /sys/class/infiniband/roce{card}v0/ports/1/gids/* 2>/dev/null")
            assert f"ffff:0a{101 + first:02x}:00{number + 1:02x}" in gids


def test_discovery_finds_every_cable_by_ping_and_a_switch_by_lldp(ring: Vms) -> None:
    said = play(ring, playbook=DISCOVER)
    for one, two in PAIRS:
        ends = sorted([f"vm{one + 1} enp1s0", f"vm{two + 1} enp2s0"])
        assert f"{ends[0]} === {ends[1]}" in said
    # A machine with a bridge announces itself as a switch. vm1 runs lldpd only for the moment; vm3 runs it already.
    vm1, vm2, vm3 = ring.vms
    ring.ssh(vm3, "systemctl start lldpd")
    ring.ssh(vm2, "ip link add br0 type bridge; systemctl start lldpd; sleep 5")
    said = play(ring, "--limit", "vm1,vm3", playbook=DISCOVER)
    left = [ring.ssh(vm, "systemctl is-active lldpd; ls -d /run/gb10-lldp*", ok=False) for vm in (vm1, vm3)]
    ring.ssh(vm2, "systemctl stop lldpd; ip link delete br0")
    ring.ssh(vm3, "systemctl stop lldpd")
    assert "vm1 enp1s0: sees vm2 port enp2s0" in said, said
    assert "vm3 enp2s0: sees vm2 port enp1s0" in said, said
    assert left == ["inactive", "active"]
    assert ring.ssh(vm1, "pgrep lldpd", ok=False) == ""


def test_rdma_of_every_pair_moves_on_its_own_cable(ring: Vms) -> None:
    for one, two in PAIRS:
        before = counters(ring)
        ends = [(ring.vms[one], f"roce{CARDS[0]}v0", address(one, 0, one)),
                (ring.vms[two], f"roce{CARDS[1]}v0", address(one, 0, two))]  # fmt: skip
        write(ring, (ends[0], ends[1]))
        moved = [delta(then["rdma"], now["rdma"]) for then, now in zip(before, counters(ring), strict=True)]
        used = {(vm.name, device) for vm, device, _own in ends}
        by_device = {
            (vm.name, device): moved_bytes(found, [device])
            for vm, found in zip(ring.vms, moved, strict=True)
            for device in found
        }
        print(by_device)
        assert {key for key, count in by_device.items() if count >= MESSAGES * SIZE} == used
        assert not any(count for key, count in by_device.items() if key not in used)


def test_the_ends_of_a_chain_reach_each_other_over_the_host_between(ring: Vms, tmp_path: Path) -> None:
    given = json.loads(ring.inventory().read_text())["gb10_nodes"]
    chain = {
        "gb10_fabric_topology": "chain",
        "gb10_fabric_rails": given["vars"]["gb10_fabric_rails"][:2],
        "gb10_fabric_transit": True,
    }
    overlay = tmp_path / "chain.yml"
    overlay.write_text(json.dumps({"gb10_nodes": {"hosts": {"vm1": {"gb10_fabric_pfs": {}}}, "vars": chain}}))
    first, between, last = ring.vms
    ring.ssh(between, "iptables -P FORWARD DROP")  # as Docker does
    # two cables with two VFs, and every PF of vm1 and vm3 to every PF of the other
    said = play(ring, "-i", str(overlay))
    assert "directions on all rails and VFs pass with full-size packets" in said
    far = address(1, 255, 2)
    assert "0% packet loss" in ring.ssh(first, f"ping -M do -s 8972 -c 3 -W 10 {far}")
    for vm, card in ((first, CARDS[0]), (last, CARDS[1])):
        ring.ssh(vm, f"rdma link add transit type rxe netdev en{card}")
    before = counters(ring)
    write(ring, ((first, "transit", address(0, 255, 0)), (last, "transit", far)))
    moved = [delta(then["rdma"], now["rdma"]) for then, now in zip(before, counters(ring), strict=True)]
    assert [moved_bytes(found) >= MESSAGES * SIZE for found in moved] == [True, False, True]
    print([moved_bytes(found) for found in moved])
