# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Access to the head of a group: Service, Ingress and NetworkPolicy. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import GUARDED, MODEL
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import made, policy

from .model import Plan


@dataclass(frozen=True)
class Access:
    """The user's choices about access.

    ``ingress`` has ``host`` and optionally ``class``, ``tls`` (a Secret) and ``annotations``. ``allow_from`` are peers
    of a NetworkPolicy; empty admits the whole cluster.
    """

    service_type: str = "ClusterIP"
    ingress: Mapping[str, Any] = field(default_factory=dict)
    allow_from: Sequence[Mapping[str, Any]] = ()

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of a head with its own NetworkPolicy, and of its Service."""
        return {GUARDED: "true"} if self.allow_from else {}


def service(plan: Plan, meta: Mapping[str, Any], head: Mapping[str, str], access: Access) -> dict[str, Any]:
    """Return the Service; ``head`` selects only the head's pod, since a stuck worker's /health still answers 200."""
    port = {"name": "http", "port": plan.service.port, "targetPort": "http", "protocol": "TCP"}
    own = {"labels": meta["labels"] | access.labels, "annotations": {MODEL: plan.model_path}}
    return made("Service", {**meta, **own}, {"type": access.service_type, "selector": dict(head), "ports": [port]})


PUBLISHED = ("/v1", "/generate", "/health", "/health_generate")
"""What an Ingress publishes. SGLang's other paths change weights, write profiles or empty caches, without a key."""


def ingress(meta: Mapping[str, Any], wanted: Mapping[str, Any], name: str, port: int) -> dict[str, Any]:
    """Return an Ingress to the paths that clients of a model need; ``/v1`` has the paths below it, too."""
    host = wanted["host"]
    backend = {"service": {"name": name, "port": {"number": port}}}
    paths = [{"path": path, "pathType": "Prefix", "backend": backend} for path in PUBLISHED]
    spec: dict[str, Any] = {"rules": [{"host": host, "http": {"paths": paths}}]}
    if wanted.get("class"):
        spec["ingressClassName"] = wanted["class"]
    if wanted.get("tls"):
        spec["tls"] = [{"hosts": [host], "secretName": wanted["tls"]}]
    annotations = dict(wanted.get("annotations") or {})
    return made("Ingress", {**meta, **({"annotations": annotations} if annotations else {})}, spec)


def _policy(
    meta: Mapping[str, Any],
    group: Mapping[str, str],
    head: Mapping[str, str],
    supervisor: Mapping[str, str],
    access: Access,
) -> dict[str, Any]:
    """Open the server's port of the head to the given peers; group and supervisor may reach all its ports."""
    own = [{"podSelector": {"matchLabels": dict(labels)}} for labels in (group, supervisor)]
    door = {"ports": [{"protocol": "TCP", "port": "http"}], "from": [dict(peer) for peer in access.allow_from]}
    return policy(meta, head, [{"from": own}, door])


def around(
    plan: Plan,
    meta: Mapping[str, Any],
    group: Mapping[str, str],
    head: Mapping[str, str],
    supervisor: Mapping[str, str],
    access: Access,
) -> list[dict[str, Any]]:
    """Return the Ingress and the NetworkPolicy that are wanted."""
    wanted = access.ingress
    objects = [ingress(meta, wanted, plan.service.name, plan.service.port)] if wanted.get("host") else []
    if access.allow_from:
        objects.append(_policy(meta, group, head, supervisor, access))
    return objects
