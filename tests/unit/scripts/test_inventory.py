# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from _inventory import Inventory, InventoryError, expand_range

NESTED: dict[str, Any] = {
    "all": {"vars": {"level": "all", "only_all": 1}},
    "gb10_cluster": {
        "vars": {"level": "cluster", "only_cluster": 1},
        "children": {
            "gb10_servers": {"hosts": {"spark1": None}, "vars": {"level": "servers"}},
            "gb10_nodes": {"hosts": {"spark[1:2]": {"x": 1}, "spark3": {"level": "host"}}, "vars": {"nodes": 1}},
        },
    },
}


def merged(group_vars: dict[str, Any] | None = None, host_vars: dict[str, Any] | None = None) -> dict[str, Any]:
    inventory = Inventory()
    inventory.add_yaml(NESTED, "hosts.yml")
    return inventory.merged("gb10_nodes", group_vars or {}, host_vars or {})


def test_nearer_groups_and_hosts_win() -> None:
    result = merged()
    assert list(result) == ["spark1", "spark2", "spark3"]
    assert [result[host]["level"] for host in result] == ["servers", "cluster", "host"]
    assert result["spark2"] == {"level": "cluster", "only_all": 1, "only_cluster": 1, "nodes": 1, "x": 1}


def test_directories_win_over_the_inventory_at_the_same_level() -> None:
    result = merged({"all": {"level": "dir-all"}, "gb10_nodes": {"level": "dir"}}, {"spark3": {"level": "dir-host"}})
    assert [result[host]["level"] for host in result] == ["dir", "dir", "dir-host"]


def test_what_ansible_inventory_prints_is_read() -> None:
    inventory = Inventory()
    inventory.add_list(
        {
            "_meta": {"hostvars": {"spark1": {"gb10_node_id": 1}}},
            "all": {"children": ["ungrouped", "gb10_cluster"]},
            "gb10_cluster": {"children": ["gb10_nodes"]},
            "gb10_nodes": {"hosts": ["spark1", "spark2"]},
        },
        "standard input",
    )
    assert inventory.merged("gb10_nodes", {}, {}) == {"spark1": {"gb10_node_id": 1}, "spark2": {}}
    assert inventory.hosts_of("gb10_cluster") == ["spark1", "spark2"]
    assert inventory.merged("no_such_group", {}, {}) == {}


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("spark", ["spark"]),
        ("spark[1:3]", ["spark1", "spark2", "spark3"]),
        ("n[08:10].lan", ["n08.lan", "n09.lan", "n10.lan"]),
        ("n[1:5:2]", ["n1", "n3", "n5"]),
        ("[a:b][1:2]", ["a1", "a2", "b1", "b2"]),
    ],
)
def test_ranges(pattern: str, hosts: list[str]) -> None:
    assert expand_range(pattern) == hosts


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (["spark1"], "not a mapping of groups"),
        ({"gb10_nodes": {"host": {}}}, "takes hosts, children and vars only"),
        ({"gb10_nodes": {"hosts": ["spark1"]}}, "hosts of group gb10_nodes is not a mapping"),
        ({"gb10_nodes": {"hosts": {"spark[a:2]": None}}}, "host range"),
        ({"a": {"children": {"b": {"children": {"a": None}}}}}, "its own descendant"),
    ],
)
def test_a_wrong_shape_is_told(data: Any, said: str) -> None:
    inventory = Inventory()
    with pytest.raises(InventoryError, match=said):
        inventory.add_yaml(data, "hosts.yml")
        inventory.merged("a", {}, {})
