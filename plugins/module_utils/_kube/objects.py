# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make Kubernetes objects as plain JSON. Private to the collection; does not call the API."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .labels import MANAGED_BY, OWNER, PULL

RBAC = "rbac.authorization.k8s.io"
_NETWORKS = "networking.k8s.io"
_ATTACHMENTS = "k8s.cni.cncf.io"
_ID = re.compile(r"sha256:[0-9a-f]{64}")
# {kind: (API group, resource)}; all are in version v1 of their group
RESOURCES = {
    "ClusterRole": (RBAC, "clusterroles"),
    "ClusterRoleBinding": (RBAC, "clusterrolebindings"),
    "ConfigMap": ("", "configmaps"),
    "Deployment": ("apps", "deployments"),
    "Ingress": (_NETWORKS, "ingresses"),
    "NetworkAttachmentDefinition": (_ATTACHMENTS, "network-attachment-definitions"),
    "NetworkPolicy": (_NETWORKS, "networkpolicies"),
    "PersistentVolume": ("", "persistentvolumes"),
    "PersistentVolumeClaim": ("", "persistentvolumeclaims"),
    "Pod": ("", "pods"),
    "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
    "Role": (RBAC, "roles"),
    "RoleBinding": (RBAC, "rolebindings"),
    "Service": ("", "services"),
    "ServiceAccount": ("", "serviceaccounts"),
    "StatefulSet": ("apps", "statefulsets"),
}


def made(kind: str, meta: Mapping[str, Any], spec: Mapping[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """Return an object with its metadata, its ``spec`` if it has one, and other parts such as ``data``."""
    version = f"{RESOURCES[kind][0]}/v1".removeprefix("/")
    own = {} if spec is None else {"spec": dict(spec)}
    return {"apiVersion": version, "kind": kind, "metadata": dict(meta), **own, **parts}


@dataclass(frozen=True)
class Owner:
    """What the owner of a cluster wants on every pod: registries, quotas, queues, other schedulers, and who pays.

    ``image_pull_secrets`` are names of Secrets in the namespace of the pods. Empty fields leave pods as they are.
    """

    image_pull_secrets: Sequence[str] = ()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    scheduler: str = ""

    def spec(self) -> dict[str, Any]:
        """Return the parts of a pod's spec."""
        parts = {
            "imagePullSecrets": [{"name": name} for name in self.image_pull_secrets],
            "priorityClassName": self.priority_class,
            "schedulerName": self.scheduler,
        }
        return {key: value for key, value in parts.items() if value}

    def meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a pod or of its workload with the owner's labels and annotations; its own ones win."""
        wanted = {"labels": self.pod_labels, "annotations": self.pod_annotations}
        return {**meta, **{key: {**more, **meta.get(key, {})} for key, more in wanted.items() if more}}

    def on(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return a pod or a workload as the owner wants it, and any other object as it is."""
        if item["kind"] not in ("Deployment", "Pod", "StatefulSet"):
            return dict(item)
        spec = {**item["spec"], **self.spec()}
        if template := item["spec"].get("template"):
            pod = {"metadata": self.meta(template["metadata"]), "spec": {**template["spec"], **self.spec()}}
            spec = {**item["spec"], "template": pod}
        return {**item, "metadata": self.meta(item["metadata"]), "spec": spec}


OWNER_SPEC: dict[str, Any] = {
    "type": "dict",
    "default": {},
    "options": {
        # Names, which no log needs to hide.
        "image_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
        "pod_labels": {"type": "dict", "default": {}},
        "pod_annotations": {"type": "dict", "default": {}},
        "priority_class": {"type": "str", "default": ""},
        "scheduler": {"type": "str", "default": ""},
    },
}


def policy(meta: Mapping[str, Any], pods: Mapping[str, str], ingress: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a NetworkPolicy that admits only these connections to the pods with these labels."""
    selected = {"podSelector": {"matchLabels": dict(pods)}, "policyTypes": ["Ingress"]}
    return made("NetworkPolicy", meta, {**selected, "ingress": list(ingress)})


def on_hosts(hosts: Iterable[str]) -> dict[str, Any]:
    """Return the term of a selector that chooses these nodes."""
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}]}


def brief_pod(meta: Mapping[str, Any], container: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod without any privilege that serves one purpose and is deleted then, also on tainted nodes.

    The Pod Security level restricted admits it. ``place`` says on which node it runs.
    """
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{**container, "securityContext": security}],
    }
    return made("Pod", meta, {**spec, **place})


HOSTNAME = "kubernetes.io/hostname"


def digest_in(image: str) -> str:
    """Return the digest in an image's name, or an empty string."""
    return image.partition("@")[2]


def reference(image: str, digest: str) -> str:
    """Return the name with which a pod gets exactly this image; a registry does not know the id of an imported one."""
    return image if digest_in(image) or not digest.startswith("sha256:") else f"{image}@{digest}"


def record_key(image: str) -> str:
    """Return the key of an image in a ConfigMap, which allows fewer characters."""
    return re.sub(r"[^-.\w]", "_", image)


def host_of(node: Mapping[str, Any]) -> str:
    """Return the label by which pods select a node."""
    return str((node["metadata"].get("labels") or {}).get(HOSTNAME, node["metadata"]["name"]))


def held(node: Mapping[str, Any], image: str, pinned: str) -> str:
    """Return the digest of an image that a node reports; empty if it reports none. A node reports its largest images.

    The image with this tag counts first: if it is not the pinned one, somebody replaced it.
    """
    tagged, explicit = image.partition("@")[0], digest_in(image)
    head, _colon, tag = tagged.rpartition(":")
    repository = tagged if not head or "/" in tag else head
    known = ""
    for entry in node.get("status", {}).get("images") or []:
        names = entry.get("names") or []
        digests = [str(name).partition("@")[2] for name in names if name.startswith(f"{repository}@")]
        if not explicit and tagged in names and len(digests) == 1:
            return digests[0]
        if pinned in digests:
            known = pinned
    return known


def pulled(pod: Mapping[str, Any]) -> str:
    """Return the digest of the image that a pod's node pulled, or ``id:`` and the id of an image without a registry."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        if image_id := str(container.get("imageID") or ""):
            return digest_in(image_id) or f"id:{image_id}"
    return ""


def imported(listing: str, image: str) -> str:
    """Return what ``pulled`` would, for an image without a registry, from what ``ctr images list`` prints on its node.

    containerd has the image under its name and under its id, both with the digest of the same manifest.
    """
    rows = [words for line in listing.splitlines() if len(words := line.split()) > 2]
    manifests = {words[2] for words in rows if words[0] == image}
    ids = [words[0] for words in rows if words[2] in manifests and _ID.fullmatch(words[0])]
    return f"id:{ids[0]}" if len(ids) == 1 and len(manifests) == 1 else ""


def selector(name: str) -> str:
    """Return the label selector of the pods that pull the image with this name."""
    return f"{PULL}={_hash(name)}"


def pull_pod(
    name: str, host: str, pull_policy: str, command: Sequence[str], host_network: bool = False
) -> dict[str, Any]:
    """Return a pod that makes a node pull an image. It needs no network attachment.

    Pod Security does not admit it at the level restricted if it uses the network of the host.
    """
    container = {
        "name": "pull",
        "image": name,
        "imagePullPolicy": pull_policy,
        "command": list(command),
        # A quota of the namespace admits only pods with requests and limits.
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
    }
    meta = {"name": f"gb10-pull-{_hash(name)}-{host}", "labels": {PULL: _hash(name), MANAGED_BY: OWNER}}
    place = {"nodeSelector": {HOSTNAME: host}, **({"hostNetwork": True} if host_network else {})}
    return brief_pod(meta, container, place)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]
