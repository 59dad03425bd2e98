# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container beside a rank's server that reads NCCL's files and keeps the gate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import SIDECAR, TRANSPORT
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import LOG_DIR

from .model import Plan, RankPlan
from .pods import PodOptions, account, code_volume, container, own_addresses, role
from .volumes import FILES

PROGRAM = "_transport_gate.sidecar"
_CODE, _ACCOUNT, _STATE = "transport-code", "/var/run/secrets/gb10", "/var/lib/gb10"


def programs_of(plan: Plan) -> str:
    """Return the name of the ConfigMap with the programs of a group: the sidecar and the supervisor."""
    return f"{plan.instance}-programs"


def gated(plan: Plan, options: PodOptions) -> bool:
    """Tell whether the ranks of a group keep the gate; those of one node use no network that could be proven."""
    return options.transport_gate != "off" and len(plan.ranks) > 1


def watched(plan: Plan, options: PodOptions) -> bool:
    """Tell whether the sidecars of a group have something to report: the transport, or the memory of their nodes."""
    return gated(plan, options) or bool(_memory(options))


def metrics_port(plan: Plan) -> int:
    """Return the port of the sidecar's metrics in each pod: the second one after the server's."""
    return plan.service.port + 2


def _gate(entry: RankPlan, plan: Plan, options: PodOptions) -> str:
    """Return the settings of a rank's gate as JSON; their keys are the fields of the sidecar's Gate."""
    expect = plan.expect
    return json.dumps(
        {
            "instance": plan.instance,
            "rank": entry.rank,
            "pods": [rank.pod for rank in plan.ranks],
            "rails": [
                {"device": one.rdma_device, "interface": one.interface, "address": one.ip, "mtu": plan.mtu}
                for one in entry.networks
            ],
            "expect": {
                "networks": list(expect.networks),
                "ranks": expect.ranks // len(plan.ranks),
                "nodes": expect.nodes,
                "min_devices": expect.min_devices,
                "complete": True,
                "gdr": expect.gdr or None,
            }
            if gated(plan, options)
            else None,
            "rdma": plan.transport == "roce",
            "port": plan.service.port,
            "metrics_port": metrics_port(plan),
            "sysfs_root": options.sysfs_root,
            "memory": _memory(options),
            "answers": options.answers if entry.rank == 0 else "off",
        }
    )


def _memory(options: PodOptions) -> dict[str, float]:
    """Return the limits of the node's memory. Nobody could stop the group without the supervisor."""
    if not (options.memory_guard and options.supervisor):
        return {}
    warn, stop = options.memory_guard_percent
    return {"warn": warn, "stop": stop, "full": options.memory_guard_pressure}


def _probe(path: str, **limits: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "transport"}, "timeoutSeconds": 5, **limits}


def with_sidecar(
    spec: dict[str, Any], entry: RankPlan, plan: Plan, options: PodOptions, code: Mapping[str, str]
) -> dict[str, Any]:
    """Return a rank's pod with the sidecar as its last container; ``code`` is its program, by path.

    NCCL's files are read here and not in the server's container, because a server that fails at its start can't be
    asked for the reason. The sidecar needs no privilege in any RDMA mode, and only it has a token of the API.
    """
    arguments = ["--nccl-logs", LOG_DIR]
    env: list[dict[str, Any]] = []
    mounted = [
        {"name": "files", "mountPath": FILES, "readOnly": True},
        {"name": "nccl", "mountPath": LOG_DIR, "readOnly": True},
    ]
    volumes = [code_volume(_CODE, programs_of(plan), code)]
    more: dict[str, Any] = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}}
    gates: dict[str, Any] = {}
    if watched(plan, options):
        arguments += ["--gate", _gate(entry, plan, options), "--state", _STATE]
        env += [
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in (("POD_NAMESPACE", "metadata.namespace"), ("POD_UID", "metadata.uid"))
        ]
        env.append(own_addresses())
        mounted.append({"name": "transport-account", "mountPath": _ACCOUNT, "readOnly": True})
        mounted.append({"name": "transport-state", "mountPath": _STATE})
        certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        token = {"path": "token", "expirationSeconds": 3600}
        sources = [{"serviceAccountToken": token}, {"configMap": certificate}]
        volumes.append({"name": "transport-account", "projected": {"sources": sources}})
        # What was counted outlives a start of this container.
        volumes.append({"name": "transport-state", "emptyDir": {"sizeLimit": "1Mi"}})
        more["ports"] = [{"name": "transport", "containerPort": metrics_port(plan), "protocol": "TCP"}]
        # A sidecar that hangs can't take its condition back, so the kubelet restarts it. It may ignore SIGTERM.
        live = _probe("/live", periodSeconds=10, failureThreshold=6, terminationGracePeriodSeconds=5)
        more["livenessProbe"] = live
        proves = gated(plan, options) and options.transport_gate == "enforce"
        if proves or (options.answers == "enforce" and entry.rank == 0):
            more["readinessProbe"] = _probe("/ready", periodSeconds=5, failureThreshold=3)
        if proves:
            gates = {"readinessGates": [{"conditionType": TRANSPORT}]}
    made = container(SIDECAR, PROGRAM, arguments, plan, options, _CODE) | more
    made["env"] += env
    made["volumeMounts"] += mounted
    return spec | {
        "containers": [*spec["containers"], made],
        "volumes": [*spec["volumes"], *volumes],
        **gates,
    }


def accounts(plan: Plan, options: PodOptions, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the service account of each rank, and what its sidecar may do.

    That is to read the pods of the group, to write the status of its own pod, and to create events. With one account
    for all ranks, whoever breaks into one pod could say that the others have proven their transport.
    """
    own = [{"name": entry.name, "namespace": plan.namespace, "labels": dict(labels)} for entry in plan.ranks]
    objects = [account(meta) for meta in own]
    for entry, meta in zip(plan.ranks, own, strict=True) if watched(plan, options) else ():
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": [e.pod for e in plan.ranks], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/status"], "resourceNames": [entry.pod], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]
        objects += role(meta, rules, entry.name, plan.namespace)
    return objects
