# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and digests of images on the nodes, and the pod that pulls one. Private to the collection.

Objects are the API's JSON (camelCase). This module does not call the API.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .labels import MANAGED_BY, OWNER, PULL
from .objects import brief_pod

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
