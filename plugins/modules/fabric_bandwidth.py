#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_bandwidth
short_description: Measure the RDMA bandwidth between two hosts on all rails at once
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.sysfs]
description:
  - Runs C(ib_write_bw) or C(ib_send_bw) of perftest between this host and a partner. It uses the VFs of one index on
    all common rails at the same time, and judges the Gb/s of each rail and of all rails together.
  - Start it with O(side=server) on one host, then with O(side=client) on the other. The servers stop by themselves.
attributes:
  check_mode:
    support: none
    description: Skipped in check mode, because it cannot measure without sending traffic.
  diff_mode:
    support: none
    description: The module makes no lasting change.
  idempotent:
    support: full
    description: Leaves nothing behind.
  platform:
    support: full
    platforms: linux
    description: Needs root, perftest and systemd on the host.
options:
  plan:
    description: The fabric plan.
    type: dict
    required: true
  host:
    description: Name of this host in the plan.
    type: str
    required: true
  partner:
    description: Name of the other host in the plan.
    type: str
    required: true
  side:
    description: The side that this host takes in the measurement.
    type: str
    choices: [server, client]
    required: true
  program:
    description: The program of perftest.
    type: str
    choices: [ib_write_bw, ib_send_bw]
    default: ib_write_bw
  vf_index:
    description: Index of the VFs to use. These VFs must not be in a pod.
    type: int
    default: 0
  port:
    description: TCP port on which perftest's ends meet for the first rail. Each further rail uses the next port.
    type: int
    default: 18515
  duration:
    description: Seconds to measure.
    type: int
    default: 5
  half_floor:
    description: Gb/s that every rail must reach.
    type: float
    default: 90.0
  full_floor:
    description: Gb/s that all rails must reach together.
    type: float
    default: 180.0
"""

EXAMPLES = r"""
- name: Start the server that spark2 measures against
  gb10.cluster.fabric_bandwidth:
    plan: "{{ ansible_facts['gb10_fabric_plan'] }}"
    host: spark1
    partner: spark2
    side: server
  when: inventory_hostname == 'spark1'

- name: Measure against spark1
  gb10.cluster.fabric_bandwidth:
    plan: "{{ ansible_facts['gb10_fabric_plan'] }}"
    host: spark2
    partner: spark1
    side: client
  when: inventory_hostname == 'spark2'
  register: fabric_bandwidth
"""

RETURN = r"""
msg:
  description: The verdict with all figures.
  type: str
  returned: always
ok:
  description: Whether all floors are reached; V(true) for a waiting server.
  type: bool
  returned: always
measured:
  description: Average Gb/s by rail; null for a rail that moved nothing.
  type: dict
  returned: always
  sample: {"rail0": 97.5, "rail1": 97.4}
pair:
  description: The client and the server.
  type: list
  elements: str
  returned: always
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import bandwidth
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "host": {"type": "str", "required": True},
            "partner": {"type": "str", "required": True},
            "side": {"type": "str", "choices": ["server", "client"], "required": True},
            "program": {"type": "str", "choices": ["ib_write_bw", "ib_send_bw"], "default": "ib_write_bw"},
            "vf_index": {"type": "int", "default": 0},
            "port": {"type": "int", "default": 18515},
            "duration": {"type": "int", "default": 5},
            "half_floor": {"type": "float", "default": 90.0},
            "full_floor": {"type": "float", "default": 180.0},
            "sysfs_root": {"type": "path", "default": "/sys"},
        },
    )
    params = module.params
    ends = (params["host"], params["partner"])
    server, client = ends if params["side"] == "server" else (ends[1], ends[0])
    result: dict[str, Any] = {"changed": False, "msg": "", "ok": True, "measured": {}, "pair": [client, server]}
    try:
        lanes = bandwidth.lanes(
            params["plan"], params["host"], server, client, params["vf_index"], params["port"], params["sysfs_root"]
        )
        if params["side"] == "server":
            bandwidth.serve(params["program"], lanes, params["duration"])
            result["msg"] = f"{len(lanes)} servers wait for {client}"
        else:
            measured, trouble = bandwidth.measure(params["program"], lanes, params["duration"])
            good, verdict = bandwidth.judge_bandwidth(measured, params["half_floor"], params["full_floor"])
            result.update(ok=good, measured=measured, msg="\n".join([f"{client} → {server}: {verdict}", *trouble]))
    except (system.HostError, OSError) as error:
        module.fail_json(**{**result, "ok": False, "msg": system.explain(error)})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
