# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels, annotations, conditions and containers that this collection puts on Kubernetes objects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

INSTANCE = "gb10.cluster/instance"
RANK = "gb10.cluster/rank"
ROLE = "gb10.cluster/role"
REVISION = "gb10.cluster/revision"
VF_INDEX = "gb10.cluster/vf-index"
# Network policies can only add permissions, so the namespace's policy must exclude heads with this label.
GUARDED = "gb10.cluster/guarded"
# The namespace's policy lets ranks with this label reach each other over the pod network.
MEETING = "gb10.cluster/meeting"
# Pods of role gateway; network policies admit them to the heads.
GATEWAY = "gb10.cluster/gateway"
# The model of a group, as an annotation of its Service: one gateway serves one model.
MODEL = "gb10.cluster/model"
RAIL = "gb10.cluster/rail"
SUPERVISOR = "gb10.cluster/supervisor"
# Every object of a fallback: the name of a set of nodes on its workloads and pods, SWITCH on all others.
FALLBACK = "gb10.cluster/fallback"
SWITCH = "switch"
NAMESPACE = "gb10.cluster/namespace"
UPGRADE = "gb10.cluster/upgrade"
# The pods that pull one image, by the hash of its name.
PULL = "gb10.cluster/pull"
# The pod in which an image judges a group's command lines, by the hash of the question.
VERDICT = "gb10.cluster/verdict"
# The condition in the status of a rank's pod that says whether the rank has proven its transport.
TRANSPORT = "gb10.cluster/transport"
# The condition that says whether the rank's node has enough memory, and its reason when the whole group has to stop.
MEMORY = "gb10.cluster/memory"
MEMORY_OUT = "MemoryOut"
# The condition of a head that is false while it answers with noise, and its reason when it must get no requests.
ANSWERS = "gb10.cluster/answers"
ANSWERS_OUT = "GarbageOut"
# The condition of a rank that is false when its rails or its node had faults since its start.
HEALTH = "gb10.cluster/health"
# The condition of a rank that tells what its load takes of the node's memory, false if the load had to be ended.
LOAD = "gb10.cluster/load"
# What the supervisor's log says before the finding about a hang.
HUNG = "why the group hung: "
# The container of a rank's pod that reads NCCL's files; it also runs while the server is down.
SIDECAR = "transport"

NAME = "app.kubernetes.io/name"
APP_INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
VERSION = "app.kubernetes.io/version"
MANAGED_BY = "app.kubernetes.io/managed-by"
OWNER = "gb10.cluster"

_NUMBER = re.compile(r"[0-9]{1,4}")


def number(text: Any) -> int | None:
    """Return the number of a rank or VF that a label or annotation has; None if whoever wrote it wrote none."""
    return int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None


# Tell which lines of a server's log show that its start goes on.

# Answers to the kubelet's probes, which SGLang logs every few seconds, also when its warm-up hangs: uvicorn's access
# lines, and what http_server.py says about a health check without an answer.
_CAUSED_BY_PROBES = (' HTTP/1.1"', "Health check failed")


def progress(lines: Iterable[str]) -> list[str]:
    """Return the lines that the start wrote, without those that requests to the server caused."""
    return [line for line in lines if not any(text in line for text in _CAUSED_BY_PROBES)]
