# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that call the API of a cluster have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Options that name the cluster."""

    DOCUMENTATION = r"""
options:
  kubeconfig:
    description: The kubeconfig on the host that runs the module, normally the controller.
    type: path
    required: true
  context:
    description: The context in the kubeconfig.
    type: str
    required: true
"""
