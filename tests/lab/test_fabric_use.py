# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook fabric: planning, a run without changes, and IPv6 together with IPv4. One lab of two nodes."""

import re
from collections.abc import Callable

import pytest
from labcommand import LabCommand
from sitecommand import Site

COVERS = (
    "playbooks/fabric.yml",
    "playbooks/fabric_restore.yml",
    "roles/fabric_plan",
    "roles/fabric_check",
    "plugins/plugin_utils/_fabric",
    "plugins/module_utils/_fabric",
)


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site(make_lab())
    made.lab.up(nodes=2)
    made.before = {host: made.lab.fingerprint(host) for host in ("spark1", "spark2")}
    made.play("fabric")
    return made


def test_the_plan_is_a_table(cluster: Site) -> None:
    said = " ".join(cluster.play("fabric", "--tags", "plan").split())
    for rail, pf, device in ((0, "enp1s0f0np0", "rocep1s0f0"), (1, "enP2p1s0f0np0", "roceP2p1s0f0")):
        assert f"rail{rail} 10.10{rail}.0.0/16 {pf} {device}" in said
    for number in (1, 2):
        assert re.search(rf"spark{number} {number} 10\.100\.0\.{number}/24 … \S+ 10\.101\.0\.{number}/24", said), said
    assert list(cluster.lab.results.glob("fabric-plan*")) == []


def test_a_run_with_nothing_to_do_has_few_tasks(cluster: Site) -> None:
    recap = re.findall(r"^spark.* ok=(\d+) +changed=(\d+) .*skipped=(\d+)", cluster.play("fabric"), re.MULTILINE)
    assert len(recap) == 2
    # each task costs a round trip to every host
    assert all(int(ok) + int(skipped) < 20 and changed == "0" for ok, changed, skipped in recap)


def test_ipv6_addresses_are_added_beside_ipv4_and_removed_again(cluster: Site) -> None:
    rails = [
        {"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/16", "network6": "fd00:10:100::/48"},
        {"name": "rail1", "pf": "enP2p1s0f0np0", "network": "10.101.0.0/16", "network6": "fd00:10:101::/48"},
    ]
    cluster.play("fabric", gb10_fabric_rails=rails)
    shown = cluster.lab.shell("spark2", "ip -br address show dev enP2p1s0f0v1")
    assert "10.101.1.2/24" in shown
    assert "fd00:10:101:1::1:2/64" in shown
    cluster.play("fabric")
    assert "fd00:10:101" not in cluster.lab.shell("spark2", "ip -br address show dev enP2p1s0f0v1")


def test_restore_returns_the_earlier_addresses_and_mtu_and_a_second_restore_redoes_the_change(cluster: Site) -> None:
    def mtus() -> set[str]:
        return set(cluster.lab.shell("spark2", "cat /sys/class/net/enp1s0f0v*/mtu").split())

    cluster.play("fabric", gb10_fabric_mtu=8000)
    assert mtus() == {"8000"}
    for expected in ("9000", "8000"):
        cluster.play("fabric_restore")
        assert mtus() == {expected}
    cluster.play("fabric")
    assert mtus() == {"9000"}


def test_reset_takes_vfs_addresses_and_files_away(cluster: Site) -> None:
    cluster.play("reset", k3s_reset_confirm="yes")
    left = {host: cluster.left(host, r"^setting .* forwarding") for host in cluster.before}
    assert not any(left.values()), left
