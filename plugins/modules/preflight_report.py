#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Judge the facts of all hosts in one report
version_added: 0.1.0
description:
  - Takes what M(gb10.cluster.preflight_info) read from the hosts of the play, plans the fabric of O(nodes), and judges
    both together, on the controller.
  - Fails when a finding is an error; every finding names its layer and its remedy, and all come at once.
  - A host of the play from which nothing was read is an error, not a pass.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.readonly]
options:
  nodes:
    description: Names of the hosts of the fabric, including those that this run doesn't visit.
    type: list
    elements: str
    required: true
  servers:
    description: Names of the Kubernetes servers.
    type: list
    elements: str
    default: []
  min_free_gib:
    description: Free space, in GiB, that every path read must have.
    type: float
    default: 100
  min_rate_gbps:
    description: Rate, in Gb/s, that every planned port must have.
    type: float
    default: 200
  min_pcie_gbps:
    description: What the PCIe link of every planned port must carry, in Gb/s.
    type: float
    default: 100
  rdma_mode:
    description: How pods get RDMA; only V(restricted) pods are subject to the runtime's memlock limit.
    type: str
    choices: [privileged, ipc_lock, restricted, none]
    default: privileged
  severities:
    description: Rule names with the severity to use instead of the usual, V(error), V(warning), V(info) or V(off).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Judge all hosts
  gb10.cluster.preflight_report:
    nodes: "{{ groups['gb10_nodes'] }}"
    severities:
      preflight.memory.swap: info
  run_once: true
"""

RETURN = r"""
findings:
  description:
    - What was found, worst first, each with C(severity), C(rule), C(layer), C(key), C(value), C(reason), C(remedy),
      C(where) and C(source).
  returned: always
  type: list
  elements: dict
msg:
  description: The report as text, with one line per host and port, then all findings.
  returned: always
  type: str
"""
