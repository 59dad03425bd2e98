# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find variables that give one port to two programs in the same network namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules
from .known import Known

# Of a node with K3s (docs.k3s.io/installation/requirements, and the listeners of a node of v1.36)
K3S = {2379: "etcd", 2380: "etcd", 5001: "K3s's embedded registry", 6444: "K3s's load balancer"}
K3S |= {10010: "containerd", 10250: "the kubelet", 10256: "kube-proxy", 10257: "K3s", 10258: "K3s", 10259: "K3s"}
# {place: (variables whose programs listen there, ports that others have there)}
PLACES: Mapping[str, tuple[tuple[str, ...], Mapping[int, str]]] = {
    "on the host": (("k3s_api_port", "models_share_port"), {22: "ssh", **K3S}),
    "in the pod of the head": (("serving_plan_port", "serving_plan_rendezvous_port", "nccl_verify_bandwidth_port"), {}),
    # serving/router.py
    "in the pod of the gateway": (("gateway_port",), {29000: "the gateway's metrics"}),
}
HEAD = "serving_plan_port"
# The gate and the switch publish metrics at the second and the third port after the server's.
AFTER_HEAD = {2: "the metrics of the transport gate", 3: "the metrics of the fallback"}


def check_ports(known: Known, variables: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return an error for each variable in ``{host: {name: value}}`` whose port another program has."""
    found: dict[str, Finding] = {}
    for host, values in variables.items():
        for finding in _collisions(known, values, host):
            found.setdefault(f"{finding.key} {finding.value} {finding.reason}", finding)
    return list(found.values())


def _collisions(known: Known, values: Mapping[str, Any], host: str) -> Iterator[Finding]:
    for place, (names, others) in PLACES.items():
        taken = dict(others)
        for name in names:
            given = values.get(name, known.names(known.owner(name))[name].get("default"))
            if not str(given).isdecimal():  # another check reports it
                continue
            port = int(given)
            if port in taken:
                yield Rules("_variables").finding(
                    "variables.port", port, host, key=name, place=place, other=taken[port]
                )
            taken.setdefault(port, name)
            if name == HEAD:
                taken |= {port + number: user for number, user in AFTER_HEAD.items()}
