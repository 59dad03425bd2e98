#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_group_info
short_description: Report the state of a serving group's ranks, and wait until they are ready
version_added: 0.1.0
description:
  - Reads pods and events of one serving group and reports for every rank where it runs, whether it is ready and what
    prevents it from becoming ready.
  - With O(wait_timeout) it waits until all ranks are ready, and shows at least every 30 seconds what every rank waits
    for. It stops as soon as waiting cannot help, for example when a rank has crashed repeatedly with the same failure
    or a network attachment is missing.
  - If the group does not become ready, the module fails. One screen at the end of the run says what the ranks share and
    how they differ, the cause that no other one explains, its remedy and the line that shows it. The complete result,
    with the Warning events and the last log lines of the ranks in trouble, goes to C(failed-INSTANCE.txt) in
    C(gb10_results_dir), readable by its owner only, with known forms of secrets removed.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.group, gb10.cluster.shared.slices,
  gb10.cluster.shared.readonly]
options:
  ranks:
    description: Number of ranks in the group.
    type: int
    required: true
  wait_timeout:
    description: Seconds to wait for all ranks; V(0) reads the state once and never fails because of it.
    type: int
    default: 0
  extend:
    description: Whether the time starts again with each new log line of a rank that is loading.
    type: bool
    default: false
  log_lines:
    description: How many log lines of a rank in trouble are quoted.
    type: int
    default: 15
  fallback:
    description: Name of the fallback's set of nodes that serves; empty for the ranks of the planned preset.
    type: str
    default: ""
  restarted:
    description: If a rank has ended or was restarted, quote O(log_lines) of all ranks, from before their last restart
      and again from after it.
    type: bool
    default: false
  settle:
    description:
      - With O(restarted), wait so many seconds until a rank ends or was restarted.
      - A client loses its connection before the API server knows that the process of a rank has ended.
    type: int
    default: 0
  head_command:
    description: Command that is run in rank 0 when all ranks are ready; the module fails if the command does.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Wait until all ranks are ready
  gb10.cluster.serving_group_info:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    instance: gemma-4-31b-it
    ranks: 4
    wait_timeout: 3600
  delegate_to: localhost
"""

RETURN = r"""
ready:
  description: Whether all ranks exist and are ready.
  returned: always
  type: bool
ranks:
  description: A dictionary for every pod, with C(rank), C(pod), C(node), C(phase), C(ready), C(started), C(restarts),
    C(revision), C(trouble), C(hopeless), C(last_exit) (the kubelet's reason, such as V(OOMKilled)), C(lost) (the rank
    ended because its node went down), C(failure) and C(crash) (what the last crash was, and its identity), C(down) (the
    container has not run since), C(event) (the newest event) and C(note) (what is wrong with a rank that may serve all
    the same).
  returned: always
  type: list
  elements: dict
missing:
  description: Ranks without a pod.
  returned: always
  type: list
  elements: int
logs:
  description: Last log lines of the ranks in trouble, by pod. If a container crashed, these are the lines before it.
  returned: always
  type: dict
causes:
  description: The causes that the NCCL log lines of ranks in trouble show, each with C(rank), C(summary) and C(remedy).
  returned: always
  type: list
  elements: dict
events:
  description: The newest Warning events of the group, if it is not ready.
  returned: always
  type: list
  elements: str
hints:
  description: Pairs of an event and its remedy, for the events whose cause is known.
  returned: always
  type: list
  elements: list
last_hang:
  description: When and why the group hung last, from the log of its supervisor; empty if it never did, or with
    O(wait_timeout) or O(head_command).
  returned: always
  type: str
head_output:
  description: Standard output of O(head_command).
  returned: always
  type: str
waited:
  description: Seconds that the module waited.
  returned: always
  type: float
"""

import time
from dataclasses import replace
from io import BytesIO
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status as status
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    PROGRESS_SPEC,
    Cluster,
    ClusterError,
    Slice,
    poll,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC, GROUP_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import (
    FALLBACK,
    HUNG,
    INSTANCE,
    RANK,
    SIDECAR,
    SUPERVISOR,
    progress,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import hints, latest_warnings, quoted
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report

POLL_SECONDS = 2
CONTAINER = "sglang"
# NCCL logs at the start of a process, tracebacks appear at its end.
READ_LINES = 500
# SGLang prints all its arguments on one line of several thousand characters.
WIDTH = 240
# A restart of a group leaves 20 lines per rank in the supervisor's log.
HANG_LINES = 2000
LOG_LINE = "    log: "
# A line with less confidence than this is only a hint.
PROBABLE = 0.3
# HTTP status codes from here on mean that the server failed, not that the request was wrong.
SERVER_ERROR = 500


class Members:
    """The pods of one group and their state in the API; every method but ``answers`` raises ClusterError."""

    def __init__(self, cluster: Cluster, namespace: str, instance: str, fallback: str = "") -> None:
        self._cluster, self._namespace, self._instance = cluster, namespace, instance
        # The pod of a lost node stays until the node returns.
        self._selector = f"{INSTANCE}={instance},{RANK}," + (f"{FALLBACK}={fallback}" if fallback else f"!{FALLBACK}")

    def group(self, ranks: int) -> status.Group:
        pods = self._cluster.pods(self._namespace, self._selector)
        return status.read_group(pods, self._cluster.events(self._namespace), ranks, self._cluster.kubectl)

    def warnings(self) -> list[str]:
        """Return the newest Warning events of the group's pods and workloads, whose names begin with the group's."""
        events = self._cluster.warnings(self._namespace)
        own = (e for e in events if str(e.get("involvedObject", {}).get("name", "")).startswith(f"{self._instance}-"))
        return latest_warnings(own)

    def log(self, rank: status.Rank, crashed: bool = True) -> list[str]:
        """Return the end of a rank's log; with ``crashed`` that of a container that crashed before, if there is one."""
        before = self._end(rank.pod, CONTAINER, READ_LINES, previous=True) if crashed and rank.restarts else []
        return before or self._end(rank.pod, CONTAINER, READ_LINES)

    def _end(self, pod: str, container: str, lines: int, previous: bool = False) -> list[str]:
        """Return the last lines of a container's log; empty if the API answers that it cannot give them."""
        try:
            return self._cluster.log_end(self._namespace, pod, container, lines, previous)
        except ClusterError as error:
            if not error.status:
                raise
            return []

    def whole_log(self, rank: status.Rank, lines: int) -> list[str]:
        """Return the last lines of a rank's log before its last restart, and as many from after it.

        The running container is read first: the kubelet may restart the container at any time, also before the API
        server knows of its end, and then only the second question finds the lines of the one that died.
        """
        now = self._end(rank.pod, CONTAINER, lines)
        before = self._end(rank.pod, CONTAINER, lines, previous=True)
        return now if before == now else before + now

    def nccl_lines(self, rank: status.Rank) -> list[str]:
        """Return what NCCL wrote at last in a rank; empty if the rank's sidecar has no log."""
        return self._end(rank.pod, SIDECAR, READ_LINES)

    def last_hang(self) -> str:
        """Return when and why the group hung last, in the words of its supervisor's log; empty if it does not say."""
        for pod in self._cluster.pods(self._namespace, f"{SUPERVISOR}={self._instance}"):
            lines = self._end(pod["metadata"]["name"], "supervisor", HANG_LINES)
            if told := [line for line in lines if HUNG in line]:
                return told[-1].replace(HUNG, "")
        return ""

    def head_output(self, group: status.Group, command: list[str]) -> str:
        head = min(group.ranks, key=lambda rank: rank.rank)
        ran = self._cluster.run(self._namespace, head.pod, CONTAINER, command)
        if ran.status:
            said = (ran.stderr or ran.stdout).strip()[-WIDTH:]
            raise ClusterError(
                f"pod {head.pod} is ready, but {' '.join(command)} ended with status {ran.status} in it: {said}. "
                f"Read its log: {self._cluster.kubectl} -n {self._namespace} logs {head.pod} -c {CONTAINER}"
            )
        return ran.stdout

    def answers(self, rank: status.Rank) -> bool:
        """Return whether the kubelet of a rank's node responds: the API server forwards log requests to it."""
        try:
            self._cluster.log_end(self._namespace, rank.pod, CONTAINER, 1)
        except ClusterError as error:
            return 0 < error.status < SERVER_ERROR
        return True


def with_lost(members: Members, group: status.Group) -> status.Group:
    """Mark ranks on nodes that do not respond as lost; Kubernetes reports them as ready for up to a minute."""
    silent = [rank for rank in group.ranks if rank.node and not members.answers(rank)]
    lost = {rank.pod: replace(rank, ready=False, lost=True, trouble="its node does not answer") for rank in silent}
    return replace(group, ranks=[lost.get(rank.pod, rank) for rank in group.ranks])


def wait(members: Members, ranks: int, seconds: float, crashes: dict[str, dict[str, str]]) -> status.Group:
    """Return the group's state once it is ready or hopeless, or when the time is over."""
    return poll(
        lambda: status.with_history(members.group(ranks), crashes),
        lambda group: group.ready or group.hopeless,
        seconds,
        POLL_SECONDS,
    )


def disturbed(group: status.Group) -> bool:
    """Return whether a rank of a group that was ready has ended since, as far as the API server knows."""
    return not group.ready or any(rank.restarts for rank in group.ranks)


def progress_lines(members: Members, group: status.Group, waited: float) -> tuple[list[str], list[str]]:
    """Return what the group waits for, with the last log line of every rank, and the last line of each rank's start.

    A loading rank counts as troubled, because its transport is not proven yet. A started rank logs only requests.
    """
    lines, said = [f"waiting for the group for {waited:.0f} s"], []
    for rank in group.troubled():
        log = members.log(rank, crashed=False) if rank.phase == "Running" and not rank.down else []
        lines += [f"  {rank}", *(f"{LOG_LINE}{line[:WIDTH]}" for line in log[-1:])]
        said += [line[:WIDTH] for line in ([] if rank.started else progress(log)[-1:])]
    return [*lines, *(f"  rank {number}: no pod" for number in group.missing)], said


def nccl_causes(rank: status.Rank, log: list[str]) -> list[dict[str, Any]]:
    read = NcclLog()
    read.read(BytesIO("\n".join(log).encode()).read)
    causes = [cause for cause in Report(read, rank.pod).causes if cause["confidence"] >= PROBABLE]
    return [{**cause, "rank": rank.rank, "node": rank.node} for cause in causes]


def remedies(warnings: list[str], program: str) -> list[tuple[str, str]]:
    """Return the events whose cause is known, each with its remedy; ``program`` begins commands."""
    found = {hint: text for text in reversed(warnings) for hint in hints([text], program)}
    return [(text, hint) for hint, text in found.items()]


def report(
    group: status.Group,
    logs: dict[str, list[str]],
    causes: list[dict[str, Any]],
    head: str,
    warnings: list[str],
    program: str,
) -> str:
    """Return the message: one line per rank, warnings, last log lines of ranks in trouble, and probable causes."""
    # The module runs on the owner's machine.
    lines = [head, *(status.in_own_zone(line, time.time()) for line in group.lines())]
    state = "\n".join(lines)
    lines += quoted(warnings, state)
    for pod, log in logs.items():
        lines += [f"Last lines of {pod}:", *(f"  {line}" for line in log)]
    lines += [
        f"Probable cause: rank {cause['rank']} on {cause['node']}: {cause['summary']}. {cause['remedy']}"
        for cause in causes
    ]
    return "\n".join([*lines, *hints(warnings, program)])


def headline(instance: str, group: status.Group, waited: float | None) -> str:
    """Return how many ranks are ready; ``waited`` is in seconds, None if nothing was waited for."""
    after = "" if waited is None else f" after {waited:.0f} s"
    total = len(group.ranks) + len(group.missing)
    number = sum(rank.ready for rank in group.ranks)
    count = "" if group.ready or not total else f": {number} of {total} ranks {'is' if number == 1 else 'are'} ready"
    return f"Group {instance} is {'ready' if group.ready else 'not ready'}{after}{count}."


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            **GROUP_SPEC,
            "ranks": {"type": "int", "required": True},
            "wait_timeout": {"type": "int", "default": 0},
            "extend": {"type": "bool", "default": False},
            "log_lines": {"type": "int", "default": 15},
            "progress": PROGRESS_SPEC,
            "fallback": {"type": "str", "default": ""},
            "restarted": {"type": "bool", "default": False},
            "settle": {"type": "int", "default": 0},
            "head_command": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "ready": False, "ranks": [], "missing": [], "logs": {}}
    result |= {"causes": [], "waited": 0.0, "done": True, "head_output": ""}
    result |= {"events": [], "hints": [], "last_hang": ""}
    before: dict[str, Any] = options["progress"]
    moved: float = before.get("moved", 0.0)
    part = Slice(options["wait_timeout"] + moved, before)
    crashes: dict[str, dict[str, str]] = before.get("crashes", {})
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        members = Members(cluster, options["namespace"], options["instance"], options["fallback"])
        group = wait(members, options["ranks"], part.seconds, crashes)
        if not (group.ready or group.hopeless or part.last):
            lines, said = progress_lines(members, group, part.waited)
            if options["extend"] and said and said != before.get("said"):
                moved = part.waited
            following = {"waited": part.waited, "crashes": crashes, "moved": moved, "said": said}
            result |= group.as_dict() | {"done": False, "progress": following, "waited": part.waited}
            module.exit_json(msg="\n".join(lines), **result)
        if options["restarted"]:
            group = poll(lambda: members.group(options["ranks"]), disturbed, options["settle"], POLL_SECONDS)
            group = with_lost(members, group)
        # When one rank has ended, the API server may still call another one ready that ended before it.
        look_at_all = options["restarted"] and disturbed(group)
        troubled = group.ranks if look_at_all else group.troubled()
        # A status shows the log of the container that runs; why the one before it ended is told where a wait failed.
        looks_back = bool(options["wait_timeout"])
        logs = {
            rank: members.whole_log(rank, options["log_lines"])
            if look_at_all
            else members.log(rank, looks_back or rank.down)
            for rank in troubled
            if rank.phase == "Running" and not rank.lost
        }
        causes = [cause for rank, log in logs.items() for cause in nccl_causes(rank, members.nccl_lines(rank) + log)]
        warnings = [] if group.ready else members.warnings()
        # Who waits for a start, or asks the server, wants to know about that.
        hang = "" if options["wait_timeout"] or options["head_command"] else members.last_hang()
        if group.ready and options["head_command"]:
            result["head_output"] = members.head_output(group, options["head_command"])
    except ClusterError as error:
        module.fail_json(msg=str(error), **result)
    waited = round(part.waited, 1)
    most = 2 * options["log_lines"] if look_at_all else options["log_lines"]
    shown = {rank.pod: [line[:WIDTH] for line in log[-most:]] for rank, log in logs.items() if log}
    result |= group.as_dict() | {"logs": shown, "causes": causes, "waited": waited}
    result |= {"events": warnings, "hints": remedies(warnings, cluster.kubectl), "last_hang": hang}
    head = headline(options["instance"], group, waited if options["wait_timeout"] else None)
    result["msg"] = report(group, shown, causes, head, warnings, cluster.kubectl)
    result["msg"] += f"\nLast hang: {hang}" if hang else ""
    if options["wait_timeout"] and not group.ready:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
