# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API calls that the switch's Roles permit."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_MERGE = "application/merge-patch+json"
# The API refuses longer messages of events.
_LONGEST_EVENT = 1000


class SwitchApi:
    """Reads nodes and the group's pods, scales its StatefulSets, keeps the status; every method raises OSError.

    ``now`` is the API server's clock at its last answer: it also wrote the times of the nodes' conditions.
    """

    def __init__(self, account: Path, namespace: str, instance: str) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self._server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._account, self._namespace, self._instance = account, namespace, instance
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls))
        self.now = 0.0

    def _call(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        # The token is rotated on disk, so it is read for every call.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        with self._opener.open(request, timeout=10) as answer:
            self.now = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            return dict(json.loads(answer.read()))

    def _found(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """Return the answer, or None if there is no such object."""
        try:
            return self._call(method, path, body)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def _core(self, path: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{path}"

    def _scale(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self._namespace}/statefulsets/{name}/scale"

    def nodes(self) -> list[Json]:
        """Return all nodes."""
        found: list[Json] = self._call("GET", "/api/v1/nodes")["items"]
        return found

    def replicas(self, name: str) -> int | None:
        """Return the wanted replicas of a StatefulSet, or None if it does not exist."""
        found = self._found("GET", self._scale(name))
        return None if found is None else int(found["spec"].get("replicas", 0))

    def has_pod(self, name: str) -> bool:
        """Tell whether a StatefulSet still has its pod, which may be stopping."""
        return self._found("GET", self._core(f"pods/{name}-0")) is not None

    def scale(self, name: str, replicas: int) -> None:
        """Set the replicas of a StatefulSet."""
        self._call("PATCH", self._scale(name), {"spec": {"replicas": replicas}}, _MERGE)

    def stop(self, name: str, grace: int) -> None:
        """Delete the pod of a StatefulSet, with less patience than the pod asks for."""
        self._found("DELETE", self._core(f"pods/{name}-0"), {"gracePeriodSeconds": grace})

    def kept(self) -> tuple[str, str]:
        """Return the kept status and its version."""
        found = self._call("GET", self._core(f"configmaps/{self._instance}-fallback"))
        return (found.get("data") or {}).get("status", ""), found["metadata"]["resourceVersion"]

    def keep(self, status: str, version: str) -> None:
        """Keep a status; fail if another program has kept one since ``version``."""
        body = {"metadata": {"resourceVersion": version}, "data": {"status": status}}
        self._call("PATCH", self._core(f"configmaps/{self._instance}-fallback"), body, _MERGE)

    def add_event(self, reason: str, message: str, warning: bool) -> None:
        """Record an event of the group's Service."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now))
        service = {"apiVersion": "v1", "kind": "Service", "name": self._instance, "namespace": self._namespace}
        event = {
            "metadata": {"generateName": f"{self._instance}-fallback-"},
            "involvedObject": service,
            "type": "Warning" if warning else "Normal",
            "reason": f"Fallback{reason}",
            "message": message[:_LONGEST_EVENT],
            "source": {"component": "gb10.cluster/fallback"},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        self._call("POST", self._core("events"), event)
