# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that what a host has is compared with the inventory, and that each difference is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.reality import about_ports, check_hosts
from fabric_samples import fabric

VARIABLES = {
    host: {**own, "ansible_host": f"192.168.10.1{number}", "gb10_management_interface": "enP7s7"}
    for number, (host, own) in enumerate(fabric(2).items(), start=1)
}
PLAN = plan_fabric(VARIABLES)[0]
MANAGED = {"lo": [], "enP7s7": ["192.168.10.11/24"], "wlP9s9": ["192.168.20.7/24"]}
DEPLOYED = MANAGED | {vf.netdev: [f"{vf.address}/{vf.prefix}"] for vf in PLAN.hosts["spark1"].vfs}


def differences(known: Mapping[str, Sequence[str]], **changes: object) -> list[Finding]:
    variables = {**VARIABLES, "spark1": {**VARIABLES["spark1"], **changes}}
    return list(check_hosts(PLAN, variables, {"spark1": known}))


@pytest.mark.parametrize("known", [MANAGED, DEPLOYED])
def test_a_host_like_the_inventory_has_no_difference_before_and_after_it_was_deployed(
    known: Mapping[str, Sequence[str]],
) -> None:
    assert differences(known) == []


def test_a_management_interface_that_does_not_exist_is_named_with_the_right_one() -> None:
    (finding,) = differences(MANAGED, gb10_management_interface="eth0")
    assert (finding.rule, finding.severity, finding.value) == ("cabling.management", "error", "eth0")
    assert finding.reason == "the host has no such interface; 192.168.10.11 is the address of enP7s7"
    assert finding.remedy == "Set gb10_management_interface of spark1 to enP7s7."


def test_a_management_interface_without_the_address_of_the_inventory_is_named() -> None:
    (finding,) = differences(MANAGED, gb10_management_interface="wlP9s9")
    assert "Ansible reaches the host elsewhere; 192.168.10.11 is the address of enP7s7" in finding.reason


def test_a_host_that_is_reached_by_name_is_checked_for_the_interface_only() -> None:
    assert differences(MANAGED, ansible_host="spark1.local") == []
    (finding,) = differences(MANAGED, ansible_host="spark1.local", gb10_management_interface="eth0")
    assert "`ip -br address` lists its interfaces" in finding.reason


def test_the_node_id_with_which_a_host_was_set_up_is_named() -> None:
    other = {name: [own.replace(".1/", ".7/") for own in found] for name, found in DEPLOYED.items()}
    (finding,) = differences(other)
    assert (finding.rule, finding.value) == ("cabling.address", "10.100.0.7/24")
    assert "8 of 8 VFs" in finding.reason
    assert finding.reason.endswith("set up as gb10_node_id 7, not 1")


def test_only_findings_about_the_hosts_own_ports_are_repeated() -> None:
    told = {"gb10_pf_totalvfs": {"enp1s0f0np0": 2}, "gb10_fabric_vf_count": 4, "gb10_fabric_topology": "ring"}
    findings = plan_fabric({host: own | told for host, own in fabric(2).items()})[1]
    rules = {finding.rule for finding in about_ports(findings)}
    assert rules == {"fabric.pf.unknown", "fabric.vf_count.hardware"}
    assert "fabric.topology.ring" in {finding.rule for finding in findings}
