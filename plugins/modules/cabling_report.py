# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: cabling_report
short_description: Draw the cabling of all hosts, and compare it with the inventory
version_added: 0.1.0
description:
  - Joins the facts of M(gb10.cluster.cabling_info) of the given hosts. Ports that see each other are on one cable, or
    on one switch if they are more than two.
  - Names cables between the same cages, crossed or missing halves, slow ports, narrow PCIe links, an MTU that does not
    pass and second cables between two hosts.
  - Runs on the controller.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  hosts:
    description: The hosts whose facts are compared.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Draw the cabling
  gb10.cluster.cabling_report:
    hosts: "{{ groups['gb10_nodes'] }}"
  run_once: true
"""

RETURN = r"""
drawing:
  description: One line per cable, switch and port without a neighbour.
  returned: always
  type: list
  elements: str
svg:
  description: The same as a picture.
  returned: always
  type: str
map:
  description:
    - The same as an inventory file, which replaces the rails of the inventory before it. Empty if a host was not read,
      if the inventory has cables to other hosts, and if there are no cables.
  returned: always
  type: str
matches:
  description: Whether every host was read and the ports that the rails of the inventory join see each other.
  returned: always
  type: bool
fitting:
  description:
    - Topology and rails (C(group)) and C(gb10_fabric_pfs) (C(hosts)) that fit the cables. A rail of the inventory that
      joins the same hosts keeps its name and blocks. Others are new.
  returned: always
  type: dict
findings:
  description: All mistakes and differences.
  returned: always
  type: list
  elements: dict
"""
