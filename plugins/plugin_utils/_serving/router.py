# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's Model Gateway in front of the groups of a namespace, as Kubernetes objects. Private to the collection.

Its workers are the Services of the groups, not pods: a Service has no endpoints while its head has not proven its
transport. The gateway's own discovery (0.3.2) looks at the readiness of a pod only once, and misses deleted pods.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import (
    APP_INSTANCE,
    COMPONENT,
    GATEWAY,
    GUARDED,
    INSTANCE,
    MANAGED_BY,
    MODEL,
    NAME,
    OWNER,
    PART_OF,
    REVISION,
    ROLE,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import Owner, made, policy

from .._controller.data import Rules
from .manifests import ingress
from .pods import SECURITY, tolerations

RESOURCE = "gb10-gateway"
KEY_DIR, TLS_DIR, CODE_DIR = "/etc/gb10/api-key", "/etc/gb10/tls", "/opt/gb10-gateway"
USER = 1000
METRICS_PORT = 29000
# A pod that ends still gets new connections until every node knows that it is leaving.
STILL_REACHED = 5
_finding = Rules("_serving").finding
LABELS = {NAME: RESOURCE, APP_INSTANCE: RESOURCE, COMPONENT: "gateway", PART_OF: OWNER, MANAGED_BY: OWNER}
LABELS |= {GATEWAY: "true"}

# Health: a healthy head answers /health after 1 s, a stuck one after 20 s (SGLang 0.5.20). The circuit breaker must
# open before the five retries of a request are used up, because cache-aware routing chooses the same worker again.
# The default threshold of 64 for the difference in load is more than a group of two GB10 can serve at once.
FLAGS = (
    "--host 0.0.0.0 --policy cache_aware --balance-abs-threshold 4 --log-level warn --prometheus-host 0.0.0.0"
    f" --prometheus-port {METRICS_PORT} --health-check-endpoint /health --health-check-interval-secs 10"
    " --health-check-timeout-secs 25 --health-success-threshold 1 --worker-startup-check-interval 2"
    " --worker-startup-timeout-secs 31536000 --cb-failure-threshold 3 --cb-timeout-duration-secs 10"
)


@dataclass(frozen=True)
class Member:
    """A group behind the gateway; ``guarded`` tells whether its head accepts requests only from chosen peers."""

    name: str
    url: str
    model: str
    guarded: bool


@dataclass(frozen=True)
class Router:
    """The options of role gateway with the names of the fields.

    ``versions`` change with the Secrets that the gateway reads. ``closed`` tells whether the policies of the namespace
    close all pods; otherwise a policy for a head that has none would close that head to everyone else.
    """

    namespace: str = "gb10-serving"
    image: str = ""
    port: int = 30000
    service_type: str = "ClusterIP"
    key: bool = False
    tls_secret: str = ""
    ingress: Mapping[str, Any] = field(default_factory=dict)
    allow_from: Sequence[Mapping[str, Any]] = ()
    tolerations: Sequence[Mapping[str, Any]] = ()
    drain_timeout: int = 300
    versions: Sequence[str] = ()
    closed: bool = True
    owner: Owner = field(default_factory=Owner)


def members(services: Iterable[Mapping[str, Any]], groups: Sequence[str]) -> list[Member]:
    """Return the groups that shall be behind the gateway: those named, or all."""
    found = []
    for item in services:
        meta, spec = item["metadata"], item["spec"]
        name = meta.get("labels", {}).get(INSTANCE, "")
        headless = spec.get("clusterIP") == "None"
        if not name or headless or (groups and name not in groups):
            continue
        url = f"http://{meta['name']}.{meta['namespace']}.svc:{spec['ports'][0]['port']}"
        model = meta.get("annotations", {}).get(MODEL, "")
        found.append(Member(name, url, model, meta["labels"].get(GUARDED) == "true"))
    return sorted(found, key=lambda member: member.name)


def staying(live: Mapping[str, Any], known: Sequence[Member], leaving: str) -> list[Member]:
    """Return the groups that a running gateway has now, without the one that leaves."""
    present = live["spec"]["template"]["spec"]["containers"][0].get("args") or []
    return [member for member in known if member.url in present and member.name != leaving]


def has_key(live: Mapping[str, Any]) -> bool:
    """Return whether a running gateway requires a key."""
    return any(volume["name"] == "api-key" for volume in live["spec"]["template"]["spec"]["volumes"])


def findings(chosen: Sequence[Member], groups: Sequence[str], key: bool) -> list[Finding]:
    """Return why these groups cannot be behind one gateway."""
    out = []
    missing = sorted(set(groups) - {member.name for member in chosen})
    if missing:
        severity = "warning" if chosen else "error"
        out.append(_finding("gateway.group.missing", ", ".join(missing), severity=severity))
    if len({member.model for member in chosen}) > 1:
        models = {member.name: member.model or "unknown (served by an older release)" for member in chosen}
        out.append(_finding("gateway.models", ", ".join(f"{name}: {model}" for name, model in models.items())))
    open_heads = [member.name for member in chosen if not member.guarded]
    if key and open_heads:
        out.append(_finding("gateway.key.bypassed", ", ".join(open_heads)))
    return out


def worker_args(chosen: Sequence[Member]) -> list[str]:
    """Return the arguments that name the workers; they are all that changes when a group joins or leaves."""
    return ["--worker-urls", *(member.url for member in chosen)]


def revision(rest: str, chosen: Sequence[Member]) -> str:
    """Return the revision of the pods: ``rest`` stands for everything except the workers."""
    return f"{rest}-{_hash([member.url for member in chosen])}"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _template(router: Router, chosen: Sequence[Member], start: str) -> dict[str, Any]:
    command = ["python3", f"{CODE_DIR}/start_gateway.py"]
    mounts: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "code", "mountPath": CODE_DIR, "readOnly": True},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
        {"name": "code", "configMap": {"name": RESOURCE}},
    ]
    if router.key:
        command.append(f"--key-file={KEY_DIR}/api-key")
        mounts.append({"name": "api-key", "mountPath": KEY_DIR, "readOnly": True})
        volumes.append({"name": "api-key", "secret": {"secretName": RESOURCE, "defaultMode": 0o440}})
    command += ["--port", str(router.port), *FLAGS.split()]
    command += ["--shutdown-grace-period-secs", str(router.drain_timeout)]
    if router.tls_secret:
        command += ["--tls-cert-path", f"{TLS_DIR}/tls.crt", "--tls-key-path", f"{TLS_DIR}/tls.key"]
        mounts.append({"name": "tls", "mountPath": TLS_DIR, "readOnly": True})
        volumes.append({"name": "tls", "secret": {"secretName": router.tls_secret, "defaultMode": 0o440}})
    # /readiness needs a healthy worker. Without any worker the newest pod must still replace the older one.
    probe = {"path": "/readiness" if chosen else "/liveness", "port": "gateway"}
    scheme = "HTTPS" if router.tls_secret else "HTTP"
    container = {
        "name": "gateway",
        "image": router.image,
        "command": command,
        "args": worker_args(chosen),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [
            {"name": "gateway", "containerPort": router.port, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {**probe, "scheme": scheme}, "periodSeconds": 2, "timeoutSeconds": 5},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(STILL_REACHED)]}}},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": SECURITY["restricted"] | {"readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": router.drain_timeout + STILL_REACHED + 10,
        # The program does not run as root; this group may read the files of the Secrets.
        "securityContext": {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
        "volumes": volumes,
    }
    place = tolerations(router.tolerations)
    same = {**container, "args": [], "readinessProbe": scheme, **place}
    rest = _hash([same, volumes, router.drain_timeout, start, [*router.versions], asdict(router.owner)])
    return {"metadata": {"labels": {**LABELS, REVISION: revision(rest, chosen)}}, "spec": spec | place}


def moved(live: Mapping[str, Any], chosen: Sequence[Member]) -> dict[str, Any]:
    """Return the change of a running Deployment that gives it these workers, and nothing else."""
    template = live["spec"]["template"]
    (container,) = template["spec"]["containers"]
    probe = {"httpGet": {**container["readinessProbe"]["httpGet"], "path": "/readiness" if chosen else "/liveness"}}
    rest = template["metadata"]["labels"][REVISION].rpartition("-")[0]
    change = {"name": container["name"], "args": worker_args(chosen), "readinessProbe": probe}
    meta = {key: live["metadata"][key] for key in ("name", "namespace")}
    new = {"metadata": {"labels": {REVISION: revision(rest, chosen)}}, "spec": {"containers": [change]}}
    return made("Deployment", meta, {"template": new})


def objects(router: Router, chosen: Sequence[Member], start: str) -> list[dict[str, Any]]:
    """Return all objects except the Secrets; ``start`` is the program that starts the gateway with its keys."""
    meta = {"name": RESOURCE, "namespace": router.namespace, "labels": LABELS}
    port = {"name": "https" if router.tls_secret else "http", "port": router.port, "targetPort": "gateway"}
    door: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": "gateway"}]}
    if router.allow_from:
        door["from"] = [dict(peer) for peer in router.allow_from]
    own = [{"podSelector": {"matchLabels": {GATEWAY: "true"}}}]
    heads = {ROLE: "head"} | ({} if router.closed else {GUARDED: "true"})
    to_heads = {"from": own, "ports": [{"protocol": "TCP", "port": "http"}]}
    service = {"type": router.service_type, "selector": {NAME: RESOURCE}, "ports": [port | {"protocol": "TCP"}]}
    out = [
        made("Service", meta, service),
        policy(meta, {NAME: RESOURCE}, [door]),
        policy(meta | {"name": f"{RESOURCE}-heads"}, heads, [to_heads]),
    ]
    out.append(made("ConfigMap", meta, data={"start_gateway.py": start}))
    if router.ingress.get("host"):
        out.append(ingress(meta, router.ingress, RESOURCE, router.port))
    deployment = {
        "replicas": 1,
        # Every node needs a moment to learn the address and the policies of a new pod.
        "minReadySeconds": STILL_REACHED,
        # The rolling update is the drain: the new pod serves before the old one gets its signal.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": {NAME: RESOURCE}},
        "template": _template(router, chosen, start),
    }
    return [*out, router.owner.on(made("Deployment", meta, deployment))]
