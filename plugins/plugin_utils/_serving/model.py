# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inputs of the serving planner, and the serving plan that it returns. Private to the collection.

``Profile`` and ``Settings`` are the inputs; ``Plan`` is the result. The plan is plain data only as the fact
``gb10_serving_plan``: :meth:`Plan.as_dict` writes it and :meth:`Plan.from_dict` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import RdmaMode, Transport
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import kubectl

from .._controller.options import from_options
from .._sglang.profile import ResolvedProfile

SCHEMA = 1
Role = Literal["head", "worker"]


def instance_name(instance: str, profile: str) -> str:
    """Return the name of a group: the given one, or the profile's in the form that Kubernetes allows (glm-4-7)."""
    return instance or profile.lower().replace(".", "-").replace("_", "-")


def flags(command: Iterable[str]) -> list[str]:
    """Return the lines of a command, each with one flag and its values."""
    lines: list[str] = []
    for word in command:
        if word.startswith("--") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


@dataclass(frozen=True)
class Patch:
    """A patch hook of the profile; ``path`` is relative to the collection, ``why`` says why it is needed or not."""

    name: str
    path: str
    needed: bool
    why: str = ""


@dataclass(frozen=True)
class Load:
    """What a rank's weights need of the memory that GPU and CPU share, in GiB; 0 if the rank has to measure them.

    ``fraction`` is SGLang's share for weights and caches of what is available at its start, by the plan's estimate
    between ``least`` and ``most``.
    """

    weights: float
    fraction: float
    least: float
    most: float


@dataclass(frozen=True)
class Profile:
    """The parts of a resolved profile that the planner needs.

    ``argv`` holds flags of ``sglang.launch_server`` without those that the plan writes (model, revision, parallel
    sizes, ranks, addresses, ports). ``revision`` is empty for the hub's default branch. ``paths`` are directories that
    the profile itself names for model and draft; ``models`` are repositories that every node needs, ``revisions``
    their branches, tags or commits. ``memory`` is the estimate for one GPU, one line per step of the arithmetic.
    ``nccl`` is the oldest release of NCCL that the image can have.
    """

    name: str
    preset: str
    sglang_version: str
    image: str
    model_path: str
    nodes: int
    tp: int
    pp: int
    ep: int
    revision: str = ""
    paths: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    models: tuple[str, ...] = ()
    revisions: Mapping[str, str] = field(default_factory=dict)
    memory: tuple[str, ...] = ()
    load: Load | None = None
    swap_gib: float = 0
    stuck_after: int = 0
    nccl: str = "2.0"

    @property
    def place(self) -> str:
        """Return what findings call this profile."""
        return f"profile {self.name}/{self.preset}"


@dataclass(frozen=True)
class Settings:
    """The user's choices for one group: the options of role serving_plan with the names of the fields.

    ``nodes`` are in rank order; ports are those of the pod's own network namespace; ``taken`` is what running groups
    hold, ``{instance, node, vf_index}`` each; ``open_routes`` is the option of role sglang. ``networks`` are
    NetworkAttachmentDefinitions that somebody else made, ``{name, namespace, resource}`` each; with them the group uses
    no VF of the fabric plan. Without ``ssh`` no task contacts a node.
    """

    instance: str
    nodes: tuple[str, ...]
    vf_index: int = 0
    namespace: str = "gb10-serving"
    rdma_mode: RdmaMode = "privileged"
    rdma_resources: tuple[str, ...] = ()
    sriov_prefix: str = ""
    transport: Transport = "roce"
    strict_transport: bool = False
    platform: str = "gb10"
    port: int = 30000
    rendezvous_port: int = 20000
    gpus_per_node: int = 1
    gpu_resource: str = "nvidia.com/gpu"
    models_dir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[Mapping[str, Any], ...] = ()
    open_routes: bool = False
    networks: tuple[Mapping[str, str], ...] = ()
    ssh: bool = True
    kubeconfig: str = ""
    kube_context: str = ""

    @property
    def kubectl(self) -> str:
        """Return the beginning of a command about the cluster."""
        return kubectl(self.kubeconfig, self.kube_context)


@dataclass(frozen=True)
class NetworkAttachment:
    """One VF of a rank: ``name`` is its NAD, ``interface`` its name in the pod, ``ips`` its address with the prefix.

    In a network that somebody else made, address and RDMA device are empty: only the pod knows them.
    """

    name: str
    namespace: str
    interface: str
    ips: tuple[str, ...]
    rdma_device: str

    @property
    def address(self) -> str:
        """Return the IPv4 address with its prefix length."""
        return self.ips[0] if self.ips else ""

    @property
    def ip(self) -> str:
        """Return the address without its prefix length."""
        return self.address.partition("/")[0]

    def as_annotation(self) -> dict[str, Any]:
        """Return what Multus needs to attach the VF."""
        where = {"name": self.name, "namespace": self.namespace, "interface": self.interface}
        return where | ({"ips": list(self.ips)} if self.ips else {})


@dataclass(frozen=True)
class RankPlan:
    """One rank: ``name`` is its StatefulSet, ``pod`` its pod, ``resources`` has its devices as a pod limits them."""

    rank: int
    role: Role
    node: str
    name: str
    pod: str
    env: Mapping[str, str]
    networks: tuple[NetworkAttachment, ...]
    resources: Mapping[str, Mapping[str, int]]
    argv: tuple[str, ...] = ()

    @property
    def limits(self) -> Mapping[str, int]:
        """Return the numbers of devices by resource name."""
        return self.resources["limits"]


@dataclass(frozen=True)
class Service:
    """The Service in front of the head; the head listens on the same port."""

    name: str
    port: int


@dataclass(frozen=True)
class Rendezvous:
    """The address and port of the head at which the ranks of a group meet.

    ``service`` is the headless Service whose name is the address, if the ranks meet over the pod network.
    """

    address: str
    port: int
    service: str = ""


@dataclass(frozen=True)
class Cable:
    """The RDMA devices by which one rank reaches another; only set where ranks have no common rail."""

    rank: int
    peer: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Expectation:
    """The conditions of the transport verdict: NCCL networks as glob patterns, and the minimum number of devices.

    No networks means that the group has one node, whose ranks use none.
    """

    ranks: int
    nodes: int
    networks: tuple[str, ...] = ()
    min_devices: int = 0
    gdr: bool = False


@dataclass(frozen=True)
class Plan:
    """One serving group, complete before anything is started. A plan with errors has no ranks.

    ``rendezvous`` is None for a group of one node, ``models_dir`` is a directory of every node (empty where SGLang
    downloads the model), ``mtu`` is the fabric's in bytes, ``waived`` what waived rules said,
    ``gpu`` the GPUs of a node for the image's check (empty for an unknown platform). Without ``ssh`` no task contacts a
    node.
    The other fields are those of the inputs.
    """

    instance: str
    profile: str
    preset: str
    namespace: str
    sglang_version: str
    image: str
    model_path: str
    rdma_mode: RdmaMode
    transport: Transport
    vf_index: int
    service: Service
    expect: Expectation
    rendezvous: Rendezvous | None = None
    cables: tuple[Cable, ...] = ()
    ranks: tuple[RankPlan, ...] = ()
    patches: tuple[Patch, ...] = ()
    paths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    revisions: Mapping[str, str] = field(default_factory=dict)
    models_dir: str = ""
    memory: tuple[str, ...] = ()
    load: Load | None = None
    swap_gib: float = 0
    stuck_after: int = 0
    mtu: int = 0
    waived: Mapping[str, Any] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    ssh: bool = True

    def needed_patches(self) -> list[str]:
        """Return the names of the patches that this release needs, in the order in which they run."""
        return [patch.name for patch in self.patches if patch.needed]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data in the documented shape, without ``findings``."""
        found = asdict(self) | {"schema": SCHEMA, "rendezvous": asdict(self)["rendezvous"] or {}}
        # JSON has no tuples: what a playbook reads is the same in memory and in a file.
        written: dict[str, Any] = json.loads(json.dumps(found))
        return written

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that a fact holds; keys that are no field are ignored."""
        return plain.load(cls, data)


# Convert a resolved profile to the input of the serving planner.

METRICS = "--enable-metrics"
DRAFT_REVISION = "speculative_draft_model_revision"
DEFAULT_REVISION = "main"
# SGLang's own 300 s are too short for the first forward pass of a large MoE model, which loads and tunes kernels; four
# Sparks run with 3600 s. --dist-timeout is how long ranks wait for one that is slower, or dead: 900 s there.
TIMEOUTS = {"--watchdog-timeout": "3600", "--dist-timeout": "900"}


def staged_path(repository: str, models_dir: str) -> str:
    """Return the directory of a staged model: ``org/name`` becomes ``org--name``."""
    return f"{models_dir}/{repository.replace('/', '--')}"


def _models(resolved: ResolvedProfile) -> list[str]:
    """Return what the server loads: the model, and the draft model if it has one."""
    listed = [str(resolved.model["path"]), str(resolved.model.get("draft") or "")]
    return [name for name in dict.fromkeys(listed) if name]


def repositories(resolved: ResolvedProfile) -> list[str]:
    """Return the repositories that must be on every node."""
    return [name for name in _models(resolved) if not name.startswith("/")]


def revisions(resolved: ResolvedProfile) -> dict[str, str]:
    """Return the branch, tag or commit of every repository that must be on the nodes."""
    given = {
        str(resolved.model.get("draft") or ""): resolved.server_args.get(DRAFT_REVISION),
        str(resolved.model["path"]): resolved.model.get("revision"),
    }
    return {name: str(given.get(name) or DEFAULT_REVISION) for name in repositories(resolved)}


def to_serving(resolved: ResolvedProfile, options: Mapping[str, Any]) -> Profile:
    """Return the planner's view, with what the options of role serving_plan add to the command line.

    Time-outs that the profile does not set are those of large models.
    """
    models_dir, memory, load = options["models_dir"], resolved.memory, None
    # A GPU with memory of its own takes none of the node.
    if memory["load_gib"] is not None:
        load = Load(memory["load_gib"], round(memory["fraction"], 4), memory["available_gib"], memory["most_gib"])
    path, argv = str(resolved.model["path"]), list(resolved.argv)
    if options["metrics"] and METRICS not in argv:
        argv.append(METRICS)
    given = {word.partition("=")[0] for word in argv}
    argv += [word for flag, seconds in TIMEOUTS.items() if flag not in given for word in (flag, seconds)]
    if models_dir:
        for name in repositories(resolved):
            staged = staged_path(name, models_dir)
            argv, path = [staged if word == name else word for word in argv], staged if name == path else path
    return from_options(
        Profile,
        {**vars(resolved), **resolved.topology},
        model_path=path,
        paths=tuple(name for name in _models(resolved) if name.startswith("/")),
        revision=str(resolved.model.get("revision") or ""),
        argv=argv,
        patches=tuple(Patch(**patch) for patch in resolved.patches),
        models=repositories(resolved),
        revisions=revisions(resolved),
        memory=memory["lines"],
        load=load,
    )
