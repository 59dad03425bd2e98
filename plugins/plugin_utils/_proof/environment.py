# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read NCCL's environment, conf files and devices in a running container. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import PodContainer, run_in_each
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import kernel_refuses_pins

from .._serving.nccl_env import lint_env

# Only these variables are read, so other variables (such as tokens) never leave the container.
_NAMES = "^(NCCL_[A-Z0-9_]*|GLOO_SOCKET_IFNAME|CUDA_LAUNCH_BLOCKING)="
# Process 1 has the container's initial environment; NCCL reads NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf. The
# first value of a variable counts.
SCRIPT = (
    "echo '#env'; tr '\\0' '\\n' < /proc/1/environ 2>/dev/null | grep -E '" + _NAMES + "'; "
    "echo '#conf'; cat \"${NCCL_CONF_FILE:-$HOME/.nccl.conf}\" 2>/dev/null; echo; "
    "cat /etc/nccl.conf 2>/dev/null; echo; "
    "echo '#hcas'; ls \"$1/class/infiniband\" 2>/dev/null; echo '#netdevs'; ls /sys/class/net 2>/dev/null; "
    "echo '#memory'; grep -hE '^(Cma|Max locked memory|CapEff)' /proc/meminfo /proc/self/limits /proc/self/status; true"
)


@dataclass(frozen=True)
class PodEnv:
    """The result of SCRIPT; ``variables`` are those that NCCL uses."""

    variables: dict[str, str]
    hcas: list[str]
    netdevs: list[str]
    memory: list[str]

    @property
    def pins(self) -> str:
        """Return why memory can't be pinned: ``kernel``, ``memlock``, or empty if nothing shows it."""
        if kernel_refuses_pins("\n".join(self.memory)):
            return "kernel"
        told = dict(line.split(None, 1) for line in self.memory if len(line.split()) > 1)
        # Columns: Max locked memory, soft limit, hard limit, unit. CAP_IPC_LOCK is bit 14.
        limit = told.get("Max", "locked memory unlimited").split()[2]
        capable = int(told.get("CapEff:", "0").strip() or "0", 16) >> 14 & 1
        return "" if limit == "unlimited" or capable else "memlock"


def parse_environment(text: str) -> PodEnv:
    """Return the result from SCRIPT's output; unknown lines are ignored.

    A line is ``NAME=value``, and in a conf file ``#`` begins a comment only in column one.
    """
    parts: dict[str, list[str]] = {"env": [], "conf": [], "hcas": [], "netdevs": [], "memory": []}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            current = parts.get(line[1:], current)
        elif line:
            current.append(line)
    variables: dict[str, str] = {}
    for line in parts["env"] + parts["conf"]:
        name, sign, value = line.rstrip("\r").partition("=")
        if sign:
            variables.setdefault(name, value)
    return PodEnv(variables, parts["hcas"], parts["netdevs"], parts["memory"])


def read_environments(containers: Iterable[PodContainer], sysfs_root: str) -> dict[str, PodEnv]:
    """Return NCCL's environment in every container, by pod; raise ClusterError."""
    command = ["/bin/sh", "-c", SCRIPT, "sh", sysfs_root]
    return {pod: parse_environment(ran.stdout) for pod, ran in run_in_each(containers, command).items()}


def lint_environments(environments: Mapping[str, PodEnv], expect_rdma: bool) -> list[Finding]:
    """Return all findings about these environments, worst first."""
    return sort_findings(
        finding
        for name, seen in environments.items()
        for finding in lint_env(
            seen.variables, expect_rdma=expect_rdma, hcas=seen.hcas, netdevs=seen.netdevs, where=name
        )
    )
