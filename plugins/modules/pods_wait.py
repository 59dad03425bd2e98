#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import (
    daemons_behind,
    hints,
    latest_warnings,
    pod_lines,
    quoted,
    ready,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.slices import PROGRESS_SPEC, Slice, poll

POLL_SECONDS = 2


def look(cluster: Cluster, options: dict[str, Any]) -> list[str]:
    """Return what is not ready yet, one sentence each. This includes an API that does not respond."""
    namespace, daemon_set = options["namespace"], options["daemon_set"]
    try:
        pods = cluster.pods(namespace, options["label_selector"])
        waiting = [pod for pod in pods if not ready(pod)]
        if daemon_set:
            behind = daemons_behind(cluster.daemon_set(namespace, daemon_set))
        else:
            there = len(pods) - len(waiting)
            behind = "" if there >= options["count"] else f"{there} of {options['count']} pods are ready"
        if not behind and not waiting:
            return []
        events = cluster.events(namespace) if waiting else []
    except ClusterError as error:
        return [str(error)]
    return [*filter(None, [behind]), *pod_lines(waiting, events)]


def warnings(cluster: Cluster, options: dict[str, Any]) -> list[str]:
    """Return the newest warnings about the pods and their DaemonSet; empty if the API does not respond."""
    try:
        names = {pod["metadata"]["name"] for pod in cluster.pods(options["namespace"], options["label_selector"])}
        events = cluster.warnings(options["namespace"])
    except ClusterError:
        return []
    names.add(options["daemon_set"])
    return latest_warnings(event for event in events if event.get("involvedObject", {}).get("name") in names)


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
        argument_spec={
            **CLUSTER_SPEC,
            "namespace": {"type": "str", "required": True},
            "label_selector": {"type": "str", "required": True},
            "count": {"type": "int", "default": 1},
            "daemon_set": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 300},
            "progress": PROGRESS_SPEC,
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "done": True, "waiting": []}
    part = Slice(options["timeout"], options["progress"])
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
    except ClusterError as error:
        module.fail_json(msg=str(error), **result)
    waiting = poll(lambda: look(cluster, options), lambda found: not found, part.seconds, POLL_SECONDS)
    if not waiting:
        module.exit_json(msg="All pods are ready.", **result)
    result["waiting"] = waiting
    shown = "\n".join(f"  {line}" for line in waiting)
    if not part.last:
        result |= {"done": False, "progress": {"waited": part.waited}}
        module.exit_json(msg=f"waiting for pods for {part.waited:.0f} s\n{shown}", **result)
    seen = warnings(cluster, options)
    advice = hints([*seen, shown]) or [
        f"Look at kubectl -n {options['namespace']} describe pods -l {options['label_selector']}."
    ]
    head = f"Not all pods are ready after {options['timeout']} s."
    module.fail_json(msg="\n".join([head, shown, *quoted(seen, shown), *advice]), **result)


if __name__ == "__main__":
    main()
