# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_objects
short_description: Plan which groups are behind the gateway, and render its Kubernetes objects
version_added: 0.1.0
description:
  - Chooses the groups by the options of the role P(gb10.cluster.gateway#role), so it must run in a task of that role.
  - Fails if the groups serve different models, or if the gateway has a key and a group accepts requests past it.
  - The objects contain no Secrets; pods refer to Secrets by name.
  - Runs on the controller and contacts no host and no cluster.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  services:
    description: The Services of the namespace that have the label C(gb10.cluster/instance), as the API returns them.
    type: list
    elements: dict
    required: true
  live:
    description: The running Deployment. If it is given, only its change to the groups of O(services) is returned.
    type: dict
    default: {}
  pulled:
    description: Name of the image with its digest, as M(gb10.cluster.image_pull) returns it; empty for the image of the
      role.
    type: str
    default: ""
  closed:
    description: Whether network policies close all pods of the namespace.
    type: bool
    default: true
  versions:
    description: The versions of the Secrets that the gateway reads. Other versions replace the pod.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Render the objects in a task of role gateway
  gb10.cluster.gateway_objects:
    services: "{{ gateway_api.found.services }}"
"""

RETURN = r"""
objects:
  description: All objects except the Secrets, or the change of the Deployment.
  returned: success
  type: list
  elements: dict
revision:
  description: The revision that the pod of the gateway gets as a label.
  returned: success
  type: str
"""
