# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: sweep_record
short_description: Add a record to the journal of a sweep
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Appends one JSON record with its checksum and waits until it is on disk, so that a crash loses no finished cell.
  - For a result, derives its status, the stage in which it failed and its environment from O(evidence). The class of a
    failure comes from the logs of the ranks, and the record quotes the log line that shows it.
  - Adds the resolved engine and the workloads of the last plan to a result, so that a later change of the profile or of
    the workloads is detected.
attributes:
  check_mode:
    support: full
    description: Writes nothing in check mode.
  diff_mode:
    support: none
    description: The module only appends to the journal, so there is no difference to show.
options:
  journal:
    description: The sweep's result log. The module creates it if it does not exist.
    type: path
    required: true
  record:
    description:
      - The record. C(kind) is V(plan), V(start) or V(result); C(run) is the sweep's run to which it belongs.
      - A plan has C(cells) and C(workloads). Instead of C(cells) it may have C(server) and C(preset), for one server.
      - A start or a result has C(cell), which a result of a plan with one cell may leave out.
    type: dict
    required: true
  evidence:
    description:
      - For a result, the registered results of the cell's tasks. Omit a task that did not run, or pass an empty value.
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
        C(run). C(infrastructure) and C(failures) are how many consecutive cells may end with that status.
    type: dict
    default: {}
  cell_minutes:
    description: Expected minutes per cell, used until a cell has ended.
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
  description: The record as written, with status and failure.
  returned: always
  type: dict
engines:
  description: Names of the measured cells by the engine that their images named, for cells that differ in their command
    line only.
  returned: always
  type: dict
stop:
  description: Why no further cell may start; empty if one may start.
  returned: always
  type: str
"""
