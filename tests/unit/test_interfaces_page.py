# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the page of interfaces with plans and labels, and run its examples, which need jmespath and netaddr."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.module_utils._kube import labels
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import fabric
from serving_samples import plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "interfaces.md"


def test_the_documented_queries_of_plans_give_what_their_names_say() -> None:
    (block,) = re.findall(r"```yaml\n(- name: Show which.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    serving, planned = plan().as_dict(), plan_fabric(fabric(4))[0].as_dict()
    facts = {"ansible_facts": {"gb10_serving_plan": serving, "gb10_fabric_plan": planned}}
    templar = Templar(loader=DataLoader(), variables=facts)
    addresses, netmask = (
        templar.template(trust_as_template(task["ansible.builtin.debug"]["msg"])) for task in yaml.safe_load(block)
    )
    assert addresses == [rank["networks"][0]["ips"][0] for rank in serving["ranks"]]
    assert netmask == "255.255.255.0"


@pytest.mark.parametrize(
    ("title", "made"),
    [
        ("Fabric plan", {**plan_fabric(fabric(4))[0].as_dict(), "findings": []}),
        ("Serving plan", {**plan().as_dict(), "findings": [], "fallback": {}}),
    ],
)
def test_the_page_has_the_keys_of_a_plan(title: str, made: dict[str, Any]) -> None:
    block = re.search(rf"## {title} .*?```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert block
    page = yaml.safe_load(block[1])
    assert set(page) == set(made)
    for name in ("ranks", "networks", "rails"):
        if name in made:
            assert set(page[name][0]) == set(made[name][0]), name
    for host in made.get("hosts", {}).values():
        for name in ("pfs", "vfs"):
            assert set(page["hosts"]["spark1"][name][0]) == set(host[name][0]), name
    for rank in made.get("ranks", ()):
        assert set(page["ranks"][0]["networks"][0]) == set(rank["networks"][0])


def test_the_page_names_every_condition_of_a_pod() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for condition in (labels.TRANSPORT, labels.MEMORY, labels.LOAD, labels.HEALTH, labels.ANSWERS):
        assert f"`{condition}`" in text
