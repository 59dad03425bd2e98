# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Plan the command and settings of every rank of a serving group
version_added: 0.1.0
description:
  - Derives argv, environment, networks with addresses, and resources of every rank from a fabric plan and a profile.
  - Checks the profile against the SGLang release on which it will run, the topology against the nodes, the VFs against
    the fabric plan, and the environment against NCCL. Fails with all findings at once.
  - Reads every option of the role P(gb10.cluster.serving_plan#role) by its name, so it must run in a task of that role.
  - Runs on the controller, which has the profiles and catalogues, and contacts no host and no cluster.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  fabric:
    description: The fabric plan, see M(gb10.cluster.fabric_plan).
    type: dict
    required: true
  candidates:
    description:
      - Nodes of the cluster. If the option C(serving_plan_nodes) of the role is empty, the first of these nodes are
        used, as many as the profile needs.
    type: list
    elements: str
    default: []
  taken:
    description: The VFs that running groups hold, from P(gb10.cluster.serving_holders#filter).
    type: list
    elements: dict
    default: []
  open_routes:
    description: The option C(sglang_open_routes) of role sglang, which decides whether known holes are closed.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Plan the group in a task of role serving_plan
  gb10.cluster.serving_plan:
    fabric: "{{ ansible_facts['gb10_fabric_plan'] }}"
    candidates: "{{ groups['gb10_nodes'] }}"
  run_once: true
"""

RETURN = r"""
plan:
  description: The serving plan, as the page C(docs/interfaces.md) shows it.
  returned: success
  type: dict
deep:
  description: The command that asks the release's own resolver about the head; empty where its environment does not
    exist.
  returned: success
  type: list
  elements: str
verdict:
  description: How many errors and warnings both plans have, and the command that comes next.
  returned: success
  type: str
  sample: "0 errors, 2 warnings. Next: ansible-playbook -i inventory/mine -K gb10.cluster.preflight"
findings:
  description: Warnings and notes.
  returned: success
  type: list
  elements: dict
msg:
  description:
    - Model, preset, release, image, what is downloaded, memory, endpoint, and one line per rank; with C(-v) also the
      command of the head and the arithmetic of the memory.
    - If the group cannot be planned, the number of errors; all findings are printed at the end of the run.
  returned: always
  type: str
"""
