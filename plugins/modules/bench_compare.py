# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_compare
short_description: Compare two sweeps and fail when the second is worse
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Compares both rates, the time to the first token and the time between tokens of two journals, for each cell and
    workload.
  - A difference counts only if it is larger than the tolerance and, with three or more repetitions on both sides, can
    be distinguished from their noise.
  - Runs on the controller.
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  before:
    description: Journal of the earlier sweep, as M(gb10.cluster.sweep_record) writes it.
    type: path
    required: true
  after:
    description: Journal of the later sweep.
    type: path
    required: true
  tolerance:
    description: The largest relative difference that counts as equal.
    type: float
    default: 0.05
"""

EXAMPLES = r"""
- name: Check whether the new image is slower
  gb10.cluster.bench_compare:
    before: results/gemma-4-31b-steps-0.5.11.jsonl
    after: results/gemma-4-31b-steps-0.5.12.jsonl
"""

RETURN = r"""
rows:
  description: A dictionary for every figure with C(row), C(workload), C(figure), C(before), C(after) and C(verdict),
    which is V(worse), V(better), V(same) or V(missing).
  returned: always
  type: list
  elements: dict
lines:
  description: What changed, by how much and how certain that is, then the same data as a table.
  returned: always
  type: list
  elements: str
"""
