# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: model_share_plan
short_description: Plan which node downloads which files of models, and which nodes copy them
version_added: 0.1.0
description:
  - Joins the results of M(gb10.cluster.model_stock_info). Each file that no node has is downloaded by one node. The
    others copy it over the fabric, from all nodes that have it by then.
  - Fails with all problems at once, before the first byte, if a disk is too small or the hub can't be reached.
  - Runs on the controller.
  - The options C(url) and C(share) are those of role models. In a task of the role they have its values.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  nodes:
    description: The key C(stock) of the results of all nodes, by the names of the nodes.
    type: dict
    required: true
  models:
    description:
      - The models, each with C(repo) and C(revision). The controller reads their lists of files from the hub, and a
        node with another list is an error. Of a model that it can't read, all nodes that read a list must agree.
    type: list
    elements: dict
    default: []
  token:
    description: Token for the hub. It is sent to the hub only.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Plan who downloads and who copies
  gb10.cluster.model_share_plan:
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, ['stocked', 'stock']))) }}"
  run_once: true
  register: planned
"""

RETURN = r"""
needed:
  description: Whether a node lacks a file or a record.
  returned: always
  type: bool
rounds:
  description: How often nodes copy from their neighbours until all have all files; more than once in a ring.
  returned: success
  type: int
nodes:
  description: Options of M(gb10.cluster.model_share) for each node, and how many bytes it downloads and copies.
  returned: success
  type: dict
findings:
  description: All problems and remarks.
  returned: always
  type: list
  elements: dict
table:
  description: The plan as text, with one line per model and node.
  returned: success
  type: str
"""
