# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the serving planner is given. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def instance_name(instance: str, profile: str) -> str:
    """Return the name of a group: the one that was given, or the profile's as Kubernetes allows it (glm-4-7)."""
    return instance or profile.lower().replace(".", "-").replace("_", "-")


@dataclass(frozen=True)
class Profile:
    """What the planner needs of a resolved profile.

    ``argv`` holds the flags of ``sglang.launch_server`` as they will be written, without those that the plan owns
    (parallel sizes, ranks, addresses, ports, model and revision); ``patches`` are dictionaries with at least ``name``
    and ``needed``. ``revision`` is empty for the hub's default branch; ``paths`` are directories that the profile
    itself names for model and draft.
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
    patches: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Settings:
    """What the user decides about one group; ``nodes`` in rank order, ports in the pod's own network namespace."""

    instance: str
    nodes: tuple[str, ...]
    vf_index: int = 0
    namespace: str = "gb10-serving"
    rdma_mode: str = "privileged"
    rdma_resources: tuple[str, ...] = ()
    sriov_prefix: str = ""
    transport: str = "roce"
    strict_transport: bool = False
    platform: str = "gb10"
    port: int = 30000
    rendezvous_port: int = 20000
    gpus_per_node: int = 1
    gpu_resource: str = "nvidia.com/gpu"
    nccl_debug_file: str = "/dev/stdout"
    models_dir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[Mapping[str, Any], ...] = ()
    workload: str = "statefulset"


def select_vfs(host: Mapping[str, Any], vf_index: int) -> list[Mapping[str, Any]]:
    """Return the VFs of that index on a host of the fabric plan, in rail order."""
    vfs: list[Mapping[str, Any]] = [vf for vf in host.get("vfs", []) if vf["vf_index"] == vf_index]
    return sorted(vfs, key=lambda vf: int(vf["rail_index"]))
