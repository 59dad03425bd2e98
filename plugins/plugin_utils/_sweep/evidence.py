# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of one cell learned, and what its record says of where it ran. Pure; private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["serve", "transport", "measure"]
"""What a cell was doing when it failed: starting its server, checking the transport of its ranks, or measuring."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a cell, as far as it came.

    ``plan`` is its serving plan, empty for a server of which only the URL is known. ``server`` is what the server says
    of itself, None until it has answered. ``proof`` is the result of nccl_verify, empty while there is none.
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
        """Return what the cell came to: each stage begins when the one before it has left its evidence."""
        if self.server is None:
            return "serve"
        return "transport" if self.verify and not self.proof else "measure"


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _image_ids(pods: Mapping[str, Any]) -> list[str]:
    """Return the digests of SGLang's images, from what k8s_info returned."""
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
    """Return what a record says of where its cell ran: what was asked for, then what was seen, as far as it came.

    ``origin`` is what measured it: inventory, commit, versions. Nothing was asked for where only a URL is known.
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
