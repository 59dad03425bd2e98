# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the examples that query plans with filters of other collections, which need jmespath and netaddr."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
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
