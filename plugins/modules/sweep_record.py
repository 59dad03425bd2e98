#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sweep_record
short_description: Add a record to the journal of a sweep
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Appends one JSON record with its checksum and waits until it is on the disk, so that no crash loses a finished cell.
  - A result gets its status, the stage in which it failed and its environment from O(evidence). The class of a failure
    comes from the logs of the ranks, and the record quotes the line that shows it.
  - A result also gets the resolved engine and the workloads of the last plan, so that a later change of the profile or
    of the workloads is noticed.
attributes:
  check_mode:
    support: full
    description: Writes nothing in check mode.
  diff_mode:
    support: none
    description: A journal only grows.
options:
  journal:
    description: The sweep's result log; made when it does not exist.
    type: path
    required: true
  record:
    description:
      - The record. C(kind) is V(plan), V(start) or V(result); C(run) is the run of the sweep that it belongs to.
      - A plan has C(cells) and C(workloads). Instead of C(cells) it may have C(server) and C(preset), for one server.
      - A start or a result has C(cell), which a result of a plan with one cell may leave out.
    type: dict
    required: true
  evidence:
    description:
      - For a result, the registered results of the cell's tasks. A task that did not run is left out or empty.
      - C(plan) is the serving plan, C(mtu) that of the fabric, C(verify) whether the transport is verified.
      - C(pods) is the result of M(kubernetes.core.k8s_info), C(kernels) that of M(kubernetes.core.k8s_exec) in each
        pod, C(server) and C(measured) those of M(gb10.cluster.load_cell), C(group) that of
        M(gb10.cluster.serving_group_info), and C(proof) that of role nccl_verify.
      - C(failure) has C(task) and C(msg) of the task that failed.
    type: dict
    default: {}
  stop:
    description:
      - Stop rules for a record of kind V(start). C(hours) is the longest time since the first start of the record's
        C(run), C(infrastructure) and C(failures) how many cells in a row may end that way.
    type: dict
    default: {}
  cell_minutes:
    description: Minutes that a cell is expected to take, until one has ended.
    type: float
    default: 30.0
"""

EXAMPLES = r"""
- name: Record that a cell failed
  gb10.cluster.sweep_record:
    journal: results/nemotron-3-super-mtp.jsonl
    record: {kind: result, cell: 3_4-1-0badcafe}
    evidence:
      failure: {task: Wait until all ranks are ready, msg: Group nemotron is not ready after 300 s.}
      group: {ranks: [], logs: {nemotron-0-0: ["RuntimeError: cuDNN is not available"]}}
"""

RETURN = r"""
record:
  description: The record as it was written, with status and failure.
  returned: always
  type: dict
baseline:
  description: Fingerprints of the first healthy cell's outputs, by workload, for M(gb10.cluster.load_cell).
  returned: always
  type: dict
stop:
  description: Why no further cell may start; empty when one may.
  returned: always
  type: str
msg:
  description: The cell and its status, or how far the sweep is.
  returned: always
  type: str
"""
