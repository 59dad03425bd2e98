# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric roles on real SR-IOV, real GID tables, real netplan, real reboots and real RDMA verbs.

The tests build on each other, in the order of the file: every boot under emulation costs most of a minute.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from vms import Vms

FABRIC = Path(__file__).resolve().parents[2] / "playbooks" / "fabric.yml"
NUMVFS = "/sys/class/net/enp1s0/device/sriov_numvfs"


def play(machines: Vms, *arguments: str) -> str:
    """Run the fabric playbook over ssh; what it said, unwrapped."""
    argv = ["ansible-playbook", "-i", str(machines.inventory()), str(FABRIC), *arguments]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def gids(machines: Vms) -> list[str]:
    """The GID tables of all machines' first VF."""
    script = "cat /sys/class/infiniband/rocep1s0v0/ports/1/gids/* 2>/dev/null | sort -u"
    return [machines.ssh(vm, script) for vm in machines.vms]


def mapped(number: int) -> str:
    """The GID of 10.100.0.<number>."""
    return f"0000:0000:0000:0000:0000:ffff:0a64:{number:04x}"


def test_machines_have_a_card_with_virtual_functions_and_none_made(machines: Vms) -> None:
    for vm in machines.vms:
        assert machines.ssh(vm, f"cat {NUMVFS} $(dirname {NUMVFS})/sriov_totalvfs").split() == ["0", "7"]


def test_gid_of_ipv4_appears_only_with_the_address(machines: Vms) -> None:
    play(machines, "--skip-tags", "netplan,fabric_check")
    for vm in machines.vms:
        assert machines.ssh(vm, f"cat {NUMVFS}") == "2"
    assert all(mapped(vm.number) not in table for vm, table in zip(machines.vms, gids(machines), strict=True))
    said = play(machines)
    assert all(mapped(vm.number) in table for vm, table in zip(machines.vms, gids(machines), strict=True))
    assert "4 directions on all rails and VFs pass with full-size packets" in said


def test_second_run_changes_nothing(machines: Vms) -> None:
    counts = re.findall(r"vm\d : ok=\d+ changed=(\d+) unreachable=0 failed=0", play(machines))
    assert counts == ["0", "0"]


def test_reboot_brings_all_back_without_ansible(machines: Vms) -> None:
    before = [machines.ssh(vm, "ip -br link show enp1s0v0 | tr -s ' ' | cut -d' ' -f3") for vm in machines.vms]
    machines.reboot()
    for vm, mac in zip(machines.vms, before, strict=True):
        shown = machines.ssh(
            vm, "ip -br link show enp1s0v0; ip -br -4 address show enp1s0v0; cat /sys/class/net/enp1s0v*/mtu"
        )
        assert mac in shown
        assert f"10.100.0.{vm.number}/24" in shown
        assert shown.split()[-2:] == ["9000", "9000"]
    assert all(mapped(vm.number) in table for vm, table in zip(machines.vms, gids(machines), strict=True))
    one = machines.vms[0]
    assert "0% packet loss" in machines.ssh(one, "ping -M do -s 8972 -c 3 -W 10 -I enp1s0v0 10.100.0.2")


def test_rdma_writes_between_the_vfs(machines: Vms) -> None:
    # soft-RoCE under emulation moves a fraction of a Gb/s; that data moves at all is what is shown
    floors = "fabric_check_half_floor=0.001 fabric_check_full_floor=0.001"
    said = play(machines, "-e", f"fabric_check_bandwidth=true {floors}")
    assert re.search(r"vm\d → vm\d: rail0 \d+\.\d Gb/s", said)
