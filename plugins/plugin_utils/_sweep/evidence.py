# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the results of a cell's tasks, and describe the environment in which it ran. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["serve", "transport", "measure"]
"""The stage at which a cell failed: starting its server, checking the transport of its ranks, or measuring."""


@dataclass(frozen=True)
class Evidence:
    """The results of a cell's tasks as far as it got.

    ``plan`` is its serving plan, empty for a server of which only the URL is known. ``server`` is the server's
    self-description, None until it has answered. ``proof`` is the result of nccl_verify, empty until there is one.
    ``task`` and ``reason`` name the task that failed and its message. ``ranks`` and ``logs`` come from
    serving_group_info.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    mtu: int | None = None
    image_ids: Sequence[str] = ()
    kernels: Sequence[str] = ()
    server: Mapping[str, Any] | None = None
    verify: bool = False
    proof: Mapping[str, Any] = field(default_factory=dict)
    measurements: Sequence[Mapping[str, Any]] = ()
    failed: bool = False
    task: str = ""
    reason: str = ""
    ranks: Sequence[Mapping[str, Any]] = ()
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """Return the stage that the cell reached: a stage begins when the evidence of the previous one exists."""
        if self.server is None:
            return "serve"
        return "transport" if self.verify and not self.proof else "measure"


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _image_ids(pods: Mapping[str, Any]) -> list[str]:
    """Return the digests of SGLang's images from the result of k8s_info."""
    found = [pod.get("status", {}).get("containerStatuses", []) for pod in pods.get("resources", [])]
    images = [status.get("imageID") for statuses in found for status in statuses if status["name"] == "sglang"]
    return _unique(filter(None, images))


def from_results(results: Mapping[str, Any]) -> Evidence:
    """Return the evidence in the registered results of a cell's tasks; a task that did not run has an empty result."""
    server, failure = results.get("server") or {}, results.get("failure") or {}
    group = results.get("group") or {}
    answers = (results.get("kernels") or {}).get("results", [])
    return Evidence(
        plan=results.get("plan") or {},
        mtu=results.get("mtu"),
        image_ids=_image_ids(results.get("pods") or {}),
        kernels=_unique(", ".join(answer["stdout_lines"]) for answer in answers if answer.get("stdout_lines")),
        server=server.get("server_info"),
        verify=bool(results.get("verify")),
        proof=results.get("proof") or {},
        measurements=(results.get("measured") or {}).get("cells", []),
        failed=bool(failure),
        task=failure.get("task") or "",
        reason=str(failure.get("msg") or ""),
        ranks=group.get("ranks") or [],
        logs=group.get("logs") or {},
    )


def environment(evidence: Evidence, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of a cell for its record: first the requested values, then the observed ones.

    ``origin`` describes the measuring side: inventory, commit, versions. There are no requested values for a server of
    which only the URL is known.
    """
    plan, ranks = evidence.plan, evidence.plan.get("ranks") or []
    networks = [network for rank in ranks for network in rank["networks"]]
    asked = {
        "sglang": plan.get("sglang_version", ""),
        "image": plan.get("image", ""),
        "profile": "/".join(filter(None, (plan.get("profile"), plan.get("preset")))),
        "arguments": ranks[0]["argv"] if ranks else [],
        "nodes": [rank["node"] for rank in ranks],
        "networks": _unique(network["name"] for network in networks),
        "rdma_devices": _unique(network["rdma_device"] for network in networks),
        "mtu": evidence.mtu,
        **origin,
    }
    seen: dict[str, Any] = {}
    if evidence.image_ids:
        seen["image_id"] = evidence.image_ids
    if evidence.kernels:
        seen["kernel_and_driver"] = evidence.kernels
    if evidence.server is not None:
        seen["server"] = evidence.server
    if evidence.proof:
        seen |= {"nccl": evidence.proof.get("nccl_versions", []), "transport": evidence.proof}
    elif evidence.failed and evidence.stage == "transport":
        seen["transport"] = {"satisfied": False, "msg": evidence.reason}
    return (asked if plan else {}) | seen
