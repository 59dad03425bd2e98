# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let one run at a time change the groups of a namespace.

An action, because it names the process of the run, which is the parent of the one that carries out a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import CONFLICT, FORBIDDEN, ClusterError
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import run_lock
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction


class ActionModule(ControllerAction):
    """Takes the Lease of a namespace, or gives it back."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether this run holds the Lease now; fail if another run does."""
        if self._task.check_mode:
            return {"changed": False, "held": False, "msg": "A run in check mode takes no lock."}
        mine = run_lock.this_run(options["run"])
        taking = options["state"] == "held"
        try:
            cluster = Cluster(options["kubeconfig"], options["context"])
            return take(cluster, options, mine) if taking else give_back(cluster, options, mine)
        except ClusterError as error:
            if taking and error.status != FORBIDDEN:
                return {"failed": True, "changed": False, "held": False, "msg": f"Nothing was changed: {error}"}
            rest = "; another run may change the groups at the same time" if taking else "; it expires by itself"
            return {"changed": False, "held": False, "msg": f"{error}{rest}"}


def take(cluster: Cluster, options: Mapping[str, Any], mine: run_lock.Holder) -> dict[str, Any]:
    """Take the Lease, unless another run holds it."""
    namespace, name, now = options["namespace"], options["name"], datetime.now(UTC)
    found = cluster.read_lease(namespace, name)
    hindrance = run_lock.hindrance(found, mine, now) if found else ""
    if not hindrance:
        version = found["metadata"]["resourceVersion"] if found else ""
        try:
            cluster.write_lease(namespace, run_lock.lease_of(name, mine, now, options["duration"], version))
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            hindrance = "a run that took it at the same moment"
        else:
            return {"changed": False, "held": True, "msg": f"This run may change groups of namespace {namespace}."}
    return {
        "failed": True,
        "changed": False,
        "held": False,
        "msg": (
            f"Another run changes groups of namespace {namespace}: {hindrance}. Two at once would replace each other's "
            "groups; nothing was changed. Run this again when it has ended. If it does not run any more: kubectl "
            f"--context {options['context']} -n {namespace} delete lease {name} [serving.run.other]"
        ),
    }


def give_back(cluster: Cluster, options: Mapping[str, Any], mine: run_lock.Holder) -> dict[str, Any]:
    """Delete the Lease if this run holds it."""
    found = cluster.read_lease(options["namespace"], options["name"])
    if found and mine.is_same(run_lock.holder(found)):
        cluster.delete_lease(options["namespace"], options["name"], found["metadata"]["resourceVersion"])
    return {"changed": False, "held": False, "msg": "Other runs may change groups again."}
