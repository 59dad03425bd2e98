# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_plan
short_description: Plan every VF of the fabric, and find conflicts
version_added: 0.1.0
description:
  - Computes the netdev, RDMA device, MAC, addresses and NetworkAttachmentDefinition of every VF of every host.
  - Reads the inventory variables C(gb10_*) of the given hosts, and the facts of M(gb10.cluster.pf_info), on the
    controller. It contacts no host. The VFs of a host depend only on its own declaration and its rails, so they do
    not change when other hosts are added or removed.
  - Finds conflicts before anything is written, and fails with all of them at once.
  - Sets the fact C(gb10_fabric_plan) on every host of the play when the task has C(run_once).
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  hosts:
    description: Names of all hosts of the fabric, including those that this run does not visit.
    type: list
    elements: str
    required: true
  assume_vf_count:
    description:
      - Number of VFs per PF to plan for hosts whose PFs were not read. V(0) refuses to plan for such hosts.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Plan the fabric of all GPU nodes
  gb10.cluster.fabric_plan:
    hosts: "{{ groups['gb10_nodes'] }}"
  run_once: true
"""

RETURN = r"""
plan:
  description:
    - The plan with C(schema), C(mtu), C(scheme), C(topology), C(rails), C(networks), C(hosts) and C(findings). The page
      C(docs/interfaces.md) shows one.
  returned: success
  type: dict
findings:
  description:
    - Warnings and notes, each with C(severity), C(rule), C(key), C(value), C(reason), C(remedy), C(where) and
      C(source).
  returned: success
  type: list
  elements: dict
table:
  description: The plan as text, with one line per host and rail.
  returned: success
  type: str
msg:
  description: One sentence. If the fabric cannot be planned, it names the errors; all findings are displayed.
  returned: always
  type: str
"""
