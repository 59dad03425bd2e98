# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: sweep_plan
short_description: Plan a sweep of server settings
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Computes the product of a sweep's axes and rejects the cells that SGLang would reject. Of several cells with the
    same command line, only the first is measured.
  - Skips a cell if the journal has its result for the same command line and the same workloads.
  - Runs on the controller and contacts no host.
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  sweep:
    description: Path of a sweep file, or the name of one in O(sweep_dirs) or in the collection.
    type: str
    required: true
  sweep_dirs:
    description: Directories that are searched before the collection's own directory.
    type: list
    elements: path
    default: []
  profile_dirs:
    description: Directories of profiles that are searched before the collection's own directory.
    type: list
    elements: path
    default: []
  sglang_version:
    description: SGLang release for cells that do not name one. Empty uses the preset's release.
    type: str
    default: ""
  journal:
    description: The sweep's journal. It need not exist yet.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: List the cells that remain to be measured
  gb10.cluster.sweep_plan:
    sweep: nemotron-3-super-mtp
    journal: results/nemotron-3-super-mtp.jsonl
"""

RETURN = r"""
cells:
  description: Every cell with C(id), C(labels), C(overlay) and C(status), V(run), V(invalid) or V(duplicate).
  returned: success
  type: list
  elements: dict
remaining:
  description: The cells that are still to be measured, in order. C(serving) contains the variables for role
    serving_plan.
  returned: success
  type: list
  elements: dict
workloads:
  description: The workloads that are measured in each cell.
  returned: success
  type: list
  elements: dict
models:
  description: Repositories of the models that the remaining cells need.
  returned: success
  type: list
  elements: str
revisions:
  description: Branch, tag or commit of each model. If cells differ, this is the last cell's.
  returned: success
  type: dict
unfinished:
  description: A finding for a run that ends here, with the next cell; empty if no cell is left.
  returned: success
  type: list
  elements: dict
stop:
  description: The sweep's stop rules.
  returned: success
  type: dict
run:
  description: Name of this run of the sweep, for its records.
  returned: success
  type: str
estimate_s:
  description: Estimated seconds for the remaining cells, based on finished cells if there are any.
  returned: success
  type: float
msg:
  description: The plan in one line.
  returned: success
  type: str
"""
