# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: run_lock
short_description: Let one run at a time change the groups of a namespace
version_added: 0.1.0
description:
  - Takes the Lease C(gb10-run) of Kubernetes that names this run (user, machine, process, playbook), or gives it back.
  - Fails if another run holds it. A Lease that has expired is taken over, and so is that of a process that no longer
    exists on this machine, for example after Ctrl-C.
  - Without the right to use Leases in the namespace it only says so.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.lock]
options:
  namespace:
    description: The namespace of the groups.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Let no other run change groups
  gb10.cluster.run_lock:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    run: playbook serve
  delegate_to: localhost
"""

RETURN = r"""
held:
  description: Whether this run holds the Lease now.
  returned: always
  type: bool
"""
