# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API calls that the sidecar's Role permits."""

from __future__ import annotations

import json
import os
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from .._kube.labels import TRANSPORT
from .state import Condition

Json = dict[str, Any]
# The API refuses longer messages of events. A condition of rank 0 names every other rank with its cause.
_LONGEST_EVENT, _LONGEST_CONDITION = 1000, 8000


class PodApi:
    """Reads pods of the group, and writes the condition and the events of one pod; every method raises OSError."""

    def __init__(self, account: Path, namespace: str, pod: str, uid: str) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self._base = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/namespaces/{namespace}"
        self._account, self._pod = account, pod
        self._object = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": namespace, "uid": uid}
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls))

    def _call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        # The token is rotated on disk, so it is read for every call.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        with self._opener.open(request, timeout=5) as answer:
            return dict(json.loads(answer.read()))

    def pod(self, name: str) -> Json:
        """Return a pod of the group."""
        return self._call("GET", f"/pods/{name}")

    def set_condition(self, condition: Condition, since: str, kind: str = TRANSPORT) -> None:
        """Write a condition of this pod; ``since`` is its time of transition."""
        written = {
            "type": kind,
            "status": "True" if condition.proven else "False",
            "reason": condition.reason,
            "message": condition.message[:_LONGEST_CONDITION],
            "lastTransitionTime": since,
        }
        # This kind of patch replaces only the condition of this type.
        patch = "application/strategic-merge-patch+json"
        self._call("PATCH", f"/pods/{self._pod}/status", {"status": {"conditions": [written]}}, patch)

    def add_event(self, condition: Condition, when: str, prefix: str = "Transport") -> None:
        """Record an event of this pod."""
        event = {
            "metadata": {"generateName": f"{self._pod}-transport-"},
            "involvedObject": self._object,
            "type": "Normal" if condition.proven else "Warning",
            "reason": f"{prefix}{condition.reason}",
            "message": condition.message[:_LONGEST_EVENT],
            "source": {"component": TRANSPORT},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        self._call("POST", "/events", event)
