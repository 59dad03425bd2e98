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
  - Takes the facts that M(gb10.cluster.preflight_info) read from the hosts of the play, plans the fabric of
    the inventory, and checks facts and plan together, on the controller.
  - Reports all findings at once, each with its layer and its remedy, and fails if one of them is an error.
  - A host of the play whose facts were not read is an error.
  - The other options are those of role preflight, without C(preflight_). In a task of the role they have its values.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  kubeconfig:
    description: File on the controller that gets the credentials of the cluster.
    type: path
    required: true
  neighbours:
    description: Name of the registered result of M(gb10.cluster.cabling_info) on each host; planned links of moved
      cables are errors.
    type: str
    default: ''
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
