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
    description: The record; C(kind) is V(plan), V(start) or V(result).
    type: dict
    required: true
  logs:
    description: The last log lines of the cell's ranks.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Keep that a cell failed, and why
  gb10.cluster.sweep_record:
    journal: results/nemotron-3-super-mtp.jsonl
    record: {kind: result, cell: 3_4-1-0badcafe, status: failed}
    logs: ["RuntimeError: cuDNN is not available"]
"""

RETURN = r"""
record:
  description: The record as it was written, the failure's class included.
  returned: always
  type: dict
msg:
  description: The cell and its status.
  returned: always
  type: str
"""
