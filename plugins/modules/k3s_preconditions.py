# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_preconditions
short_description: Check whether K3s can be installed on a host
version_added: 0.1.0
description:
  - Reads the host and applies those of preflight's rules that need neither a GPU nor the fabric, before anything is
    changed.
  - Fails with all findings at once if one of them is an error. It never changes the host.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  role:
    description: The role that the host will have in the cluster.
    type: str
    choices: [server, agent]
    required: true
  version:
    description: The K3s release to install, such as V(v1.36.4+k3s1).
    type: str
    required: true
  kubelet_args:
    description: Arguments of the kubelet, each as V(key=value). They override the thresholds that the module computes.
    type: list
    elements: str
    default: []
  data_dir:
    description: K3s's data directory. The kubelet's eviction thresholds are computed from the size of its disk.
    type: path
    default: /var/lib/rancher/k3s
  embedded_etcd:
    description: Whether the servers store their state in the embedded etcd, which needs two more ports.
    type: bool
    default: false
  embedded_registry:
    description: Whether the nodes fetch images from each other, which needs two ports on every node.
    type: bool
    default: false
  api_host:
    description: Name or address at which nodes reach the API.
    type: str
    default: ""
  settings:
    description: >-
      Settings that a running cluster cannot change, by their names in K3s's C(config.yaml): V(data-dir),
      V(cluster-cidr), V(service-cidr), V(cluster-dns), V(secrets-encryption), V(node-ip) and V(flannel-iface). Another
      value than that of a started K3s is an error.
    type: dict
    default: {}
  controller_time:
    description: Seconds since 1970 on the controller, just before the task. If omitted, the clocks are not compared.
    type: float
  upgrading:
    description: Whether replacing another installed version is intended.
    type: bool
    default: false
  severities:
    description: Rule names with the severity to use instead of the usual, V(error), V(warning), V(info) or V(off).
    type: dict
    default: {}
  binary:
    description: Path at which an installed K3s is expected.
    type: path
    default: /usr/local/bin/k3s
  facts:
    description: >-
      What M(gb10.cluster.preflight_info) returned as C(gb10_preflight) earlier in this run. The module reads the host
      itself if this is empty, or if O(data_dir) is not the first of its disks.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Check the host
  gb10.cluster.k3s_preconditions:
    role: agent
    version: v1.36.4+k3s1
"""

RETURN = r"""
ansible_facts:
  description: The fact C(architecture), as M(ansible.builtin.setup) names it.
  returned: always
  type: dict
addresses:
  description: The addresses of every interface, without their prefixes; link-local ones are left out.
  returned: always
  type: dict
findings:
  description: All findings, errors first; each with C(severity), C(rule), C(key), C(value), C(reason) and C(remedy).
  returned: success
  type: list
  elements: dict
kubelet_args:
  description: Arguments of the kubelet, with thresholds for eviction and image deletion that suit the disk.
  returned: always
  type: list
  elements: str
installed:
  description: Whether this collection has installed K3s on the host.
  returned: always
  type: bool
started:
  description: Whether the host has the kubeconfig that K3s writes when a server starts.
  returned: always
  type: bool
installed_version:
  description: The installed release, or an empty string.
  returned: always
  type: str
"""
