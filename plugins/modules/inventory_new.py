# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_new
short_description: Write an inventory for the hosts of the play
version_added: 0.1.0
description:
  - Uses the facts of M(ansible.builtin.setup), M(gb10.cluster.pf_info) and M(gb10.cluster.cabling_info) of every host
    of the play.
  - Finds out topology, rails, PFs, management interface and network, VF count, user and a directory for models, and
    gives node ids.
  - Fails if the directory is not empty or a host was not read. Also fails, with the inventory written, if the fabric of
    this inventory cannot be planned. Runs on the controller.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  path:
    description: Directory of the new inventory, on the controller.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Write the inventory
  gb10.cluster.inventory_new:
    path: /home/me/inventory/mine
  run_once: true
"""

RETURN = r"""
path:
  description: The directory.
  returned: success
  type: str
files:
  description: The text of each file by its name.
  returned: success
  type: dict
"""
