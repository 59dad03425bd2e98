# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_check
short_description: Find mistakes in an inventory before any host is touched
version_added: 0.1.0
description:
  - Reads the variables of all hosts in C(gb10_cluster), C(gb10_servers) and C(gb10_nodes) on the controller. It
    contacts no host.
  - Rejects a group without hosts, a host that C(gb10_cluster) lacks if that group is needed, a C(gb10_*) variable
    that does not exist, a misspelt variable of a role, and a value that its variable does not allow. A value
    whose template needs facts is checked as soon as a later playbook of the same run has them.
  - Fails if a host of the play failed in an earlier playbook of the same run, with which Ansible itself would go on.
  - With C(gb10_kubernetes_provider) V(existing), hosts in C(gb10_servers) are not needed, the kubeconfig and its
    context must be set, and variables that only K3s uses are named.
  - Rejects an inventory variable that has the name of a short command-line variable, such as C(profile), and a misspelt
    one after C(-e).
  - Rejects a template that uses an unknown variable, a name of a host that Kubernetes refuses, and a file of
    C(group_vars) whose name is a misspelt group.
options:
  earlier:
    description: The result of this module in an earlier playbook of the same run. Only what needed facts is then
      checked.
    type: dict
    default: {}
  groups:
    description: Groups that must have at least one host.
    type: list
    elements: str
    default: [gb10_servers, gb10_nodes]
  plans:
    description:
      - The plans that the playbook makes. What they would refuse is reported together with everything else, except for
        what only follows from a mistake that is reported already.
    type: list
    elements: str
    choices: [fabric, serving]
    default: []
  provider:
    description: The C(gb10_kubernetes_provider) that the playbook needs; empty if it works with each.
    type: str
    choices: ["", k3s]
    default: ""
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
"""

EXAMPLES = r"""
- name: Check the inventory
  gb10.cluster.inventory_check:
    groups: [gb10_nodes]
  run_once: true
"""

RETURN = r"""
findings:
  description: Warnings, each with C(severity), C(rule), C(key), C(value), C(reason), C(remedy) and C(where).
  returned: success
  type: list
  elements: dict
later:
  description: Names of the variables of each host whose values need facts.
  returned: success
  type: dict
msg:
  description:
    - One sentence. It names the errors, if there are any; each is displayed with its value, reason, remedy and hosts.
      Warnings are reported as Ansible warnings.
  returned: always
  type: str
"""
