# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_changes
short_description: Compare the running settings of a serving group with the wanted ones
version_added: 0.1.0
description:
  - Writes node, image, command line, environment, networks and resources of every rank, one setting per line, so that
    C(--diff) shows exactly what is going to change. Values from Secrets are not shown.
  - Reports C(changed) if the two differ. The module itself changes nothing.
author: The gb10.cluster authors (@gb10)
attributes:
  check_mode:
    description: The action only compares; it does the same in check mode.
    support: full
  diff_mode:
    description: The difference is the result.
    support: full
  idempotent:
    description: The same input gives the same result.
    support: full
options:
  live:
    description: The group's StatefulSets, as the API returns them.
    type: list
    elements: dict
    required: true
  wanted:
    description: The wanted objects, from M(gb10.cluster.serving_objects).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show what changes
  gb10.cluster.serving_changes:
    live: "{{ live.resources }}"
    wanted: "{{ objects }}"
"""

RETURN = r"""
different:
  description: Whether a part of the group is new, gone or changed.
  returned: always
  type: bool
outdated:
  description: Whether running ranks must stop before the wanted ones start. A group is always replaced as a whole.
  returned: always
  type: bool
"""
