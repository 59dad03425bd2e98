#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_transport
short_description: Prove from NCCL's logs which transport it uses
version_added: 0.1.0
description:
  - Reads NCCL logs of pods, files and texts and decides, for every rank, whether NCCL took RDMA or fell back to TCP.
  - Only channel lines prove a transport. A selected network, a list of devices or a missing line proves nothing. The
    module fails when nothing is proved, unless O(expect.allow_unknown) is set.
  - Logs are read as streams, so memory use does not depend on their length.
  - The module writes only the copies that O(evidence_dir) asks for, and never reports a change.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes (only to read pods)
attributes:
  check_mode:
    description: The module reads and judges in check mode too, but keeps no copies.
    support: full
  diff_mode:
    description: The module changes nothing, so there is no difference to show.
    support: none
options:
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
      since_seconds:
        description: Read only this many last seconds of the log; V(0) reads all of it.
        type: int
        default: 0
      previous:
        description: Read the container that ran before the last restart.
        type: bool
        default: false
      log_file:
        description:
          - File or glob in the container to which NCCL writes (E(NCCL_DEBUG_FILE)). It is read with C(exec), and the
            container's output is not read then, because the server may print a prompt that quotes lines of NCCL.
          - A device such as C(/dev/stdout) is the container's output.
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
    description: Log files and globs (also C(**)), plain or gzip. Each file is a separate source.
    type: list
    elements: str
    default: []
  text:
    description: A log as text.
    type: str
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
      balance:
        description: Smallest share of channels that a rank's least used device may have of its most used one.
        type: float
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

- name: Expect TCP
  gb10.cluster.nccl_transport:
    text: "{{ lookup('ansible.builtin.file', 'rank0.log') }}"
    expect:
      networks: [Socket]
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description: V(ib), V(socket), C(plugin:NAME), V(mixed), V(intra), V(error) or V(unknown).
  returned: always
  type: str
  sample: ib
transport_class:
  description: V(rdma), V(tcp), V(intra), V(mixed) or V(unknown).
  returned: always
  type: str
  sample: rdma
evidence:
  description: The weakest evidence of any source, V(channels), V(selection), V(banner), V(failure) or V(none).
  returned: always
  type: str
  sample: channels
satisfied:
  description: Whether O(expect) is met; the module fails when not.
  returned: always
  type: bool
healthy:
  description:
    - Whether no rank logged an error that stopped NCCL, at its start or later.
    - An error after the channel lines does not change the verdict; RV(causes) names it.
  returned: always
  type: bool
complete:
  description: Whether every communicator that was begun has finished its set-up.
  returned: always
  type: bool
failures:
  description: What is missing, one sentence per failure, with rank and source.
  returned: always
  type: list
  elements: str
ranks:
  description: One entry per process with host, pid, rank, pod, verdict, evidence, channels and communicators.
  returned: always
  type: list
  elements: dict
sources:
  description: The judgement of each pod or file by itself.
  returned: always
  type: list
  elements: dict
causes:
  description: Probable causes, best first, each with its remedy, its confidence and the log line that shows it.
  returned: always
  type: list
  elements: dict
nccl_versions:
  description: The NCCL versions that were seen.
  returned: always
  type: list
  elements: str
kept:
  description: The files written to O(evidence_dir).
  returned: always
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
from ansible_collections.gb10.cluster.plugins.module_utils._nccl import overall
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.expectation import Expectation
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import judge_until_final, pod_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import (
    Judgement,
    judge_sources,
    keep_evidence,
    local_sources,
)

EXPECT_SPEC: dict[str, dict[str, Any]] = {
    "networks": {"type": "list", "elements": "str", "default": []},
    "evidence": {"type": "str", "choices": ["banner", "selection", "channels"], "default": "channels"},
    "ranks": {"type": "int", "default": 0},
    "nodes": {"type": "int", "default": 0},
    "min_devices": {"type": "int", "default": 0},
    "balance": {"type": "float", "default": 0.0},
    "gdr": {"type": "bool"},
    "complete": {"type": "bool", "default": False},
    "allow_intra": {"type": "bool", "default": False},
    "allow_unknown": {"type": "bool", "default": False},
}
PODS_SPEC: dict[str, dict[str, Any]] = SELECTION_SPEC | {
    "since_seconds": {"type": "int", "default": 0},
    "previous": {"type": "bool", "default": False},
    "log_file": {"type": "str", "default": ""},
    "rank_label": {"type": "str", "default": ""},
}


def judge_once(options: dict[str, Any], expect: Expectation) -> Judgement:
    """Read and judge everything once; raise SourceError and ClusterError."""
    sources = local_sources(options["files"], options["text"])
    places: dict[str, int | None] = {}
    if wanted := options["pods"]:
        cluster = Cluster(options["kubeconfig"], options["context"])
        containers = find_containers(
            cluster, wanted["namespace"], wanted["label_selector"], wanted["container"], wanted["rank_label"]
        )
        places = {each.pod: each.place for each in containers}
        since = {"since_seconds": wanted["since_seconds"]} if wanted["since_seconds"] else {}
        sources |= pod_sources(containers, wanted["log_file"], previous=wanted["previous"], **since)
    return judge_sources(sources, expect, places)


def run(options: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Read and judge until the judgement is final or the time is over; return the judgement."""
    result, kept = judge_until_final(
        partial(judge_once, options, overall.expectation(options["expect"] or {})),
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
            "expect": {"type": "dict", "options": EXPECT_SPEC},
            "timeout": {"type": "int", "default": 0},
            "interval": {"type": "int", "default": 5},
            "evidence_dir": {"type": "path"},
        },
        required_one_of=[["pods", "files", "text"]],
        supports_check_mode=True,
    )
    result = run(module.params, keep=not module.check_mode)
    if result["satisfied"]:
        module.exit_json(changed=False, **result)
    module.fail_json(changed=False, **result)


if __name__ == "__main__":
    main()
