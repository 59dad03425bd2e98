#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_check
short_description: Find mistakes in an inventory before any host is touched
version_added: 0.1.0
description:
  - Reads the variables of all hosts in C(gb10_cluster), C(gb10_servers) and C(gb10_nodes) on the controller. It
    contacts no host.
  - Rejects a group without hosts, a C(gb10_*) variable that does not exist, a misspelt variable of a role, and a value
    that its variable does not allow. It does not check a value whose template needs facts; the role that reads the
    value checks it.
  - Rejects an inventory variable that has the name of a short command-line variable, such as C(profile).
options:
  groups:
    description: Groups that must have at least one host.
    type: list
    elements: str
    default: [gb10_servers, gb10_nodes]
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.readonly]
"""

EXAMPLES = r"""
- name: Check the inventory
  gb10.cluster.inventory_check:
    groups: [gb10_nodes]
  run_once: true
"""

RETURN = r"""
msg:
  description: Every error with its value, reason, remedy and hosts. Warnings are reported as Ansible warnings.
  returned: always
  type: str
"""
