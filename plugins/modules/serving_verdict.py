#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube import verdict
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import VERDICT
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import pod_lines
from ansible_collections.gb10.cluster.plugins.module_utils._kube.slices import PROGRESS_SPEC, Slice, poll

POLL_SECONDS = 1
LOG_LINES = 2000


class Ask:
    """One pod that asks the image; every method raises ClusterError."""

    def __init__(self, cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
        self._cluster, self._namespace, self._pod = cluster, namespace, pod
        self._selector = f"{VERDICT}={pod['metadata']['labels'][VERDICT]}"
        self.seen: dict[str, Any] = {}

    def look(self) -> bool:
        """Return whether the pod has ended; create it if it is not there."""
        self.seen = next(iter(self._cluster.pods(self._namespace, self._selector)), {})
        if not self.seen:
            self._cluster.create_pod(self._namespace, self._pod)
        return verdict.ended(self.seen)

    def line(self) -> str:
        """Return what the pod waits for."""
        return pod_lines([self.seen], self._cluster.events(self._namespace))[0] if self.seen else "there is no pod"

    def said(self) -> list[str]:
        """Return the lines of the program."""
        return self._cluster.log_end(self._namespace, self._pod["metadata"]["name"], verdict.CONTAINER, LOG_LINES)

    def finish(self) -> None:
        """Delete the pod."""
        self._cluster.delete_pod(self._namespace, self._pod["metadata"]["name"])


def answered(ask: Ask, ranks: list[int], part: Slice) -> list[verdict.Answer] | None:
    """Return an answer per rank, None if the wait goes on; raise ClusterError."""
    done = poll(ask.look, bool, part.seconds, POLL_SECONDS)
    if not done and not part.last:
        return None
    if done:
        end = verdict.why_ended(ask.seen)
        reason = f"the check ended early{f' ({end})' if end else ''}"
        return verdict.answers(ask.said(), ranks, reason)
    return verdict.answers([], ranks, f"no answer after {part.waited:.0f} s: {ask.line()}")


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
        argument_spec={
            **CLUSTER_SPEC,
            "namespace": {"type": "str", "required": True},
            "instance": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "ranks": {"type": "list", "elements": "dict", "required": True},
            "program": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "dict", "default": []},
            "patches": {"type": "list", "elements": "str", "default": []},
            "plan": {"type": "dict", "default": {}},
            "gpu": {"type": "dict", "required": True},
            "pull_policy": {"type": "str", "choices": ["Always", "IfNotPresent", "Never"], "default": "IfNotPresent"},
            "timeout": {"type": "int", "default": 300},
            "progress": PROGRESS_SPEC,
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "done": True, "verdict": "unknown", "why": "", "release": ""}
    if module.check_mode:
        module.exit_json(msg=f"{options['image']} would be asked about the command lines.", ranks=[], **result)
    ranks = [int(each["rank"]) for each in options["ranks"]]
    part = Slice(options["timeout"], options["progress"])
    try:
        # The program ends before the wait for it does, so that it can say which ranks it did not reach.
        asked = verdict.question(
            options["ranks"], options["files"], options["gpu"], max(1, options["timeout"] * 9 // 10)
        )
        pod = verdict.verdict_pod(
            options["instance"], options["image"], options["node"], options["pull_policy"], options["program"], asked
        )
        ask = Ask(Cluster(options["kubeconfig"], options["context"]), options["namespace"], pod)
        found = answered(ask, ranks, part)
        if found is None:
            progress = {"waited": part.waited}
            msg = f"asking the image about the command lines for {part.waited:.0f} s: {ask.line()}"
            module.exit_json(msg=msg, **result | {"done": False, "progress": progress, "ranks": []})
        ask.finish()
    except (ClusterError, ValueError) as problem:
        # A check that cannot run says nothing about the command line.
        found = verdict.answers([], ranks, str(problem))
    result |= verdict.judged(found or [], options["patches"])
    if options["plan"] and result["ranks"]:
        first = result["ranks"][0] | {"verdict": result["verdict"], "message": result["why"]}
        result["ansible_facts"] = {"gb10_serving_plan": options["plan"] | {"image_verdict": first}}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
