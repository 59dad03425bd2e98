# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let one run at a time change the groups of a namespace.

An action, because it names the process of the run, which is the parent of the one that carries out a task.

The Lease names its holder and expires. A run that ended on the same machine without giving it back does not hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    CONFLICT,
    FORBIDDEN,
    Cluster,
    ClusterError,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import kubectl
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import Holder, this_run

HOLDER = "gb10.cluster/holder"
LEASE = "gb10-run"


def holder(lease: Mapping[str, Any]) -> Holder | None:
    """Return who holds a Lease; None if something else wrote it."""
    try:
        return plain.load(Holder, json.loads((lease["metadata"].get("annotations") or {})[HOLDER]))
    except (KeyError, TypeError, ValueError):
        return None


def expires(lease: Mapping[str, Any]) -> datetime:
    """Return when a Lease ends; at once if it does not say so."""
    spec = lease.get("spec") or {}
    try:
        renewed = datetime.fromisoformat(str(spec["renewTime"]).replace("Z", "+00:00"))
        return renewed + timedelta(seconds=int(spec["leaseDurationSeconds"]))
    except (KeyError, TypeError, ValueError):
        return datetime.min.replace(tzinfo=UTC)


def hindrance(lease: Mapping[str, Any], mine: Holder, now: datetime, proc: Path = Path("/proc")) -> str:
    """Return who keeps this run from changing groups, or an empty string."""
    other = holder(lease)
    if mine.is_same(other) or expires(lease) <= now:
        return ""
    if other and other.has_ended(mine, proc):
        return ""
    since = str((lease.get("spec") or {}).get("acquireTime", "an unknown time"))[:19]
    named = other or (lease.get("spec") or {}).get("holderIdentity") or "a program that is not named"
    return f"{named}, since {since} UTC, at most until {expires(lease):%Y-%m-%dT%H:%M:%S} UTC"


def lease_of(mine: Holder, now: datetime, duration: int, version: str = "") -> dict[str, Any]:
    """Return the Lease of a run; ``version`` is that of the Lease that it replaces."""
    stamp = f"{now:%Y-%m-%dT%H:%M:%S.%f}Z"
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": LEASE,
            "labels": {"app.kubernetes.io/managed-by": "gb10.cluster"},
            "annotations": {HOLDER: json.dumps(asdict(mine))},
            **({"resourceVersion": version} if version else {}),
        },
        "spec": {
            "holderIdentity": str(mine)[:120],
            "leaseDurationSeconds": duration,
            "acquireTime": stamp,
            "renewTime": stamp,
        },
    }


class ActionModule(ControllerAction):
    """Takes the Lease of a namespace, or gives it back."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether this run holds the Lease now; fail if another run does."""
        if self._task.check_mode:
            return {"changed": False, "held": False, "msg": "A run in check mode takes no lock."}
        mine = this_run(options["run"])
        taking = options["state"] == "held"
        try:
            cluster = Cluster(options["kubeconfig"], options["context"])
            return take(cluster, options, mine) if taking else give_back(cluster, options, mine)
        except ClusterError as error:
            if taking and error.status != FORBIDDEN:
                return {"failed": True, "changed": False, "held": False, "msg": f"No group was changed: {error}"}
            rest = "; another run may change the groups at the same time" if taking else "; it expires by itself"
            return {"changed": False, "held": False, "msg": f"{error}{rest}"}


def take(cluster: Cluster, options: Mapping[str, Any], mine: Holder) -> dict[str, Any]:
    """Take the Lease, unless another run holds it."""
    namespace, now = options["namespace"], datetime.now(UTC)
    found = cluster.read_lease(namespace, LEASE)
    obstacle = hindrance(found, mine, now) if found else ""
    if not obstacle:
        version = found["metadata"]["resourceVersion"] if found else ""
        try:
            cluster.write_lease(namespace, lease_of(mine, now, options["duration"], version))
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            obstacle = "a run that took it at the same moment"
        else:
            return {"changed": False, "held": True, "msg": f"This run may change groups of namespace {namespace}."}
    return {
        "failed": True,
        "changed": False,
        "held": False,
        "msg": (
            f"Another run changes groups of namespace {namespace}: {obstacle}. Two at once would replace each other's "
            "groups; no group was changed. Run this again when it has ended. If it does not run any more: "
            f"{kubectl(options['kubeconfig'], options['context'])} -n {namespace} delete lease {LEASE} "
            "[serving.run.other]"
        ),
    }


def give_back(cluster: Cluster, options: Mapping[str, Any], mine: Holder) -> dict[str, Any]:
    """Delete the Lease if this run holds it."""
    found = cluster.read_lease(options["namespace"], LEASE)
    if found and mine.is_same(holder(found)):
        cluster.delete_lease(options["namespace"], LEASE, found["metadata"]["resourceVersion"])
    return {"changed": False, "held": False, "msg": "Other runs may change groups again."}
