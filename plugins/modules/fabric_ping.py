#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import probe
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "host": {"type": "str", "required": True},
            "pods_only": {"type": "bool", "default": False},
            "count": {"type": "int", "default": 3},
            "wait": {"type": "int", "default": 1},
        },
        supports_check_mode=True,
    )
    params = module.params
    result: dict[str, Any] = {"changed": False, "msg": "", "results": []}
    if params["host"] not in params["plan"].get("hosts", {}):
        reason = f"{params['host']} is not in the fabric plan, so its VFs are unknown."
        result["msg"] = f"{reason} Put the host into group gb10_nodes, and run playbook fabric."
        module.fail_json(**result)
    try:
        reached = probe.probe_all(params["plan"], params["host"], params["pods_only"], params["count"], params["wait"])
    except (system.HostError, OSError) as error:
        module.fail_json(**{**result, "msg": system.explain(error)})
    passed = sum(one["ok"] for one in reached)
    result |= {"msg": f"{passed} of {len(reached)} directions pass", "results": reached}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
