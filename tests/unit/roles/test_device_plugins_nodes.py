# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which nodes get the label of the device plugins. The API creates an applied node that does not exist."""

from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

TEMPLATE = Path(__file__).resolve().parents[3] / "roles" / "device_plugins" / "templates" / "nodes.yml.j2"


def labelled(play: list[str]) -> list[str]:
    """Return the nodes to which a play of these hosts applies the label; the inventory has four."""
    hosts = ["spark1", "spark2", "spark3", "spark4"]
    known = {
        "device_plugins_nodes": hosts,
        "device_plugins_runtime_class": "nvidia",
        "hostvars": {host: {} for host in hosts} | {"spark2": {"k3s_node_name": "second"}},
        "ansible_play_hosts": play,
    }
    text = Templar(loader=DataLoader(), variables=known).template(trust_as_template(TEMPLATE.read_text()))
    return [item["metadata"]["name"] for item in yaml.safe_load_all(text) if item and item["kind"] == "Node"]


def test_a_run_with_limit_makes_no_node_of_a_host_that_has_not_joined() -> None:
    assert labelled(["spark1", "spark2"]) == ["spark1", "second"]


def test_a_server_outside_of_the_fabric_gets_no_label() -> None:
    assert labelled(["control", "spark1", "spark2", "spark3", "spark4"]) == ["spark1", "second", "spark3", "spark4"]
