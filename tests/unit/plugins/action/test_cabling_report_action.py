# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the report on the cabling of all hosts."""

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gb10.cluster.plugins.action.cabling_report import ActionModule
from fabric_samples import fabric

PORT = {"name": "enp1s0f0np0", "carrier": True, "speed_mbps": 200000}


def report(*read: str, rails: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return the report of two hosts on one link, of which those in ``read`` were read; ``more`` are facts."""
    given = {"gb10_fabric_rails": rails} if rails else {}
    hostvars = {
        host: {
            **values,
            "ansible_facts": {
                "gb10_cabling": [{**PORT, "mac": host, "neighbours": ["spark1", "spark2"]}],
                "gb10_addresses": {"enP7s7": [f"192.168.10.1{host[-1]}/24"]},
                **more,
            },
        }
        for host, values in fabric(2, gb10_fabric_vf_count=4, **given).items()
    }
    for host in hostvars.keys() - set(read):
        hostvars[host]["ansible_facts"] = {}
    action = ActionModule.__new__(ActionModule)
    # strings of an inventory file, which PyYAML cannot write
    names = DataLoader().load(f"[{', '.join(hostvars)}]")
    return action.act({"hosts": names}, {"hostvars": hostvars, "ansible_play_hosts_all": names})


def test_hosts_cabled_like_the_inventory_match() -> None:
    result = report("spark1", "spark2")
    assert result["matches"]
    assert result["drawing"] == ["spark1 cage 0 === spark2 cage 0 (enp1s0f0np0 - enp1s0f0np0; 200 Gb/s)"]
    assert result["svg"].startswith("<svg ")
    (rail,) = result["fitting"]["group"]["gb10_fabric_rails"]
    assert rail == {"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/16"}
    assert yaml.safe_load(result["map"])["gb10_nodes"]["hosts"]["spark2"] == {
        "gb10_fabric_topology": "direct",
        "gb10_fabric_rails": [rail],
        "gb10_fabric_pfs": {},
    }


def test_a_host_that_was_not_read_does_not_match() -> None:
    result = report("spark1")
    assert (result["matches"], result["map"]) == (False, "")
    assert ("cabling.unread", "spark2") in [(one["rule"], one["where"]) for one in result["findings"]]


@pytest.mark.parametrize(("hosts", "written"), [(["spark1", "spark2"], True), (["spark2", "spark3"], False), (7, True)])
def test_a_map_of_a_part_of_the_hosts_is_not_written(hosts: Any, written: bool) -> None:
    rail = {"name": "a", "pf": "enp1s0f0np0", "network": "10.1.0.0/16", "hosts": hosts}
    assert bool(report("spark1", "spark2", rails=[rail])["map"]) is written


def test_a_port_that_offers_fewer_vfs_than_the_inventory_wants_does_not_match() -> None:
    result = report("spark1", "spark2", gb10_pf_totalvfs={"enp1s0f0np0": 1, "enP2p1s0f0np0": 1})
    assert not result["matches"]
    assert "fabric.vf_count.hardware" in [one["rule"] for one in result["findings"]]
