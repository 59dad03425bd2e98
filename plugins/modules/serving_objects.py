# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_objects
short_description: Render the Kubernetes objects of a serving group
version_added: 0.1.0
description:
  - Renders all objects of a group from a serving plan and the options of the role P(gb10.cluster.sglang#role), with the
    role's scripts and the profile's patches from the controller. It must run in a task of that role.
  - The objects contain no Secrets; pods refer to Secrets by name.
  - Runs on the controller and contacts no host and no cluster.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  image:
    description: Name of the image with its digest, as M(gb10.cluster.image_pull) returns it; empty for the image of the
      plan.
    type: str
    default: ""
  digest:
    description: Digest or id of the image on the nodes, as M(gb10.cluster.image_pull) returns it. An imported image has
      none in its name.
    type: str
    default: ""
  arch:
    description: Architecture of the group's nodes; part of the name of their directory for compiled kernels.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Render the objects in a task of role sglang
  gb10.cluster.serving_objects:
  run_once: true
"""

RETURN = r"""
objects:
  description: All objects, in an order in which they can be created.
  returned: success
  type: list
  elements: dict
start_limit:
  description: Seconds that a rank may start without progress before it is restarted.
  returned: success
  type: int
cache_key:
  description: Name of the directory for compiled kernels below C(sglang_cache_dir); empty if there is none.
  returned: success
  type: str
"""
