#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_proof
short_description: Prove which transport the ranks of a running group use
version_added: 0.1.0
description:
  - Judges the NCCL environment of every rank, sends generations through the head, judges the logs of all ranks,
    compares the RDMA and interface counters with that verdict, and measures an all-reduce between the pods where asked.
  - Its other options are those of role nccl_verify; run it in a task of that role.
  - It shows each step when it begins, and a line every 30 seconds.
  - When a step fails, it still judges logs and counters, since they name most causes.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes
attributes:
  check_mode:
    description: Sends no generation, reads no counters and keeps no files; skipped where there is no group.
    support: partial
  diff_mode:
    description: There is nothing to show a difference of.
    support: none
options:
  plan:
    description: The plan of the group, as module serving_plan returns it.
    type: dict
    required: true
"""

EXAMPLES = r"""
# A task of role nccl_verify, which brings the other options.
- name: Prove the transport of the group
  gb10.cluster.nccl_proof:
    plan: "{{ ansible_facts['gb10_serving_plan'] }}"
"""

RETURN = r"""
proof:
  description: Everything that was found; the keys are the same whether the transport is proved or not.
  returned: unless skipped
  type: dict
  contains:
    msg:
      description: What is proved, or why nothing is and what to do.
      returned: success or failure
      type: str
    satisfied:
      description: Whether all steps passed.
      returned: success or failure
      type: bool
    verdict:
      description: V(ib), V(socket), C(plugin:NAME), V(mixed), V(intra), V(error) or V(unknown).
      returned: success or failure
      type: str
    transport_class:
      description: V(rdma), V(tcp), V(intra), V(mixed) or V(unknown).
      returned: success or failure
      type: str
    evidence:
      description: What the verdict rests on.
      returned: success or failure
      type: str
    nccl_versions:
      description: The NCCL versions that were seen.
      returned: success or failure
      type: list
      elements: str
    ranks:
      description: One entry per process, as module nccl_transport returns it.
      returned: success or failure
      type: list
      elements: dict
    causes:
      description: Probable causes with remedy, confidence and the line that each rests on, best first.
      returned: success or failure
      type: list
      elements: dict
    measured:
      description: Tokens, tokens per second and seconds to the first token of every generation, slowest first.
      returned: success or failure
      type: list
      elements: dict
    bandwidth:
      description: Size, time, algorithm and bus bandwidth of the all-reduce; none when it was not measured.
      returned: success or failure
      type: dict
    counters:
      description: Whether the counters agree with the verdict, the bytes by RDMA and by TCP, and a line that says so.
      returned: success or failure
      type: dict
    findings:
      description: What is wrong with the environment of the ranks.
      returned: success or failure
      type: list
      elements: dict
    evidence_files:
      description: The files that were kept.
      returned: success or failure
      type: list
      elements: str
"""
