# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API calls that the switch's Roles permit."""

from __future__ import annotations

from pathlib import Path

from .._in_pod.api import ACCOUNT, InPodApi, Json

_MERGE = "application/merge-patch+json"


class SwitchApi(InPodApi):
    """Reads nodes and the group's pods, scales its StatefulSets, and keeps the status."""

    def __init__(self, namespace: str, instance: str, account: Path = ACCOUNT) -> None:
        super().__init__(namespace, timeout=10, account=account)
        self._instance = instance

    def _scale(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{name}/scale"

    def nodes(self) -> list[Json]:
        """Return all nodes."""
        found: list[Json] = self.call("GET", "/api/v1/nodes")["items"]
        return found

    def replicas(self, name: str) -> int | None:
        """Return the wanted replicas of a StatefulSet, or None if it does not exist."""
        found = self.find("GET", self._scale(name))
        return None if found is None else int(found["spec"].get("replicas", 0))

    def has_pod(self, name: str) -> bool:
        """Tell whether a StatefulSet still has its pod, which may be stopping."""
        return self.find("GET", self.core(f"pods/{name}-0")) is not None

    def scale(self, name: str, replicas: int) -> None:
        """Set the replicas of a StatefulSet."""
        self.call("PATCH", self._scale(name), {"spec": {"replicas": replicas}}, _MERGE)

    def stop(self, name: str, grace: int) -> None:
        """Delete the pod of a StatefulSet, with less patience than the pod asks for."""
        self.find("DELETE", self.core(f"pods/{name}-0"), {"gracePeriodSeconds": grace})

    def kept(self) -> tuple[str, str]:
        """Return the kept status and its version."""
        found = self.call("GET", self.core(f"configmaps/{self._instance}-fallback"))
        return (found.get("data") or {}).get("status", ""), found["metadata"]["resourceVersion"]

    def keep(self, status: str, version: str) -> None:
        """Keep a status; fail if another program has kept one since ``version``."""
        body = {"metadata": {"resourceVersion": version}, "data": {"status": status}}
        self.call("PATCH", self.core(f"configmaps/{self._instance}-fallback"), body, _MERGE)

    def add_event(self, reason: str, message: str, warning: bool) -> None:
        """Record an event of the group's Service."""
        service = {"apiVersion": "v1", "kind": "Service", "name": self._instance, "namespace": self.namespace}
        self.record_event(service, f"Fallback{reason}", message, warning, "gb10.cluster/fallback")
