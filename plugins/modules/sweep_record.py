#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sweep_record
short_description: Add a record to a sweep's journal
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - A result gets what it is of from the last plan of the journal, so that a change of profile or workloads is noticed.
  - Appends one JSON record with its checksum and waits until it is on the disk, so that a crash of anything loses no
    finished cell.
  - The class of a failed cell is read from the logs of its ranks, with the line that it rests on.
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
    description: The record; C(kind) is V(plan), with C(cells) and C(workloads), V(start) or V(result).
    type: dict
    required: true
  ranks:
    description: The C(ranks) that M(gb10.cluster.serving_group_info) returned, to tell a crash from a broken network.
    type: list
    elements: dict
    default: []
  logs:
    description: The C(logs) that it returned, the last lines of every rank by pod.
    type: dict
    default: {}
  stop:
    description:
      - Stop rules for a record of kind V(start). C(hours) is the longest time since the first start of the record's
        C(run), C(infrastructure) and C(failures) how many cells in a row may end that way.
    type: dict
    default: {}
  cell_minutes:
    description: Minutes that a cell is thought to take until one has shown it.
    type: float
    default: 30.0
"""

EXAMPLES = r"""
- name: Keep that a cell failed, and why
  gb10.cluster.sweep_record:
    journal: results/nemotron-3-super-mtp.jsonl
    record: {kind: result, cell: 3_4-1-0badcafe, status: failed}
    logs: {nemotron-0-0: ["RuntimeError: cuDNN is not available"]}
"""

RETURN = r"""
record:
  description: The record as it was written, the failure's class included.
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
