#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_upgrade_plan
short_description: Plan the order of a K3s upgrade
version_added: 0.1.0
description:
  - Orders servers before agents, puts the stop and start of the model group around them, and leaves out what an
    interrupted run has done already.
  - Fails with all findings at once when a node would skip a minor release or go back.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.readonly]
options:
  version:
    description: The release to upgrade to.
    type: str
    required: true
  nodes:
    description: The hosts as they are.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Name of the host.
        type: str
        required: true
      server:
        description: Whether it runs the control plane.
        type: bool
        required: true
      installed:
        description: Version of its binary; empty when K3s is not installed.
        type: str
        required: true
      stale:
        description: Whether its service still runs older files.
        type: bool
        default: false
      marked:
        description: Whether an upgrade has cordoned it.
        type: bool
        default: false
  group_running:
    description: Whether pods of a model group run.
    type: bool
    required: true
  group_stopped:
    description: Whether an interrupted upgrade has stopped the model group.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Plan the upgrade
  gb10.cluster.k3s_upgrade_plan:
    version: v1.36.5+k3s1
    group_running: true
    nodes:
      - {host: control, server: true, installed: v1.36.4+k3s1}
      - {host: spark1, server: false, installed: v1.36.4+k3s1}
"""

RETURN = r"""
steps:
  description: The steps, each with C(action), C(host), C(before) and C(after).
  returned: always
  type: list
  elements: dict
order:
  description: The steps as numbered sentences.
  returned: always
  type: list
  elements: str
hosts:
  description: The hosts of the steps, in order.
  returned: always
  type: list
  elements: str
findings:
  description: What forbids the upgrade.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import upgrade


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "nodes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "host": {"type": "str", "required": True},
                    "server": {"type": "bool", "required": True},
                    "installed": {"type": "str", "required": True},
                    "stale": {"type": "bool", "default": False},
                    "marked": {"type": "bool", "default": False},
                },
            },
            "group_running": {"type": "bool", "required": True},
            "group_stopped": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        plan = upgrade.plan(
            upgrade.from_dicts(options["nodes"]),
            options["version"],
            group_running=options["group_running"],
            group_stopped_by_us=options["group_stopped"],
        )
    except ValueError as error:
        module.fail_json(msg=str(error), changed=False, steps=[], order=[], hosts=[], findings=[])
    if findings.has_errors(plan.findings):
        module.fail_json(msg=findings.format_findings(plan.findings), changed=False, **plan.as_dict())
    module.exit_json(
        changed=False, msg="Nothing to upgrade." if not plan.steps else f"{len(plan.steps)} steps", **plan.as_dict()
    )


if __name__ == "__main__":
    main()
