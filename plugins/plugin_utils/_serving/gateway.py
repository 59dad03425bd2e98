# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Access to the head of a group: Service, gateway, Ingress and NetworkPolicy. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .model import Plan
from .pods import SECURITY
from .volumes import FILES

KEY_DIR = "/etc/gb10/api-key"
TLS_DIR = "/etc/gb10/tls"
USER = 1000


@dataclass(frozen=True)
class Access:
    """The user's choices about access.

    ``key_secret`` names the Secret whose ``api-key`` clients must send, ``tls_secret`` one of type kubernetes.io/tls;
    with either, a gateway runs between Service and server. ``ingress`` has ``host`` and optionally ``class``, ``tls``
    (a Secret) and ``annotations``. ``allow_from`` are peers of a NetworkPolicy; empty admits the whole cluster.
    """

    service_type: str = "ClusterIP"
    key_secret: str = ""
    tls_secret: str = ""
    ingress: Mapping[str, Any] = field(default_factory=dict)
    allow_from: Sequence[Mapping[str, Any]] = ()

    @property
    def guarded(self) -> bool:
        """Return whether the group has its own NetworkPolicy; with a key, it blocks access past the gateway."""
        return bool(self.key_secret or self.allow_from)

    @property
    def gateway(self) -> bool:
        """Return whether requests pass through the gateway."""
        return bool(self.key_secret or self.tls_secret)


def gateway_port(plan: Plan) -> int:
    """Return the gateway's port in the head's pod: the one after the server's."""
    return plan.service.port + 1


def attach(spec: dict[str, Any], plan: Plan, access: Access, pull_policy: str) -> dict[str, Any]:
    """Return the head's pod with the gateway as a second container, or unchanged when none is wanted."""
    if not access.gateway:
        return spec
    port = gateway_port(plan)
    command = ["python3", f"{FILES}/gateway.py", "--port", str(port), "--upstream-port", str(plan.service.port)]
    mounts = [{"name": "files", "mountPath": FILES, "readOnly": True}]
    volumes = list(spec["volumes"])
    if access.key_secret:
        command += ["--key-file", f"{KEY_DIR}/api-key"]
        mounts.append({"name": "api-key", "mountPath": KEY_DIR, "readOnly": True})
        only = [{"key": "api-key", "path": "api-key"}]
        volumes.append(
            {"name": "api-key", "secret": {"secretName": access.key_secret, "items": only, "defaultMode": 0o440}}
        )
    if access.tls_secret:
        command += ["--certificates", TLS_DIR]
        mounts.append({"name": "tls", "mountPath": TLS_DIR, "readOnly": True})
        volumes.append({"name": "tls", "secret": {"secretName": access.tls_secret, "defaultMode": 0o440}})
    container = {
        "name": "gateway",
        "image": plan.image,
        "imagePullPolicy": pull_policy,
        "command": command,
        "ports": [{"name": "gateway", "containerPort": port, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": SECURITY["restricted"] | {"runAsUser": USER, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    # The gateway does not run as root; this group may read the files of the secrets.
    security = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"} | spec.get("securityContext", {})
    return spec | {"containers": [*spec["containers"], container], "volumes": volumes, "securityContext": security}


def service(plan: Plan, meta: Mapping[str, Any], head: Mapping[str, str], access: Access) -> dict[str, Any]:
    """Return the Service; ``head`` selects only the head's pod, since a stuck worker's /health still answers 200."""
    target = "gateway" if access.gateway else "http"
    port = {"name": "https" if access.tls_secret else "http", "port": plan.service.port, "targetPort": target}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": dict(meta),
        "spec": {"type": access.service_type, "selector": dict(head), "ports": [port | {"protocol": "TCP"}]},
    }


def _ingress(plan: Plan, meta: Mapping[str, Any], access: Access) -> dict[str, Any]:
    host = access.ingress["host"]
    backend = {"service": {"name": plan.service.name, "port": {"number": plan.service.port}}}
    spec: dict[str, Any] = {
        "rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if access.ingress.get("class"):
        spec["ingressClassName"] = access.ingress["class"]
    if access.ingress.get("tls"):
        spec["tls"] = [{"hosts": [host], "secretName": access.ingress["tls"]}]
    annotations = dict(access.ingress.get("annotations") or {})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {**meta, **({"annotations": annotations} if annotations else {})},
        "spec": spec,
    }


def _policy(
    meta: Mapping[str, Any],
    group: Mapping[str, str],
    head: Mapping[str, str],
    supervisor: Mapping[str, str],
    access: Access,
) -> dict[str, Any]:
    """Open one port of the head to all peers or to the given ones; group and supervisor may reach all its ports."""
    own = [{"podSelector": {"matchLabels": dict(labels)}} for labels in (group, supervisor)]
    door: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": "gateway" if access.gateway else "http"}]}
    if access.allow_from:
        door["from"] = [dict(peer) for peer in access.allow_from]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": dict(meta),
        "spec": {
            "podSelector": {"matchLabels": dict(head)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": own}, door],
        },
    }


def around(
    plan: Plan,
    meta: Mapping[str, Any],
    group: Mapping[str, str],
    head: Mapping[str, str],
    supervisor: Mapping[str, str],
    access: Access,
) -> list[dict[str, Any]]:
    """Return the Ingress and the NetworkPolicy that are wanted."""
    objects = [_ingress(plan, meta, access)] if access.ingress.get("host") else []
    if access.guarded:
        objects.append(_policy(meta, group, head, supervisor, access))
    return objects
