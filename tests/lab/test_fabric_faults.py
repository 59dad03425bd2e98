# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inject faults while the fabric changes: afterwards a host is reachable and has the old or the new state.

The old state has MTU 9000, the new one 8000.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from labcommand import LabCommand

COVERS = ("roles/netplan", "plugins/module_utils/_fabric", "plugins/module_utils/_host")

NETPLAN = "/etc/netplan/60-gb10-fabric.yaml"
OLD, NEW = 9000, 8000
UNDO_SOON = ("-e", "netplan_undo_timeout=6")
HOST = "spark1"


def values(mtu: int) -> dict[str, int]:
    return {"gb10_fabric_mtu": mtu, "gb10_fabric_vf_count": 1}


class Fabric:
    """Run playbooks/fabric.yml in a lab, with one VF per rail."""

    def __init__(self, lab: LabCommand) -> None:
        self.lab = lab

    def play(self, mtu: int, *arguments: str, hosts: str = HOST) -> tuple[int, str]:
        """Run the playbook; return its exit status and its output without line breaks."""
        done = self.lab.run(*self.lab.playbook("fabric", "--limit", hosts, *arguments, **values(mtu)))
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def play_until(self, mtu: int, task: str, *arguments: str) -> None:
        """Start the playbook and kill it, with all its children, as soon as a task begins."""
        self.lab.killed("fabric", re.escape(task), "--limit", HOST, *arguments, **values(mtu))

    def while_pending(self, begin: str, end: str) -> None:
        """Run ``begin`` on the host when the new netplan file is in place, and ``end`` when the change is settled."""
        script = (
            f"until grep -q 'mtu: {NEW}' {NETPLAN}; do sleep 0.02; done; {begin};"
            f" while [ -e /var/lib/gb10/netplan/pending.json ]; do sleep 0.1; done; {end}"
        )
        self.lab.shell(HOST, f'systemd-run --quiet --collect bash -c "{script}"')

    def mtu(self, host: str) -> int:
        """Return the MTU of the file and of all interfaces; fail if they differ or a temporary file is left."""
        links = json.loads(self.lab.shell(host, "ip -j address"))
        fabric = {link["ifname"]: link for link in links if re.match("en(p|P2p)1s0f0", link["ifname"])}
        found = {link["mtu"] for link in fabric.values()}
        found |= {int(value) for value in re.findall(r"mtu: (\d+)", self.lab.shell(host, f"cat {NETPLAN}"))}
        assert len(found) == 1, f"{host} is between two states: {found}, {links}"
        addresses = {name: [a["local"] for a in link["addr_info"]] for name, link in fabric.items() if "v0" in name}
        number = host.removeprefix("spark")
        assert addresses == {"enp1s0f0v0": [f"10.100.0.{number}"], "enP2p1s0f0v0": [f"10.101.0.{number}"]}
        left = self.lab.shell(
            host,
            "find /etc/netplan /etc/sysctl.d /etc/systemd/system /var/lib/gb10 -name '*gb10-old' -o"
            " -name '*gb10-new' -o -name 'gb10-netplan-undo*' -o -name pending.json",
        )
        assert left == "", f"{host}: left behind: {left}"
        return found.pop()

    def eventually_undone(self, within: float = 25) -> None:
        """Wait until the host has rolled back the change by itself."""
        end = time.monotonic() + within
        while self.lab.shell(HOST, "ls /var/lib/gb10/netplan/pending.json 2>/dev/null || true"):
            assert time.monotonic() < end, f"{HOST} still waits: {self.lab.shell(HOST, 'systemctl list-timers')}"
            time.sleep(0.5)
        self.settled()
        assert self.outcome()["outcome"] == "undone"
        assert self.mtu(HOST) == OLD

    def settled(self) -> None:
        """Wait until no change is pending."""
        self.lab.shell(HOST, "while [ -e /var/lib/gb10/netplan/pending.json ]; do sleep 0.1; done")
        # the host deletes pending.json before it removes the undo service
        self.lab.shell(HOST, "while [ -e /etc/systemd/system/gb10-netplan-undo.service ]; do sleep 0.1; done")

    def outcome(self) -> dict[str, str]:
        """Return how the last change ended."""
        return json.loads(self.lab.shell(HOST, "cat /var/lib/gb10/netplan/last.json"))


@pytest.fixture(scope="module")
def lab_fabric(make_lab: Callable[[], LabCommand]) -> Fabric:
    """Two nodes with a fabric."""
    lab = make_lab()
    lab.up(nodes=2)
    fabric = Fabric(lab)
    status, said = fabric.play(OLD, hosts="all")
    assert status == 0, said
    return fabric


@pytest.fixture
def fabric(lab_fabric: Fabric) -> Iterator[Fabric]:
    """Return the fabric in its old state, and restore that state after the test."""
    yield lab_fabric
    if lab_fabric.mtu(HOST) != OLD:
        status, said = lab_fabric.play(OLD)
        assert status == 0, said


def test_second_run_changes_nothing_with_few_tasks(fabric: Fabric) -> None:
    status, said = fabric.play(OLD, hosts="all")
    assert status == 0, said
    counts = re.findall(r"spark\d : ok=(\d+) changed=(\d+) unreachable=0 failed=0 skipped=(\d+)", said)
    assert len(counts) == 2, said
    print(f"tasks that each host saw: {[f'{ok} and {skipped} skipped' for ok, _changed, skipped in counts]}")
    for ok, changed, skipped in counts:
        assert int(changed) == 0
        assert int(ok) + int(skipped) < 20


def test_a_confirmed_change_holds(fabric: Fabric) -> None:
    status, said = fabric.play(NEW)
    assert status == 0, said
    assert fabric.mtu(HOST) == NEW
    assert fabric.outcome()["outcome"] == "confirmed"


def test_controller_killed_before_it_confirms(fabric: Fabric) -> None:
    fabric.play_until(NEW, "Confirm the change]", *UNDO_SOON)
    fabric.eventually_undone()
    status, said = fabric.play(NEW)
    assert status == 0, said
    assert "it was not confirmed in time, or the host was restarted; the old state is back" in said


def test_host_rebooted_before_the_confirmation(fabric: Fabric) -> None:
    fabric.play_until(NEW, "Confirm the change]")
    fabric.lab("reboot", HOST)
    fabric.lab.shell(HOST, "systemctl is-system-running --wait")
    fabric.eventually_undone()


HANG = "printf '#!/bin/sh\nsleep 600\n' > /run/hang; chmod 755 /run/hang; mount --bind /run/hang /usr/bin/ip"
UNDO_FAULTS = {
    "ip hangs": (HANG, "umount /usr/bin/ip"),
    "D-Bus hangs": ("pkill --signal STOP --exact dbus-daemon", "pkill --signal CONT --exact dbus-daemon"),
    "read-only /etc": ("mount --bind /etc /etc; mount -o remount,bind,ro /etc", "umount /etc"),
    "reboot in the middle": (HANG, ""),
}


@pytest.mark.parametrize("fault", UNDO_FAULTS)
def test_an_undo_that_fails_is_tried_again_until_the_old_state_is_back(fabric: Fabric, fault: str) -> None:
    begin, end = UNDO_FAULTS[fault]
    fabric.lab.shell(HOST, "journalctl --rotate --vacuum-time=1s --quiet 2>&1")
    fabric.play_until(NEW, "Confirm the change]", "-e", "netplan_undo_timeout=10")
    fabric.lab.shell(HOST, begin)
    phase = "grep -q undoing /var/lib/gb10/netplan/pending.json"
    said = "journalctl --unit gb10-netplan-undo.service | grep -q 'the undo is not complete'"
    fabric.lab.shell(HOST, f"until {said if end else phase}; do sleep 0.5; done")
    if end:
        fabric.lab.shell(HOST, end)
    else:
        fabric.lab("reboot", HOST)
        fabric.lab.shell(HOST, "systemctl is-system-running --wait")
    fabric.eventually_undone(within=120)


# In the order of a run; a play of checks, one that changes the host, and the proof.
INTERRUPTED = [
    "Read the ports of every host",
    "Check | Let no other run change this host",
    "Check | Check that the network change can be made",
    "Create the virtual functions",
    "Apply | Say what happens if this run ends now",
    "Apply | Apply the fabric's addresses and MTU",
    "Confirm | Confirm the change over a new connection",
    "Let other runs change this host again",
    "Set or remove RoCE's classes",
    "Ping every peer on every VF",
]


@pytest.mark.parametrize("task", INTERRUPTED)
def test_ctrl_c_leaves_the_old_or_the_new_state_and_no_lock(fabric: Fabric, task: str) -> None:
    with fabric.lab.reached("fabric", task, "--limit", HOST, *UNDO_SOON, **values(NEW)) as running:
        os.killpg(running.pid, signal.SIGINT)
    fabric.settled()
    assert fabric.mtu(HOST) in (OLD, NEW)
    status, said = fabric.play(NEW)
    assert status == 0, said
    assert fabric.mtu(HOST) == NEW


def test_of_two_runs_at_once_the_second_is_refused_and_the_first_goes_on(fabric: Fabric) -> None:
    with fabric.lab.reached("fabric", "Create the virtual functions", "--limit", HOST, **values(NEW)) as first:
        os.killpg(first.pid, signal.SIGSTOP)
        status, said = fabric.play(OLD)
        os.killpg(first.pid, signal.SIGCONT)
    assert status != 0
    assert "Another run changes this host" in said
    assert "playbook fabric, at most until" in said
    assert first.returncode == 0
    assert fabric.mtu(HOST) == NEW


def test_no_new_connection_after_the_change(fabric: Fabric) -> None:
    fabric.while_pending("systemctl stop ssh.socket ssh.service", "systemctl start ssh.service")
    status, said = fabric.play(NEW, *UNDO_SOON)
    assert status != 0
    # on a slow machine the host rolls back and starts ssh again before the controller tries to connect
    assert "unreachable=1" in said or "can't be confirmed, the old state holds" in said
    fabric.eventually_undone()


def test_gateway_unreachable_after_the_change(fabric: Fabric) -> None:
    gateway = "10.99.0.1"  # also the controller's address, so the management link is down until the change is settled
    assert f"default via {gateway}" in fabric.lab.shell(HOST, "ip route")
    rule = f"type filter hook input priority 0; ip saddr {gateway} drop;"
    fabric.while_pending(f"nft 'add table inet cut {{ chain in {{ {rule} }}; }}'", "nft delete table inet cut")
    status, said = fabric.play(NEW)
    assert status != 0
    assert f"gateway {gateway} answered before and does not answer now" in said
    assert "the old state is back" in said
    assert fabric.mtu(HOST) == OLD


def test_netplan_refuses_the_files(fabric: Fabric) -> None:
    fabric.lab.shell(HOST, "echo 'network: {ethernets: {enP7s7: {mtu: wide}}}' > /etc/netplan/99-broken.yaml")
    try:
        status, said = fabric.play(NEW)
    finally:
        fabric.lab.shell(HOST, "rm /etc/netplan/99-broken.yaml")
    assert status != 0
    assert "Nothing was changed. netplan already refuses the files that this host has now" in said
    assert "99-broken.yaml" in said
    assert fabric.mtu(HOST) == OLD


@pytest.mark.parametrize("directory", ["/etc/netplan", "/var/lib/gb10/netplan"])
def test_disk_full_while_writing(fabric: Fabric, directory: str) -> None:
    fabric.lab.shell(
        HOST,
        f"cp -a {directory} /run/kept; mount -t tmpfs -o size=1m tmpfs {directory};"
        f" cp -a /run/kept/. {directory}; cat /dev/zero > {directory}/fill 2>/dev/null || true",
    )
    try:
        status, said = fabric.play(NEW)
    finally:
        fabric.lab.shell(HOST, f"umount {directory}; rm -r /run/kept")
    assert status != 0
    assert "No space left on device" in said
    assert "network was not changed" in said
    assert fabric.mtu(HOST) == OLD


def test_port_is_missing(fabric: Fabric) -> None:
    fabric.lab.shell(HOST, "ip link set enP2p1s0f0np0 down; ip link set enP2p1s0f0np0 name away0")
    try:
        status, said = fabric.play(NEW, "-e", json.dumps({"gb10_pf_totalvfs": {}}))
    finally:
        fabric.lab.shell(HOST, "ip link set away0 name enP2p1s0f0np0; ip link set enP2p1s0f0np0 up")
    assert status != 0
    assert "enP2p1s0f0np0" in said
    assert fabric.mtu(HOST) == OLD


def test_vf_in_use_by_a_pod(fabric: Fabric) -> None:
    fabric.lab.shell(
        HOST,
        "ip netns add cni-fault; ip link set enp1s0f0v0 alias enp1s0f0v0;"
        " ip link set enp1s0f0v0 netns cni-fault name net1",
    )
    try:
        status, said = fabric.play(OLD, "-e", json.dumps({"gb10_fabric_vf_count": 2}))
        assert fabric.lab.shell(HOST, "ip -n cni-fault -br link show net1")
    finally:
        fabric.lab.shell(HOST, "ip -n cni-fault link set net1 netns 1 name enp1s0f0v0; ip netns delete cni-fault")
        fabric.play(OLD)
    assert status != 0
    assert "cni-fault" in said
    assert "sriov.vf.in_use" in said
    assert fabric.mtu(HOST) == OLD


def test_the_plan_names_the_management_link(fabric: Fabric) -> None:
    fabric.lab.shell(HOST, "ip route add default via 10.100.0.2 dev enp1s0f0v0 metric 5000")
    try:
        status, said = fabric.play(NEW)
    finally:
        fabric.lab.shell(HOST, "ip route delete default dev enp1s0f0v0")
    assert status != 0
    assert "it carries the default route of this host" in said
    assert fabric.mtu(HOST) == OLD


UNDECLARED = "fd00:99::11/64"


def test_an_address_that_no_file_declares_survives_success_and_undo(fabric: Fabric) -> None:
    """``netplan apply`` removed such an address, and the undo that followed did not bring it back."""

    def is_there() -> bool:
        return UNDECLARED in fabric.lab.shell(HOST, "ip -6 -br address show dev enP7s7")

    fabric.lab.shell(HOST, f"ip address add {UNDECLARED} dev enP7s7 nodad; ip rule add from 198.51.100.7 table 52")
    try:
        status, said = fabric.play(NEW)
        assert status == 0, said
        assert is_there()
        fabric.play_until(OLD, "Confirm the change]", *UNDO_SOON)
        fabric.settled()
        assert fabric.mtu(HOST) == NEW
        assert is_there()
        assert "198.51.100.7" in fabric.lab.shell(HOST, "ip rule")
    finally:
        fabric.lab.shell(HOST, f"ip address del {UNDECLARED} dev enP7s7; ip rule del from 198.51.100.7 table 52")


def test_an_address_that_is_lost_during_the_change_is_named_and_not_reported_as_restored(fabric: Fabric) -> None:
    fabric.lab.shell(HOST, f"ip address add {UNDECLARED} dev enP7s7 nodad")
    fabric.while_pending(f"ip address del {UNDECLARED} dev enP7s7", "true")
    status, said = fabric.play(NEW)
    assert status != 0
    assert f"the address {UNDECLARED} of enP7s7 is gone" in said
    assert "the old files are back, but" in said
    assert "the old state is back" not in said
    assert fabric.mtu(HOST) == OLD


def test_after_a_reboot_the_fabric_and_the_management_link_are_back(fabric: Fabric) -> None:
    fabric.lab("reboot", HOST)
    fabric.lab.shell(HOST, "systemctl is-system-running --wait; networkctl list >/dev/null")
    end = time.monotonic() + 20
    while True:
        shown = fabric.lab.shell(HOST, "ip -br -4 address; ip route show default")
        if all(address in shown for address in ("10.99.0.11/24", "10.100.0.1/24", "10.101.0.1/24", "default via")):
            break
        assert time.monotonic() < end, shown
        time.sleep(0.5)
    status, said = fabric.play(OLD)
    assert status == 0, said
    assert fabric.mtu(HOST) == OLD
