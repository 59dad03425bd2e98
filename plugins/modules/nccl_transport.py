#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_transport
short_description: Verify that NCCL picked RDMA (IB, RoCE) rather than TCP (Socket)
version_added: 0.1.0
description:
  - Decides for every rank whether NCCL took RDMA or fell back to TCP, and fails unless O(expect) is proved.
  - With O(files), O(pods) or O(text), it reads NCCL's logs there. Only channel lines prove a transport. A selected
    network, a list of devices or a missing line proves nothing, unless O(expect.allow_unknown) is set.
  - A text that a server printed proves nothing, because a prompt can make a server print such lines, unless
    O(text_proves) is set.
  - With O(plan) alone, in a task of role nccl_verify, it proves the transport of the running group. It checks the NCCL
    environment of every rank, sends generations through the head, judges the files that NCCL wrote in every pod,
    compares the counters of RDMA devices and interfaces with that verdict, compares both with the bytes that the model
    has to exchange, and can measure an all-reduce. All other options are then those of the role. It prints each step
    when it begins, and a progress line every 30 seconds.
  - When a step of that proof fails, the module still judges files and counters, because they show most causes. It
    prints one screen at the end of the run, with the causes that no other one explains, their remedies and the line
    that shows them. C(proof.json) beside the logs has the complete result.
  - Logs are read as streams, so memory use does not depend on their length.
  - The module writes only copies of what it read and its result, and never reports a change.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes (only to read pods)
attributes:
  check_mode:
    description: The module reads and judges logs in check mode too.
    details: It keeps no copies then. The proof of a group sends no generation and reads no counters, and is skipped if
      there is no group.
    support: partial
  diff_mode:
    description: The module changes nothing, so there is no difference to show.
    support: none
options:
  plan:
    description:
      - The plan of a group, as returned by module serving_plan.
      - With O(files), O(pods) or O(text), only its expectation is used, and O(expect) adds to it.
    type: dict
  pods:
    description: Pods whose logs are read. Each pod is a separate source.
    type: dict
    suboptions:
      namespace:
        description: Namespace of the pods.
        type: str
        required: true
      label_selector:
        description: Labels of the pods, in the syntax of C(kubectl -l).
        type: str
        required: true
      container:
        description: Name of the container. The default is the pod's first container.
        type: str
        default: ""
      log_file:
        description:
          - File or glob in the container to which NCCL writes (E(NCCL_DEBUG_FILE)). It is read with C(exec), and the
            container's output is not read then, because the server may print a prompt that quotes lines of NCCL.
          - Empty, or a device such as C(/dev/stdout), reads the container's output, which is a text.
        type: str
        default: ""
      rank_label:
        description:
          - Label that contains each pod's number in its group, such as V(gb10.cluster/rank).
          - If a communicator spans all pods, its NCCL ranks must have the same order as these numbers.
        type: str
        default: ""
  kubeconfig:
    description: The kubeconfig of the pods' cluster.
    type: path
  context:
    description: The context in the kubeconfig; empty uses the current context.
    type: str
  files:
    description:
      - Log files and globs (also C(**)) on the host of the task, plain or compressed. Each file is a separate source.
      - A file with other lines than NCCL's is the output of a server, which is a text.
    type: list
    elements: str
    default: []
  text:
    description: A log as text.
    type: str
  text_proves:
    description: Accept what the server prints as proof. A client's prompt can make a server print NCCL's lines, so
      leave it off for the log of a server that has answered others.
    type: bool
    default: false
  expect:
    description: What the logs must prove. The default is RDMA, proved by channel lines, in every source.
    type: dict
    suboptions:
      networks:
        description: Glob patterns of the allowed network names, such as V(IBext*). Empty allows every RDMA network.
        type: list
        elements: str
        default: []
      evidence:
        description: The weakest evidence that is accepted.
        type: str
        choices: [banner, selection, channels]
        default: channels
      ranks:
        description: Number of ranks that must be seen over all sources.
        type: int
        default: 0
      nodes:
        description: Number of nodes that one communicator must span.
        type: int
        default: 0
      min_devices:
        description: Number of devices that every rank must use; 2 on a GB10 with both halves of its port.
        type: int
        default: 0
      gdr:
        description: Whether GPUDirect RDMA must be on or off; not checked if omitted. A GB10 never has it.
        type: bool
      complete:
        description: Require that every communicator has finished its set-up.
        type: bool
        default: false
      allow_intra:
        description: Accept jobs that never leave their node.
        type: bool
        default: false
      allow_unknown:
        description: Accept logs that prove nothing.
        type: bool
        default: false
  timeout:
    description: Seconds to wait for channel lines of late connections; a proved wrong transport ends the wait at once.
    type: int
    default: 0
  interval:
    description: Seconds between two reads of the logs.
    type: int
    default: 5
  evidence_dir:
    description: Directory, on the host that runs the module, for a trimmed copy of each log and the judgement as JSON.
    type: path
"""

EXAMPLES = r"""
- name: Prove that all four ranks talk RoCE over both rails
  gb10.cluster.nccl_transport:
    kubeconfig: ~/.kube/config
    pods:
      namespace: gb10-serving
      label_selector: gb10.cluster/instance=gemma-4-31b-it,gb10.cluster/rank
      container: transport
      log_file: /var/log/nccl/*/*
      rank_label: gb10.cluster/rank
    expect:
      networks: [IB, "IBext*"]
      ranks: 4
      nodes: 4
      min_devices: 2
    timeout: 60
  delegate_to: localhost

- name: Judge logs that were kept
  gb10.cluster.nccl_transport:
    files: [logs/rank*.log.gz]
  register: verdict
  delegate_to: localhost

- name: Judge the output of a server, and expect TCP
  gb10.cluster.nccl_transport:
    text: "{{ lookup('ansible.builtin.file', 'rank0.log') }}"
    text_proves: true
    expect:
      networks: [Socket]
  delegate_to: localhost

# A task of role nccl_verify, which brings the other options.
- name: Prove the transport of the group
  gb10.cluster.nccl_transport:
    plan: "{{ ansible_facts['gb10_serving_plan'] }}"
"""

RETURN = r"""
source:
  description: V(files) if NCCL wrote all that was read to files of its own, else V(text).
  returned: with O(files), O(pods) or O(text)
  type: str
  sample: files
remark:
  description: What a text can't prove; empty for V(files).
  returned: with O(files), O(pods) or O(text)
  type: str
  sample: ''
verdict:
  description: V(ib), V(socket), C(plugin:NAME), V(mixed), V(intra), V(error) or V(unknown).
  returned: with O(files), O(pods) or O(text)
  type: str
  sample: ib
transport_class:
  description: V(rdma), V(tcp), V(intra), V(mixed) or V(unknown).
  returned: with O(files), O(pods) or O(text)
  type: str
  sample: rdma
evidence:
  description: The weakest evidence of any source, V(channels), V(selection), V(banner), V(failure) or V(none).
  returned: with O(files), O(pods) or O(text)
  type: str
  sample: channels
satisfied:
  description: Whether O(expect) is met; the module fails when not.
  returned: with O(files), O(pods) or O(text)
  type: bool
healthy:
  description:
    - Whether no rank logged an error that stopped NCCL, at its start or later.
    - An error after the channel lines does not change the verdict; RV(causes) names it.
  returned: with O(files), O(pods) or O(text)
  type: bool
complete:
  description: Whether every communicator that was begun has finished its set-up.
  returned: with O(files), O(pods) or O(text)
  type: bool
failures:
  description: What is missing, one sentence per failure, with rank and source.
  returned: with O(files), O(pods) or O(text)
  type: list
  elements: str
ranks:
  description: One entry per process with host, pid, rank, pod, verdict, evidence, channels and communicators.
  returned: with O(files), O(pods) or O(text)
  type: list
  elements: dict
sources:
  description: The judgement of each pod or file by itself.
  returned: with O(files), O(pods) or O(text)
  type: list
  elements: dict
causes:
  description: Probable causes, best first, each with its remedy, its confidence and the log line that shows it.
  returned: with O(files), O(pods) or O(text)
  type: list
  elements: dict
nccl_versions:
  description: The NCCL versions that were seen.
  returned: with O(files), O(pods) or O(text)
  type: list
  elements: str
kept:
  description: The files written to O(evidence_dir).
  returned: with O(files), O(pods) or O(text)
  type: list
  elements: str
proof:
  description: The complete result, as C(proof.json) has it. The keys are the same whether or not the transport is
    proved.
  returned: with O(plan) alone, if the transport is proved
  type: dict
  contains:
    msg:
      description: The proof in one line, or why nothing is proved and what to do.
      type: str
    satisfied:
      description: Whether all steps passed.
      type: bool
    verdict:
      description: V(ib), V(socket), C(plugin:NAME), V(mixed), V(intra), V(error) or V(unknown).
      type: str
    transport_class:
      description: V(rdma), V(tcp), V(intra), V(mixed) or V(unknown).
      type: str
    evidence:
      description: The kind of evidence for the verdict.
      type: str
    nccl_versions:
      description: The NCCL versions that were seen.
      type: list
      elements: str
    ranks:
      description: One entry per process, as RV(ranks) has them.
      type: list
      elements: dict
    waived:
      description: What the rules that C(serving_plan_waive) names said, by their names.
      type: dict
    image_verdict:
      description: >-
        What the image said of its command line before the group started in this run, with the arguments that it
        resolved; empty if it was not asked.
      type: dict
    causes:
      description: Probable causes, best first, each with its remedy, its confidence and the log line that shows it.
      type: list
      elements: dict
    failures:
      description: What the logs of the ranks lack for a proof, one sentence each.
      type: list
      elements: str
    reason:
      description: Why the proof failed, without the observations that V(msg) adds; empty if it did not.
      type: str
    measured:
      description: Tokens, tokens per second and seconds to the first token of every generation, slowest first.
      type: list
      elements: dict
    bandwidth:
      description:
        - Size, time, algorithm bandwidth and bus bandwidth of the all-reduce; none if it was not measured.
        - C(latency) lists p50 and p99 in microseconds for 4 KiB to 1 MiB. C(decode) compares the time of a model's
          collectives per token with the measured time between tokens.
      type: dict
    counters:
      description:
        - Whether the counters agree with the verdict, the bytes by RDMA and by TCP, and a one-line summary.
        - C(cables) has the bytes that each rank moved by RDMA on the cable to each neighbour, in a group without a
          switch.
      type: dict
    ledger:
      description:
        - The path of the bytes that the model had to exchange, V(rdma), V(tcp), V(mixed) or V(unexplained), without
          NCCL's log.
        - C(ranks) has the predicted and the counted bytes of every pod. Without a prediction C(verdict) is none and
          C(msg) says why.
        - C(group) has those of all pods together, and C(algorithms) what NCCL's files say that it takes, by size.
      type: dict
    findings:
      description: The errors and warnings about the environment of the ranks.
      type: list
      elements: dict
    evidence_files:
      description: The files that were kept.
      type: list
      elements: str
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import SELECTION_SPEC, find_containers
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import judge_until_final, pod_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import (
    Judgement,
    expand,
    judge_sources,
    keep_evidence,
    local_sources,
    written_by_nccl,
)
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, expectation

EXPECT_SPEC: dict[str, dict[str, Any]] = {
    "networks": {"type": "list", "elements": "str", "default": []},
    "evidence": {"type": "str", "choices": ["banner", "selection", "channels"], "default": "channels"},
    "ranks": {"type": "int", "default": 0},
    "nodes": {"type": "int", "default": 0},
    "min_devices": {"type": "int", "default": 0},
    "gdr": {"type": "bool"},
    "complete": {"type": "bool", "default": False},
    "allow_intra": {"type": "bool", "default": False},
    "allow_unknown": {"type": "bool", "default": False},
}
PODS_SPEC: dict[str, dict[str, Any]] = SELECTION_SPEC | {
    "log_file": {"type": "str", "default": ""},
    "rank_label": {"type": "str", "default": ""},
}


def is_text(options: dict[str, Any]) -> bool:
    """Return whether a source is something else than a file that NCCL wrote; raise SourceError."""
    pods = options["pods"]
    in_pods = pods is not None and (not pods["log_file"] or pods["log_file"].startswith(("/dev/", "/proc/")))
    return (
        options["text"] is not None or in_pods or not all(written_by_nccl(path) for path in expand(options["files"])[0])
    )


def refuse_text(result: dict[str, Any]) -> dict[str, Any]:
    """Return the judgement of a text: whatever it says, it proves nothing."""
    if not result["satisfied"]:
        return result
    why = f"{result['remark']}. Read such files, or set text_proves where nobody else can send prompts"
    return result | {"satisfied": False, "failures": [why], "msg": f"{result['msg']}. {why}"}


def judge_once(options: dict[str, Any], expect: Expectation) -> Judgement:
    """Read and judge everything once; raise SourceError and ClusterError."""
    own_files = not is_text(options)
    sources = local_sources(options["files"], options["text"])
    places: dict[str, int | None] = {}
    if wanted := options["pods"]:
        cluster = Cluster(options["kubeconfig"], options["context"])
        containers = find_containers(
            cluster, wanted["namespace"], wanted["label_selector"], wanted["container"], wanted["rank_label"]
        )
        places = {each.pod: each.place for each in containers}
        sources |= pod_sources(containers, wanted["log_file"])
    result, kept = judge_sources(sources, expect, places, own_files=own_files)
    return result if own_files or options["text_proves"] else refuse_text(result), kept


def run(options: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Read and judge until the judgement is final or the time is over; return the judgement."""
    result, kept = judge_until_final(
        partial(judge_once, options, expectation(options["expect"] or {})),
        options["timeout"],
        time.monotonic,
        partial(time.sleep, options["interval"]),
    )
    directory = options["evidence_dir"]
    written = keep_evidence(Path(directory), result, kept) if directory and keep else []
    return result | {"kept": written}


def main() -> None:
    """Judge, and fail when the expectation is not met."""
    module = AnsibleModule(
        argument_spec={
            "pods": {"type": "dict", "options": PODS_SPEC},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "files": {"type": "list", "elements": "str", "default": []},
            "text": {"type": "str"},
            "text_proves": {"type": "bool", "default": False},
            "plan": {"type": "dict"},
            "expect": {"type": "dict", "options": EXPECT_SPEC},
            "timeout": {"type": "int", "default": 0},
            "interval": {"type": "int", "default": 5},
            "evidence_dir": {"type": "path"},
        },
        # The action of this name takes a plan out of the options.
        required_one_of=[["pods", "files", "text"]],
        supports_check_mode=True,
    )
    result = run(module.params, keep=not module.check_mode)
    if result["satisfied"]:
        module.exit_json(changed=False, **result)
    module.fail_json(changed=False, **result)


if __name__ == "__main__":
    main()
