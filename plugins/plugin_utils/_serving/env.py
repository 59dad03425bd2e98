# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment by which NCCL, Gloo and SGLang use the fabric. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import Transport
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.blinders import VARIABLES, blinds

from .._rules import Rules

# The plan sets these from the addresses and devices of the fabric plan; another value would be wrong.
OWNED = frozenset(
    {"GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET", "NCCL_SOCKET_IFNAME", "SGLANG_HOST_IP"}
)
# NCCL writes the evidence of its transport to this variable's file. start_rank.py sets it at every start of a rank.
_EVIDENCE = "NCCL_DEBUG_FILE"
_finding = Rules("_serving").finding


def fabric_env(
    interface: str, address: str, devices: Sequence[str], transport: Transport, strict: bool
) -> dict[str, str]:
    """Return the environment that binds one rank to its VFs.

    ``interface`` is the pod's interface that reaches every rank, ``address`` the IPv4 address there (empty for the
    pod network: SGLang then takes that of the default route), ``devices`` the RDMA devices of all rails in rail order.
    ``strict`` forbids NCCL to choose another transport, so that a rank without RDMA fails at start instead of running
    on TCP.
    """
    env = {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if address:
        env["SGLANG_HOST_IP"] = address
    if transport == "socket":
        # NCCL_IB_DISABLE=1 alone does not stop an external plugin (IBext).
        return env | {"NCCL_NET": "Socket"}
    # "=" means exact names: without it rocep1s0f0v1 also selects rocep1s0f0v10.
    env["NCCL_IB_HCA"] = "=" + ",".join(devices)
    # Pods that have only VFs can't merge the rails into one virtual NIC, which would also hide a dead rail.
    env["NCCL_IB_MERGE_NICS"] = "0"
    if strict:
        env["NCCL_NET"] = "IB"
    return env


def log_env() -> dict[str, str]:
    """Return the variables that make NCCL log its transport."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}


def platform_env(platform: str) -> dict[str, str]:
    """Return the settings that a machine needs with every profile."""
    # SGLang sends itself a request when it starts, and ends if there is no answer after 600 s (http_server.py,
    # _execute_server_warmup). With a cold cache this request compiles kernels.
    env = {"SGLANG_WARMUP_TIMEOUT": "3600"}
    if platform != "gb10":
        return env
    # NVLS probing hangs on GB10 with NCCL 2.30.4, and a single GPU has no NVLink peers to multicast to. Compilers share
    # the 121 GB with the model: FlashInfer starts 15 and more at once, and machines of four Sparks ran out of memory.
    return env | {"NCCL_NVLS_ENABLE": "0", "MAX_JOBS": "2"}


def check_profile_env(env: Mapping[str, str], where: str, proves: bool = False) -> list[Finding]:
    """Return the findings about variables that a profile or the user sets; ``where`` names their origin.

    ``proves`` tells whether NCCL's files have to prove a transport, which groups of one node do not use.
    """
    found = [_finding("serving.env.owned", env[key], where, key=key) for key in sorted(OWNED & env.keys())]
    for key, rule in (("NCCL_IB_GID_INDEX", "serving.env.gid_index"), (_EVIDENCE, "serving.env.evidence")):
        if key in env:
            found.append(_finding(rule, env[key], where, key=key))
    hiding = ((key, blinds(key, str(env[key]))) for key in VARIABLES if proves and key in env)
    return found + [_finding(f"serving.env.{how}", env[key], where, key=key) for key, how in hiding if how]
