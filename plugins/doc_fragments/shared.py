# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What several modules and actions have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """One fragment per attribute: ``gb10.cluster.shared.cluster`` is CLUSTER."""

    CLUSTER = r"""
requirements:
  - kubernetes
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

    CONVERGING = r"""
attributes:
  check_mode:
    description: Returns what would change without changing it.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
"""

    GROUP = r"""
options:
  namespace:
    description: Namespace of the group.
    type: str
    required: true
  instance:
    description: Name of the group.
    type: str
    required: true
"""

    HUB = r"""
options:
  url:
    description: The hub, or a mirror with the same API.
    type: str
    default: https://huggingface.co
  token:
    description: Token for the hub. It is sent to O(url) only, never to a server to which O(url) redirects.
    type: str
    default: ""
"""

    STORAGE = r"""
options:
  skip:
    description: Patterns of file names to leave out.
    type: list
    elements: str
    default: ["*.pth", "*.gguf", "original/*"]
  reserve_gb:
    description:
      - Gigabytes that must stay free on the disk. V(-1) computes them from the size of the disk, so that the kubelet
        neither deletes images nor evicts pods (6 % of the disk, 12 to 48 GiB, at most 15 %).
    type: float
    default: -1
"""

    LOCK = r"""
attributes:
  check_mode:
    description: Takes and gives back nothing.
    support: full
  diff_mode:
    description: A lock has no settings to compare.
    support: none
  idempotent:
    description: A run that holds the lock renews it.
    support: full
options:
  run:
    description: What this run does, for the message of others.
    type: str
    default: a run
  duration:
    description: Seconds after which the lock expires.
    type: int
    default: 7200
  state:
    description: V(held) takes the lock, V(released) gives it back if this run has it.
    type: str
    choices: [held, released]
    default: held
"""

    POD = r"""
attributes:
  diff_mode:
    description: The module has no diff output.
    support: none
options:
  pull_policy:
    description: When the image is pulled.
    type: str
    choices: [Always, IfNotPresent, Never]
    default: IfNotPresent
  owner:
    description: Wishes for every pod of whoever owns the cluster. The pod keeps its own labels and annotations.
    type: dict
    default: {}
    suboptions:
      image_pull_secrets:
        description: Secrets of the namespace with which nodes pull the image.
        type: list
        elements: str
        default: []
      pod_labels:
        description: Labels of the pod.
        type: dict
        default: {}
      pod_annotations:
        description: Annotations of the pod.
        type: dict
        default: {}
      priority_class:
        description: PriorityClass of the pod; empty for the default one.
        type: str
        default: ""
      scheduler:
        description: Scheduler of the pod; empty for the default one.
        type: str
        default: ""
"""

    READONLY = r"""
attributes:
  check_mode:
    description: Changes nothing in either mode and returns the same.
    support: full
  diff_mode:
    description: There is nothing to show a difference of.
    support: none
  idempotent:
    description: Changes nothing.
    support: full
"""

    SLICES = r"""
options:
  progress:
    description: State of the wait. The action passes it from one slice of the wait to the next; do not set it.
    type: dict
    default: {}
"""

    SYSFS = r"""
options:
  sysfs_root:
    description: Where sysfs is mounted.
    type: path
    default: /sys
"""
