# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes rights that serving, proving and stopping a group need. Private to the collection.

They follow from the requests of the code and from the objects of the group. A test compares them with the tasks of the
roles and with the methods of ``Cluster`` that the modules call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import RBAC, RESOURCES

# The verbs of the requests that kubernetes.core sends for a task: it reads an object before it applies or deletes it,
# and it lists what it deletes by labels.
APPLY = ("create", "get", "patch")
CHANGE = ("get", "patch")
DELETE = ("delete", "get")
DELETE_ALL = ("delete", "get", "list")
APPLY_AND_DELETE = tuple(sorted({*APPLY, *DELETE_ALL}))
EXEC = ("create", "get")

# Objects without a namespace.
WIDE = ("PersistentVolume", "ClusterRole", "ClusterRoleBinding")
# The service account that gets the rights unless the owner names other subjects.
DEPLOYER = "gb10-deployer"
VOLUMES_COMMENT = (
    "Required: this RDMA mode forbids hostPath. Set sglang_cache_dir and gb10_models_dir to '' to do without it."
)
FALLBACK_COMMENT = (
    "Required: the fallback follows the state of the nodes. Unset serving_plan_fallback_preset to do without it."
)
NODES_COMMENT = "Optional. Without these rights, playbook serve says what it could not check."


@dataclass(frozen=True)
class Right:
    """Verbs on a resource, for the objects called ``names`` or for all; ``why`` is what they are needed for."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rights:
    """What a user needs: in the namespace, on volumes of the cluster, for a fallback, and only for better messages."""

    namespaced: list[Right]
    volumes: list[Right]
    fallback: list[Right]
    optional: list[Right]


def needed(objects: Iterable[Mapping[str, Any]], namespace: str, instance: str, secret: bool) -> Rights:
    """Return the rights for a group of these ``objects``; ``secret`` tells whether it has a token in a Secret."""
    known = [item for item in objects if item["kind"] != "Secret"]
    own = [item for item in known if item["kind"] not in WIDE]
    found = [*_always(namespace, f"{instance}-secrets"), *_of_objects(own, APPLY, "start the group")]
    pods = [item["spec"]["template"]["spec"] for item in own if "template" in item.get("spec", {})]
    pull = {one["name"] for pod in pods for one in pod.get("imagePullSecrets", ())}
    why = "check that the nodes may pull the image"
    found += [Right("", "secrets", ("get",), why, (name,)) for name in sorted(pull)]
    claims = [item for item in own if item["kind"] == "PersistentVolumeClaim"]
    found += _of_objects(claims, DELETE_ALL, "find and stop the group")
    if secret:
        found.append(Right("", "secrets", ("patch",), "write the token", (f"{instance}-secrets",)))
        found.append(Right("", "secrets", ("create",), "write the token"))
    volumes = [item for item in known if item["kind"] == "PersistentVolume"]
    wide = [item for item in known if item["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    switch = _of_objects(wide, APPLY_AND_DELETE, "let the switch of the fallback read the nodes")
    why = "offer directories of the nodes to pods that may not mount them by path"
    return Rights(
        _merged([*found, *_granted(item for item in known if item["kind"] != "ClusterRole")]),
        [Right("", "persistentvolumes", APPLY_AND_DELETE, why)] if volumes else [],
        _merged([*switch, *_granted(wide)]),
        [
            Right(
                "", "nodes", ("list",), "name nodes that are not ready or have no free devices, before anything stops"
            ),
            Right("", "pods", ("list",), "name the pods that hold these devices"),
            *(
                Right("scheduling.k8s.io", "priorityclasses", ("get",), "check that the priority class exists", (name,))
                for name in sorted({pod["priorityClassName"] for pod in pods if "priorityClassName" in pod})
            ),
        ],
    )


def _always(namespace: str, secret: str) -> Iterator[Right]:
    yield Right("", "namespaces", ("get",), "check that the namespace exists", (namespace,))
    yield Right(*RESOURCES["NetworkAttachmentDefinition"], ("list",), "check that the networks of the ranks exist")
    yield Right("", "pods", ("create", "delete", "get", "list"), "pull the image on every node, read and end the ranks")
    yield Right("", "pods/log", ("get",), "quote the logs of ranks, and prove their transport")
    yield Right("", "pods/exec", EXEC, "prove the transport, and ask the server for its settings")
    yield Right("", "events", ("list",), "say why a pod does not start")
    yield Right("", "configmaps", APPLY, "record the digest of the image")
    yield Right("", "secrets", DELETE, "delete the token", (secret,))
    yield Right(
        "coordination.k8s.io", "leases", ("create", "delete", "get", "update"), "let one run at a time change groups"
    )
    yield Right("", "persistentvolumeclaims", ("list",), "find the volumes of the group")
    yield Right(*RESOURCES["Deployment"], CHANGE, "tell a gateway which groups are served")
    stopped = ("StatefulSet", "Deployment", "RoleBinding", "Role", "Ingress", "NetworkPolicy", "PodDisruptionBudget")
    for kind in (*stopped, "Service", "ConfigMap", "ServiceAccount"):
        yield Right(*RESOURCES[kind], DELETE_ALL, "find and stop the group")


def _of_objects(objects: Iterable[Mapping[str, Any]], verbs: tuple[str, ...], why: str) -> Iterator[Right]:
    for kind in dict.fromkeys(item["kind"] for item in objects):
        yield Right(*RESOURCES[kind], verbs, why)


def _granted(objects: Iterable[Mapping[str, Any]]) -> Iterator[Right]:
    """Yield the rights of the group's own Roles, because Kubernetes lets users grant only rights that they have."""
    for item in objects:
        for rule in item.get("rules") or ():
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    names = tuple(rule.get("resourceNames") or ())
                    why = "grant it to the group's own pods"
                    yield Right(group, resource, tuple(rule["verbs"]), why, names)


def _merged(rights: Iterable[Right]) -> list[Right]:
    """Return one right per resource and names. A right for all objects contains those for named ones."""
    listed = list(rights)
    general: dict[tuple[str, str], set[str]] = {}
    for right in listed:
        if not right.names:
            general.setdefault((right.group, right.resource), set()).update(right.verbs)
    merged: dict[tuple[str, str, tuple[str, ...]], tuple[set[str], list[str]]] = {}
    for right in listed:
        own = set(right.verbs) - (general.get((right.group, right.resource), set()) if right.names else set())
        if own:
            verbs, reasons = merged.setdefault((right.group, right.resource, right.names), (set(), []))
            verbs.update(own)
            reasons.append(right.why)
    return [
        Right(group, resource, tuple(sorted(verbs)), "; ".join(dict.fromkeys(reasons)), names)
        for (group, resource, names), (verbs, reasons) in sorted(merged.items(), key=lambda item: item[0])
    ]


def manifest(rights: Rights, namespace: str, instance: str, subjects: Sequence[Mapping[str, str]]) -> str:
    """Return the Roles and bindings as YAML with a comment per rule, for the owner of the cluster to apply."""
    subjects = subjects or [{"kind": "ServiceAccount", "name": DEPLOYER, "namespace": namespace}]
    name = f"gb10-serve-{instance}"
    parts = _role("Role", name, rights.namespaced, subjects, namespace)
    for part, wide, comment in (
        ("volumes", rights.volumes, VOLUMES_COMMENT),
        ("fallback", rights.fallback, FALLBACK_COMMENT),
        ("nodes", rights.optional, NODES_COMMENT),
    ):
        if wide:
            name = f"gb10-{namespace}-{instance}-{part}"
            role, binding = _role("ClusterRole", name, wide, subjects)
            parts += [f"# {comment}\n{role}", binding]
    return "---\n".join(["", *parts])


def _role(
    kind: str, name: str, rights: Sequence[Right], subjects: Sequence[Mapping[str, str]], namespace: str = ""
) -> list[str]:
    """Return a role and its binding."""
    metadata = json.dumps({"name": name, **({"namespace": namespace} if namespace else {})})
    lines = []
    for right in rights:
        names = {"resourceNames": right.names} if right.names else {}
        rule = {"apiGroups": [right.group], "resources": [right.resource], **names, "verbs": right.verbs}
        lines.append(f"  # {right.why}\n  - {json.dumps(rule)}\n")
    return [
        f"apiVersion: {RBAC}/v1\nkind: {kind}\nmetadata: {metadata}\nrules:\n{''.join(lines)}",
        f"apiVersion: {RBAC}/v1\nkind: {kind}Binding\nmetadata: {metadata}\n"
        f"roleRef: {json.dumps({'apiGroup': RBAC, 'kind': kind, 'name': name})}\n"
        f"subjects: {json.dumps([dict(subject) for subject in subjects])}\n",
    ]
