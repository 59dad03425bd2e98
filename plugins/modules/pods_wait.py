#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pods_wait
short_description: Wait until pods are ready
version_added: 0.1.0
description:
  - Waits until a number of pods are ready, or until a DaemonSet runs its newest pod on every node.
  - Shows at least every 30 seconds what each pod waits for (phase, the container's reason, newest event).
  - Fails after O(timeout) seconds with the same lines, the newest Warning events, and a remedy if the cause is known.
    It never prints an API object.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.slices, gb10.cluster.shared.readonly]
options:
  namespace:
    description: Namespace of the pods.
    type: str
    required: true
  label_selector:
    description: Labels of the pods.
    type: str
    required: true
  count:
    description: Number of pods that must be ready.
    type: int
    default: 1
  daemon_set:
    description: A DaemonSet of the namespace. It must run its newest pod on every node; O(count) is then ignored.
    type: str
    default: ""
  timeout:
    description: Seconds to wait.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Wait until Multus runs on every node
  gb10.cluster.pods_wait:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: kube-system
    label_selector: app.kubernetes.io/name=multus
    daemon_set: gb10-multus
  delegate_to: localhost
"""

RETURN = r"""
{}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    PROGRESS_SPEC,
    Cluster,
    ClusterError,
    Slice,
    poll,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import (
    daemons_behind,
    hints,
    latest_warnings,
    pod_lines,
    quoted,
    ready,
)

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
    return [*filter(None, [behind]), *pod_lines(waiting, events, cluster.kubectl)]


def warnings(cluster: Cluster, options: dict[str, Any]) -> list[str]:
    """Return the newest warnings about the pods and their DaemonSet; empty if the API does not respond."""
    try:
        names = {pod["metadata"]["name"] for pod in cluster.pods(options["namespace"], options["label_selector"])}
        events = cluster.warnings(options["namespace"])
    except ClusterError:
        return []
    names.add(options["daemon_set"])
    return latest_warnings(event for event in events if event.get("involvedObject", {}).get("name") in names)


def main() -> None:
    module = AnsibleModule(
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
    result: dict[str, Any] = {"changed": False, "done": True}
    part = Slice(options["timeout"], options["progress"])
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
    except ClusterError as error:
        module.fail_json(msg=str(error), **result)
    waiting = poll(lambda: look(cluster, options), lambda found: not found, part.seconds, POLL_SECONDS)
    if not waiting:
        module.exit_json(msg="All pods are ready.", **result)
    shown = "\n".join(f"  {line}" for line in waiting)
    if not part.last:
        result |= {"done": False, "progress": {"waited": part.waited}}
        module.exit_json(msg=f"waiting for pods for {part.waited:.0f} s\n{shown}", **result)
    seen = warnings(cluster, options)
    advice = hints([*seen, shown], cluster.kubectl) or [
        f"Look at {cluster.kubectl} -n {options['namespace']} describe pods -l {options['label_selector']}."
    ]
    head = f"Not all pods are ready after {options['timeout']} s."
    module.fail_json(msg="\n".join([head, shown, *quoted(seen, shown), *advice]), **result)


if __name__ == "__main__":
    main()
