#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_ping
short_description: Ping every peer on every VF with the largest packet
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Pings the VF of the same rail and index on every other host of the fabric plan. It uses the largest payload that the
    MTU allows and forbids fragmentation (8972 bytes for MTU 9000).
  - Then compares the MAC address in the neighbour table with the planned one. If a peer answers with the MAC of its
    other VF, all pings pass but RoCE traffic goes to the wrong function.
  - Pings a VF that a pod holds from inside that pod's network namespace; the result names the pod.
  - A direction that fails is reported as a result with its broken layer. The module does not fail because of it. Judge
    the results of all hosts with the filter P(gb10.cluster.fabric_matrix#filter).
  - Needs root, iproute2, iputils-ping and util-linux on the host.
extends_documentation_fragment: [gb10.cluster.readonly]
options:
  plan:
    description: The fabric plan.
    type: dict
    required: true
  host:
    description: Name of this host in the plan.
    type: str
    required: true
  pods_only:
    description: Probe only VFs that a pod holds.
    type: bool
    default: false
  count:
    description: Packets per direction.
    type: int
    default: 3
  wait:
    description: Seconds to wait for an answer.
    type: int
    default: 1
"""

EXAMPLES = r"""
- name: Ping every peer on every VF
  gb10.cluster.fabric_ping:
    plan: "{{ ansible_facts['gb10_fabric_plan'] }}"
    host: "{{ inventory_hostname }}"
  register: fabric_ping
"""

RETURN = r"""
msg:
  description: The number of directions that pass.
  type: str
  returned: always
results:
  description:
    - One entry per peer, rail and VF with C(ok), C(layer) (V(sriov), V(link), V(address), V(mtu), V(ethernet), V(ip) or
      empty), C(reason), C(rtt_ms), and C(where), which is V(host) or the pod that has the VF.
  type: list
  elements: dict
  returned: always
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import probe
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def main() -> None:
    """Run the module."""
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
        result["msg"] = f"{reason} Run role fabric_plan first, with this host in group gb10_nodes."
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
