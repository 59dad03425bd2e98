# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle
short_description: Write a support bundle on the controller
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Writes one archive of mode 0600 with what M(gb10.cluster.support_info) read from the hosts of the play, what
    M(gb10.cluster.support_cluster_info) read from the cluster, the plans, and the last transport verdicts.
  - Removes once more known forms of private keys, tokens and passwords, and the values of all variables of the
    inventory that hold a secret of this collection or a password of Ansible.
  - The file C(INDEX.md) of the archive lists all texts, and says what is missing and why.
attributes:
  check_mode:
    support: full
    description: Writes nothing in check mode.
  diff_mode:
    support: none
    description: There is nothing to show a difference of.
options:
  dest:
    description: Directory of the archive on the controller. It gets mode 0700 when it is created.
    type: path
    required: true
  register:
    description: Name under which the hosts of the play registered the result of M(gb10.cluster.support_info).
    type: str
    required: true
  cluster:
    description: Result of M(gb10.cluster.support_cluster_info).
    type: dict
    default: {}
  plans:
    description: Plans by name.
    type: dict
    default: {}
  results:
    description: Directory on the controller that has the files with the transport verdicts.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Write the archive
  gb10.cluster.support_bundle:
    dest: results/support
    register: support_bundle_host
    cluster: "{{ support_bundle_cluster }}"
    results: results
  run_once: true
"""

RETURN = r"""
path:
  description: The archive.
  returned: success
  type: str
missing:
  description: Why a text is missing, by its place in the archive.
  returned: success
  type: dict
msg:
  description: The archive, its size, and how many texts are missing.
  returned: success
  type: str
"""
