#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Plan what every rank of a serving group runs
version_added: 0.1.0
description:
  - Joins a fabric plan and a profile into argv, environment, networks with addresses and resources of every rank.
  - Checks the profile against the SGLang release that it will run on, the topology against the nodes, the VFs against
    the fabric plan and the environment against NCCL, and fails with everything at once.
  - Runs on the controller, where profiles and catalogues are; no host and no cluster is touched.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.readonly]
options:
  fabric:
    description: The fabric plan, see M(gb10.cluster.fabric_plan).
    type: dict
    required: true
  profile:
    description: Name of the profile.
    type: str
    required: true
  preset:
    description: Preset of the profile; empty takes its default.
    type: str
    default: ""
  profile_dirs:
    description: Directories that are searched for profiles before the collection's own.
    type: list
    elements: path
    default: []
  overrides:
    description: What is laid over the preset, for example C(server_args) and C(env).
    type: dict
    default: {}
  sglang_version:
    description: Another SGLang release than the profile names; flags are translated for it.
    type: str
    default: ""
  image:
    description: Another image than the profile names.
    type: str
    default: ""
  images_from:
    description: Where copies of the images of all releases are, with C({version}) in it; it wins over O(image).
    type: str
    default: ""
  instance:
    description: Name of the group; empty takes the profile's.
    type: str
    default: ""
  nodes:
    description: Nodes in rank order.
    type: list
    elements: str
    default: []
  candidates:
    description: Where O(nodes) is empty, the first of these are taken, as many as the profile needs.
    type: list
    elements: str
    default: []
  vf_index:
    description: Index of the VFs that the group uses on every rail.
    type: int
    default: 0
  gpus_per_node:
    description: GPUs of a node.
    type: int
    default: 1
  gpu_resource:
    description: The GPU's resource name.
    type: str
    default: nvidia.com/gpu
  workload:
    description:
      - What runs the ranks. C(statefulset) is one each, for any group; C(leaderworkerset) is one for a group of two
        nodes, where the controller of LeaderWorkerSets is installed.
    type: str
    default: statefulset
  platform:
    description: What the nodes are; a profile for other hardware is refused, and V(gb10) sets what that machine needs.
    type: str
    default: gb10
  transport:
    description: What the ranks talk over, V(roce) or V(socket).
    type: str
    default: roce
  strict_transport:
    description: Forbid NCCL to fall back.
    type: bool
    default: false
  rdma_mode:
    description: How pods get at RDMA devices, V(privileged), V(ipc_lock), V(restricted) or V(none).
    type: str
    default: privileged
  rdma_resources:
    description: Resource names of the RDMA device plugin that pods ask for.
    type: list
    elements: str
    default: []
  sriov_prefix:
    description: When set, pods ask the SR-IOV device plugin for their VFs by resources of this prefix.
    type: str
    default: ""
  namespace:
    description: Namespace of the model pods.
    type: str
    default: gb10-serving
  port:
    description: Port of the head.
    type: int
    default: 30000
  rendezvous_port:
    description: Port on which the ranks meet.
    type: int
    default: 20000
  nccl_debug_file:
    description: NCCL_DEBUG_FILE of every rank.
    type: str
    default: /dev/stdout
  env:
    description: Environment over the profile's.
    type: dict
    default: {}
  metrics:
    description: Let the server count what benchmarks and monitoring read.
    type: bool
    default: true
  models_dir:
    description: Directory of every node that holds staged models; empty lets SGLang download them.
    type: str
    default: ""
  taken:
    description: What running groups hold, from P(gb10.cluster.serving_holders#filter).
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Plan the throughput preset on the first four nodes
  gb10.cluster.serving_plan:
    fabric: "{{ ansible_facts['gb10_fabric_plan'] }}"
    profile: gemma-4-31b-it
    preset: throughput
    candidates: "{{ groups['gb10_nodes'] }}"
  run_once: true
"""

RETURN = r"""
plan:
  description: The serving plan; with errors among its findings it has no ranks.
  returned: always
  type: dict
  sample:
    schema: 1
    instance: gemma-4-31b-it
    ranks: [{rank: 0, node: spark1, argv: [python3, -m, sglang.launch_server], env: {NCCL_DEBUG: INFO}}]
findings:
  description: Everything that is wrong or worth knowing, also on success.
  returned: always
  type: list
  elements: dict
msg:
  description: A line a rank, or what is wrong, where, and what to do.
  returned: always
  type: str
"""
