# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inputs of a serving plan before anything is changed. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import Transport
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.blinders import VARIABLES, blinds

from .._combinations.known import describe_holes, find_known
from .._rules import Rules
from .._sglang.profile_checks import OWNED_FLAGS
from .cables import Cabling, check_cables
from .model import Profile, Settings

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


# The pod's label statefulset.kubernetes.io/pod-name and the hash that StatefulSets append must fit in 63 characters.
INSTANCE_LENGTH = 45
_INSTANCE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

TRUST_FLAG = "--trust-remote-code"

SECRET_FLAGS = frozenset({"--api-key", "--admin-api-key", "--ssl-keyfile-password"})

# front_door.py stands in front of uvicorn with SGLang's own paths. These start another server, or move the paths.
DOORLESS_FLAGS = frozenset(
    {"--enable-http2", "--fastapi-root-path", "--grpc-mode", "--grpc-port", "--smg-grpc-mode", "--use-ray"}
)


def select_vfs(host: Mapping[str, Any], vf_index: int) -> list[Mapping[str, Any]]:
    """Return the VFs of that index on a host of the fabric plan, in rail order."""
    vfs: list[Mapping[str, Any]] = [vf for vf in host.get("vfs", []) if vf["vf_index"] == vf_index]
    return sorted(vfs, key=lambda vf: int(vf["rail_index"]))


def check(fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings) -> list[Finding]:
    """Return all findings of all checks, unsorted; without a fabric (None) those of the checks that need none."""
    return [
        *_instance(settings),
        *_modes(settings),
        *_topology(profile, settings),
        *_flags(profile),
        *_known(profile, settings),
        *_code(profile),
        *_environment(profile, settings),
        *_models(profile, settings),
        *_ports(settings),
        *(_between(fabric, profile, settings) if fabric is not None and len(settings.nodes) > 1 else ()),
        *_taken(settings),
    ]


def facts_of(profile: Profile, settings: Settings) -> dict[str, Any]:
    """Return what the known combinations and holes are compared with."""
    version = Version.find(profile.sglang_version)
    release = [*version.release] if version else []
    if version and version.stage < 0 and release[-1]:
        release[-1] -= 1  # a development build does not have all changes of the release that it is named after
    return {
        "platform": settings.platform,
        "nodes": len(settings.nodes),
        "image": profile.image,
        "nccl": profile.nccl,
        "sglang": f"SGLang {profile.sglang_version}",
        "release": ".".join(map(str, release)),
        "flags": sorted(_given(profile)),
        "env": sorted({**profile.env, **settings.env}),
        "pinned": not _unpinned(profile),
        "door": not settings.open_routes,
    }


def _known(profile: Profile, settings: Settings) -> Iterator[Finding]:
    yield from find_known("serving", facts_of(profile, settings), _place(profile))


def holes(profile: Profile, settings: Settings) -> list[str]:
    """Return a line with the public names of the known holes of the release, if there are any."""
    names = describe_holes(facts_of(profile, settings))
    return [f"known holes of SGLang {profile.sglang_version}: {names}"] if names else []


def _given(profile: Profile) -> set[str]:
    return {word.partition("=")[0] for word in profile.argv if word.startswith("--")}


def _unpinned(profile: Profile) -> dict[str, str]:
    """Return the repositories whose files can change, because their revision is a branch or a tag."""
    return {name: revision for name, revision in profile.revisions.items() if not _COMMIT.fullmatch(revision)}


def _code(profile: Profile) -> Iterator[Finding]:
    """Report Python code of a repository that can change without the owner."""
    if TRUST_FLAG in _given(profile):
        for name, revision in _unpinned(profile).items():
            yield _finding("serving.model.code", revision, _place(profile), name=name)


def _environment(profile: Profile, settings: Settings) -> Iterator[Finding]:
    proves = len(settings.nodes) > 1
    # The user's value replaces the profile's, which then hides nothing.
    replaced = settings.env.keys() & set(VARIABLES)
    kept = {key: value for key, value in profile.env.items() if key not in replaced}
    yield from check_profile_env(kept, _place(profile), proves)
    yield from check_profile_env(settings.env, "serving_plan_env", proves)


def _place(profile: Profile) -> str:
    return f"profile {profile.name}/{profile.preset}"


def _instance(settings: Settings) -> Iterator[Finding]:
    if not _INSTANCE.fullmatch(settings.instance) or len(settings.instance) > INSTANCE_LENGTH:
        yield _finding("serving.instance.name", settings.instance, most=INSTANCE_LENGTH)


def _modes(settings: Settings) -> Iterator[Finding]:
    mode = settings.rdma_mode
    if settings.transport != "roce" or len(settings.nodes) < 2:
        return
    if mode in ("ipc_lock", "restricted") and not (settings.rdma_resources or settings.sriov_prefix):
        yield _finding("serving.rdma.resource", [], mode=mode)
    if mode == "none":
        yield _finding("serving.rdma.none", mode)


def _topology(profile: Profile, settings: Settings) -> Iterator[Finding]:
    nodes, where = len(settings.nodes), _place(profile)
    if nodes != profile.nodes:
        yield _finding("serving.nodes.count", list(settings.nodes), where, count=nodes, wanted=profile.nodes)
    twice = sorted({node for node in settings.nodes if settings.nodes.count(node) > 1})
    if twice:
        yield _finding("serving.nodes.duplicate", twice)
    world, gpus = profile.tp * profile.pp, profile.nodes * settings.gpus_per_node
    if world != gpus:
        asked = {"tp": profile.tp, "pp": profile.pp, "nodes": profile.nodes}
        words = {"world": world, "nodes": profile.nodes, "each": settings.gpus_per_node, "gpus": gpus}
        yield _finding("serving.topology.world", asked, where, **words)
    if profile.ep < 1 or profile.tp % profile.ep:
        yield _finding("serving.topology.ep", profile.ep, where, tp=profile.tp)


def _flags(profile: Profile) -> Iterator[Finding]:
    given = _given(profile)
    for flag in sorted(given & OWNED_FLAGS):
        yield _finding("serving.args.owned", None, _place(profile), key=flag)
    for flag in sorted(given & SECRET_FLAGS):
        yield _finding("serving.args.secret", None, _place(profile), key=flag)
    for flag in sorted(given & DOORLESS_FLAGS):
        yield _finding("serving.args.door", None, _place(profile), key=flag)


def _models(profile: Profile, settings: Settings) -> Iterator[Finding]:
    where = _place(profile)
    directory = PurePosixPath(settings.models_dir) if settings.models_dir else None
    for path in profile.paths:
        if directory is None or directory not in PurePosixPath(path).parents:
            yield _finding("serving.model.path", path, where, directory=settings.models_dir or "none")
    if not settings.models_dir and len(settings.nodes) > 1:
        yield _finding("serving.model.unstaged", "", where)


def _ports(settings: Settings) -> Iterator[Finding]:
    for key, port in (("serving_plan_port", settings.port), ("serving_plan_rendezvous_port", settings.rendezvous_port)):
        if not 1024 <= port <= 65535:
            yield _finding("serving.port.range", port, key=key)
    if settings.port == settings.rendezvous_port:
        yield _finding("serving.port.clash", settings.rendezvous_port)


def _between(fabric: Mapping[str, Any], profile: Profile, settings: Settings) -> Iterator[Finding]:
    yield from _fabric(fabric, settings)
    yield from check_cables(fabric, profile, settings)


def _fabric(fabric: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    hosts = fabric.get("hosts", {})
    cabling = Cabling.of(fabric, settings.nodes)
    for finding in fabric.get("findings", []):
        if finding["severity"] == "error":
            yield Finding(**finding)
    for node in sorted(set(settings.nodes)):
        if node not in hosts:
            yield _finding("serving.nodes.unknown", node, known=", ".join(sorted(hosts)) or "none is planned")
            continue
        vfs = {vf["rail"]: vf for vf in select_vfs(hosts[node], settings.vf_index)}
        lacking: dict[str, list[str]] = {}
        for rail in cabling.rails[node]:
            if rail not in vfs:
                have = sorted(vf["vf_index"] for vf in hosts[node].get("vfs", []) if vf["rail"] == rail)
                lacking.setdefault(", ".join(map(str, have)) or "none", []).append(rail)
                continue
            for part in ("nad", "address", "rdma_device"):
                if not vfs[rail].get(part):
                    words = {"rail": rail, "index": settings.vf_index, "part": part}
                    yield _finding(f"serving.vf.{part}", vfs[rail].get(part), node, **words)
        for planned, rails in lacking.items():
            yield _finding("serving.vf.index", settings.vf_index, node, rails=", ".join(rails), planned=planned)


def _taken(settings: Settings) -> Iterator[Finding]:
    """Refuse VFs that other running groups hold."""
    for other in settings.taken:
        same_vf = other["node"] in settings.nodes and int(other["vf_index"]) == settings.vf_index
        if same_vf and other["instance"] != settings.instance:
            yield _finding("serving.vf.taken", settings.vf_index, str(other["node"]), other=other["instance"])
