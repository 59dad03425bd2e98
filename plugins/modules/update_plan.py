# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: update_plan
short_description: Judge the updates of all nodes before the first one changes
version_added: 0.1.0
description:
  - Takes what M(gb10.cluster.node_update) found on the hosts of the play (registered as C(update_read)) and what
    M(gb10.cluster.preflight_info) read, and compares the hosts as they would be with C(meta/combinations.yml).
  - Fails with all findings at once if a host would get a known problem that it does not have now, could not step back,
    or would lose packages that it needs.
  - The other options are those of role update, without C(update_). In a task of the role they have its values.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  pods:
    description: The pods of all ranks in the cluster, as the API returns them.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read what an update would do
  gb10.cluster.node_update:
  register: update_read

- name: Judge it
  gb10.cluster.update_plan:
  run_once: true
"""

RETURN = r"""
hosts:
  description: The hosts that have something to update, in order.
  returned: always
  type: list
  elements: str
groups:
  description: The groups with a rank on one of these hosts.
  returned: always
  type: list
  elements: str
begins:
  description: Whether no host goes on with an update that was interrupted, and none goes back.
  returned: always
  type: bool
findings:
  description: What speaks against the update, and what to know.
  returned: always
  type: list
  elements: dict
"""
