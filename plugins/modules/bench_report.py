# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_report
short_description: Create the report of a sweep
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Reads sweep journals and writes one self-contained HTML page, the same content as Markdown, and JSON with every
    number, request and argument as recorded.
  - Says first in sentences what won, by how much and whether the result can be trusted; pictures and tables follow.
  - Names the reason for each excluded cell.
  - Lists the fabric and the versions, the verdict on each cell's transport, how its arguments differ from the base, and
    the command that repeats the measurement.
  - Runs on the controller.
attributes:
  check_mode:
    support: full
    description: Writes nothing in check mode.
  diff_mode:
    support: none
    description: Each run writes the whole report again, so there is no difference to show.
options:
  journals:
    description: Journals that M(gb10.cluster.sweep_record) wrote; a missing one is an error.
    type: list
    elements: path
    required: true
  dest:
    description: Path of the report without its extension. The module writes C(.html), C(.md) and C(.json).
    type: path
    required: true
  presets_dir:
    description:
      - Directory of the user's own profiles. The sweep's profile is copied there with a preset V(tuned-n1),
        V(tuned-mixed) and so on for the winner of each traffic shape. In an existing copy, presets V(tuned-…) of an
        earlier sweep are replaced, and everything else is kept.
      - The module never changes the collection's own files. Empty writes no presets.
    type: path
    default: ""
  profile_dirs:
    description: Directories of profiles that are searched before the collection's own directory.
    type: list
    elements: path
    default: []
  reproduce:
    description: Command that repeats the measurement. Empty names the sweep that is recorded in the journal.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Create the report
  gb10.cluster.bench_report:
    journals: [results/nemotron-3-super-mtp.jsonl]
    dest: results/nemotron-3-super-mtp
"""

RETURN = r"""
files:
  description: The files of the report.
  returned: success
  type: list
  elements: str
lines:
  description: One line per question, with what won, by how much, and whether the result can be trusted.
  returned: success
  type: list
  elements: str
msg:
  description: The same lines as one text, and the path of the page.
  returned: success
  type: str
"""
