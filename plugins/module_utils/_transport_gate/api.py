# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API calls that the sidecar's Role permits."""

from __future__ import annotations

from pathlib import Path

from .._in_pod.api import InPodApi, Json
from .._kube.labels import TRANSPORT
from .state import Condition

# A condition of rank 0 names every other rank with its cause.
_LONGEST_CONDITION = 8000


class PodApi(InPodApi):
    """Reads pods of the group, and writes the conditions and the events of one pod."""

    def __init__(self, account: Path, namespace: str, pod: str, uid: str) -> None:
        super().__init__(namespace, timeout=5, account=account)
        self._pod = pod
        self._object = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": namespace, "uid": uid}

    def pod(self, name: str) -> Json:
        """Return a pod of the group."""
        return self.call("GET", self.core(f"pods/{name}"))

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
        self.call("PATCH", self.core(f"pods/{self._pod}/status"), {"status": {"conditions": [written]}}, patch)

    def add_event(self, condition: Condition, prefix: str = "Transport") -> None:
        """Record an event of this pod."""
        reason = f"{prefix}{condition.reason}"
        self.record_event(self._object, reason, condition.message, not condition.proven, TRANSPORT)
