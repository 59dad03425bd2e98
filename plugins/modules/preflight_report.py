# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Check the facts of all hosts in one report
version_added: 0.1.0
description:
  - Takes the facts that M(gb10.cluster.preflight_info) read from the hosts of the play, plans the fabric of O(nodes),
    and checks facts and plan together, on the controller.
  - Reports all findings at once, each with its layer and its remedy, and fails if one of them is an error.
  - A host of the play whose facts were not read is an error.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  nodes:
    description: Names of the hosts of the fabric, including those that this run does not visit.
    type: list
    elements: str
    required: true
  servers:
    description: Names of the Kubernetes servers.
    type: list
    elements: str
    default: []
  kubeconfig:
    description: File on the controller that gets the credentials of the cluster.
    type: path
    required: true
  min_free_gib:
    description:
      - Free space, in GiB, required for every path that was read.
      - A negative number means what the planned group needs on the host, which is the image and the weights that are
        not there yet, and what has to stay free for the kubelet. If no profile can be resolved, these are 100 GiB.
    type: float
    default: -1
  min_rate_gbps:
    description: Rate, in Gb/s, required of every planned port.
    type: float
    default: 200
  min_pcie_gbps:
    description: Bandwidth, in Gb/s, required of the PCIe link of every planned port.
    type: float
    default: 100
  rdma_mode:
    description: How pods get RDMA. The runtime's memlock limit applies only to V(restricted) pods.
    type: str
    choices: [privileged, ipc_lock, restricted, none]
    default: privileged
  provider:
    description: Who runs Kubernetes. Rules that are only about K3s do not apply to V(existing).
    type: str
    choices: [k3s, existing]
    default: k3s
  refuse:
    description: Fail if a finding is an error.
    type: bool
    default: true
  doctor:
    description:
      - File on the controller that gets the facts of all hosts, without names, addresses and serial numbers, in the
        form of C(meta/combinations.yml). The task does not fail then.
    type: path
    default: ''
  neighbours:
    description: Name of the registered result of M(gb10.cluster.cabling_info) on each host; planned links of moved
      cables are errors.
    type: str
    default: ''
  severities:
    description: Rule names with the severity to use instead of the default, V(error), V(warning), V(info) or V(off).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Judge all hosts
  gb10.cluster.preflight_report:
    nodes: "{{ groups['gb10_nodes'] }}"
    kubeconfig: ~/.kube/config
    severities:
      preflight.memory.swap: info
  run_once: true
"""

RETURN = r"""
ansible_facts:
  description: The findings as C(gb10_preflight_findings), a fact of every host of the play.
  returned: success
  type: dict
findings:
  description:
    - All findings, worst first, each with C(severity), C(rule), C(layer), C(key), C(value), C(reason), C(remedy),
      C(where) and C(source).
  returned: success
  type: list
  elements: dict
msg:
  description:
    - The report as text, with one line per host and port, followed by all findings. If a finding is an error, the
      report is displayed at the end of the output, and the message only counts the errors.
  returned: always
  type: str
"""
