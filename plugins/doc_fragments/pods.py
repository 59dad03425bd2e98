# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that look into pods have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Options by which a module finds the pods of a group, and the API that leads to them."""

    DOCUMENTATION = r"""
options:
  pods:
    description: The pods to look into.
    type: dict
    suboptions:
      namespace:
        description: Their namespace.
        type: str
        required: true
      label_selector:
        description: Their labels.
        type: str
        required: true
      container:
        description: The container; the pod's first when left out.
        type: str
        default: ""
  kubeconfig:
    description: The kubeconfig that leads to the pods.
    type: path
  context:
    description: The context in it.
    type: str
"""
