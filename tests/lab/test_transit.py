# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the hosts of a ring of four reach each other over the hosts between them, and undo it. No Kubernetes."""

import re
from collections.abc import Callable

import pytest
from labcommand import LabCommand, changed, recap
from sitecommand import Site

COVERS = ("plugins/module_utils/_fabric", "plugins/plugin_utils/_fabric", "roles/netplan")

HOSTS = [f"spark{number}" for number in range(1, 5)]
ON = {"gb10_fabric_transit": True}
# spark3 has no cable to spark1; its addresses are those of its cables to spark2 and to spark4
FAR = ["10.104.255.3", "10.105.255.3", "10.106.255.3", "10.107.255.3"]
PING = f"ping -n -q -c 2 -W 2 -M do -s 8972 {FAR[0]}"
PFS = {"enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"}
FIREWALL = "iptables -S | grep -v GB10-TRANSIT"


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Site:
    made = Site(make_lab())
    made.lab.up(nodes=4, layout="ring")
    made.play("fabric")
    # other programs have rules of their own
    foreign = "iptables -N FOREIGN; iptables -A FOREIGN -s 198.51.100.7 -j DROP; iptables -A FORWARD -j FOREIGN"
    made.lab.shell("spark2", foreign)
    made.before = {host: made.lab.fingerprint(host) for host in HOSTS}
    return made


def test_check_mode_shows_the_change_and_makes_none(site: Site) -> None:
    said = site.play("fabric", "--check", "--diff", **ON)
    assert "+        - {to: 10.104.255.0/24, via: 10.100.255.2}" in said
    assert not any(site.left(host, "^$") for host in HOSTS)
    assert "GB10-TRANSIT" not in site.lab.shell("spark1", "iptables -S")


def test_hosts_without_a_common_cable_reach_each_other_although_forwarded_packets_are_dropped(site: Site) -> None:
    rules = site.lab.shell("spark2", FIREWALL)
    assert "-P FORWARD DROP" in rules
    said = site.play("fabric", **ON)
    assert "80 directions on all rails and VFs pass with full-size packets" in said
    for address in FAR:
        # TCP, not only a ping: the far host answers from its ssh server
        assert site.lab.shell("spark1", f"exec 3<>/dev/tcp/{address}/22; head -c 7 <&3") == "SSH-2.0"
    assert site.lab.shell("spark2", FIREWALL) == rules
    forwards = site.lab.shell("spark2", "grep -l 1 /proc/sys/net/ipv4/conf/*/forwarding").split()
    assert {path.split("/")[-2] for path in forwards} == PFS


def test_restore_undoes_transit_and_a_second_restore_redoes_it(site: Site) -> None:
    site.play("fabric_restore")
    # only the records of the changes differ
    left = {host: site.left(host, "^/var/lib/gb10/netplan/") for host in HOSTS}
    assert not any(left.values()), left
    assert "GB10-TRANSIT" not in site.lab.shell("spark2", "iptables -S")
    site.play("fabric_restore")
    site.lab.shell("spark1", PING)


def test_a_second_run_changes_nothing_and_lost_rules_return(site: Site) -> None:
    assert changed(site.play("fabric", **ON)) == 0
    site.lab.shell("spark2", "iptables -D FORWARD -j GB10-TRANSIT")
    counts = recap(site.play("fabric", **ON), "changed")
    assert {host for host, count in counts.items() if count} == {"spark2"}


def test_transit_is_back_after_a_restart_of_the_host_between(site: Site) -> None:
    site.lab("reboot", "spark2")
    assert "-P FORWARD DROP" in site.lab.shell("spark2", "iptables -S FORWARD")
    site.lab.shell("spark1", PING)


def test_without_the_option_addresses_routes_and_rules_are_removed(site: Site) -> None:
    site.play("fabric")
    for host in HOSTS:
        left = site.lab.shell(host, "ip route; ip -br address; iptables -S; ls /etc/systemd/system")
        assert not re.search(r"10\.\d+\.255\.|GB10-TRANSIT|gb10-transit", left), left
