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
  - Checks the NCCL environment of every rank, sends generations through the head, and judges the logs of all ranks. It
    compares the RDMA and interface counters with that verdict and can also measure an all-reduce between the pods.
  - All other options are those of role nccl_verify, so it must run in a task of that role.
  - Prints each step when it begins, and a progress line every 30 seconds.
  - When a step fails, the module still judges logs and counters, because they show most causes.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes
attributes:
  check_mode:
    description: Sends no generation, reads no counters and keeps no files. Skipped if there is no group.
    support: partial
  diff_mode:
    description: The module changes nothing, so there is no difference to show.
    support: none
options:
  plan:
    description: The plan of the group, as returned by module serving_plan.
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
  description: The complete result. The keys are the same whether or not the transport is proved.
  returned: unless skipped
  type: dict
  contains:
    msg:
      description: The proof in one line, or why nothing is proved and what to do.
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
      description: The kind of evidence for the verdict.
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
      description: Probable causes, best first, each with its remedy, its confidence and the log line that shows it.
      returned: success or failure
      type: list
      elements: dict
    measured:
      description: Tokens, tokens per second and seconds to the first token of every generation, slowest first.
      returned: success or failure
      type: list
      elements: dict
    bandwidth:
      description: Size, time, algorithm bandwidth and bus bandwidth of the all-reduce; none if it was not measured.
      returned: success or failure
      type: dict
    counters:
      description: Whether the counters agree with the verdict, the bytes by RDMA and by TCP, and a one-line summary.
      returned: success or failure
      type: dict
    findings:
      description: The errors and warnings about the environment of the ranks.
      returned: success or failure
      type: list
      elements: dict
    evidence_files:
      description: The files that were kept.
      returned: success or failure
      type: list
      elements: str
"""
