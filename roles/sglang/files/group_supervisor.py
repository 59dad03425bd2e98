# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restart all ranks of a serving group together when the head is stuck or a rank was lost.

Runs in its own pod, whose RBAC permits only reading and deleting the group's pods; standard library only. If the
process of a rank ends, the kubelet restarts it and the other ranks end by themselves within seconds. Three cases need
this program: a frozen rank (the head answers 503 forever and never exits), a rank that restarted without the others
noticing, and a node that runs out of memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The sidecar of a rank writes this condition of its pod.
MEMORY, MEMORY_OUT = "gb10.cluster/memory", "MemoryOut"
# After one rank crashes the others follow one by one, so one failure can leave a set of logs per rank.
KEPT_SETS = 30
SHOWN_LINES = 20
# A head is warm once it generated this many tokens in each of so many checks (five minutes). Health requests generate
# one token each, so they do not count as work.
BUSY_TOKENS = 50
WARM_CHECKS = 60
GENERATED = "sglang:generation_tokens_total"
# Metrics that change while the head's scheduler works, and do not change because a client sends a request. A long
# prefill changes no counter of finished requests, but realtime_tokens_total or, in releases without it, the tokens in
# use.
WORK = (
    GENERATED,
    "sglang:realtime_tokens_total",
    "sglang:cuda_graph_passes_total",
    "sglang:num_used_tokens",
    "sglang:token_usage",
)


@dataclass(frozen=True)
class Seen:
    """The state of one pod; ``incarnation`` changes whenever its process restarts.

    ``memory`` says why the group has to stop before the pod's node freezes.
    """

    name: str
    started: bool = False
    running: bool = False
    incarnation: str = ""
    address: str = ""
    memory: str = ""


@dataclass(frozen=True)
class Limits:
    """How long a head may be stuck or a group partly new, and how long to wait between two restarts, in seconds.

    A head is stuck while it answers 503 and its counters do not change, so ``stuck_after`` has to be longer than the
    slowest single step of a warm head. Until a head is warm its steps may compile kernels (six minutes for one step
    were seen), and ``first_step`` applies.
    """

    stuck_after: float = 120
    first_step: float = 1800
    part_after: float = 30
    backoff_first: float = 30
    backoff_most: float = 600
    calm_after: float = 600


@dataclass
class Memory:
    """What the supervisor remembers between two checks."""

    incarnations: tuple[str, ...] = ()
    work: str = ""
    tokens: float = 0.0
    warm: int = 0
    stuck_since: float | None = None
    part_since: float | None = None
    healthy_since: float | None = None
    restarts: int = 0
    not_before: float = 0.0
    notes: list[str] = field(default_factory=list)


def decide(seen: list[Seen], healthy: bool | None, memory: Memory, limits: Limits, now: float, work: str = "") -> str:
    """Return why the whole group must restart now, or an empty string; update ``memory``.

    ``healthy`` is the head's answer, None if it was not asked because some rank has not started yet; ``work`` are its
    metrics, empty if they are unknown.
    """
    incarnations = tuple(pod.incarnation for pod in seen)
    if work:
        tokens = generated(work)
        memory.warm = memory.warm + (tokens - memory.tokens >= BUSY_TOKENS) if tokens >= memory.tokens else 0
        memory.tokens = tokens
    for pod in seen:
        if pod.memory and now >= memory.not_before:
            return f"{pod.name}: {pod.memory}"
    if all(pod.started for pod in seen) and healthy:
        memory.incarnations = incarnations
        memory.stuck_since = memory.part_since = None
        memory.healthy_since = memory.healthy_since or now
        if now - memory.healthy_since >= limits.calm_after:
            memory.restarts = 0
        return ""
    memory.healthy_since = None
    running = all(pod.running for pod in seen)
    stuck = healthy is False and running and all(pod.started for pod in seen)
    working = bool(work) and work != memory.work
    memory.work = work or memory.work
    memory.stuck_since = (now if working else memory.stuck_since or now) if stuck else None
    changed = [now_is != was for now_is, was in zip(incarnations, memory.incarnations, strict=False)]
    part = running and any(changed) and not all(changed)
    if running and not part:
        # Running ranks that all restarted, or none of which did, are one group, even while they are still loading.
        memory.incarnations = incarnations
    memory.part_since = (memory.part_since or now) if part else None
    if now < memory.not_before:
        return ""
    patience = limits.stuck_after if memory.warm >= WARM_CHECKS else max(limits.first_step, limits.stuck_after)
    if memory.stuck_since is not None and now - memory.stuck_since >= patience:
        return f"the head has been stuck for {now - memory.stuck_since:.0f} s"
    if memory.part_since is not None and now - memory.part_since >= limits.part_after:
        old = [pod.name for pod, new in zip(seen, changed, strict=False) if not new]
        return f"some ranks are new while {', '.join(old)} still belong to the old group"
    return ""


def generated(work: str) -> float:
    """Return the number of generated tokens in the head's metrics."""
    return sum(float(line.rpartition(" ")[2]) for line in work.splitlines() if line.startswith(GENERATED))


def acted(memory: Memory, limits: Limits, now: float) -> float:
    """Record a restart; return the least number of seconds until the next one."""
    pause: float = min(limits.backoff_first * 2**memory.restarts, limits.backoff_most)
    memory.restarts += 1
    memory.not_before = now + pause
    memory.incarnations = ()
    memory.stuck_since = memory.part_since = memory.healthy_since = None
    memory.warm, memory.tokens = 0, 0.0
    return pause


def crashed(seen: list[Seen], before: dict[str, str]) -> list[str]:
    """Return the pods whose process the kubelet restarted since the last check; update ``before``."""
    found = []
    for pod in seen:
        if not pod.incarnation:
            continue
        uid = pod.incarnation.partition("/")[0]
        was = before.get(pod.name, "")
        was = was if was.startswith(f"{uid}/") else f"{uid}/0"
        if was != pod.incarnation:
            found.append(pod.name)
        before[pod.name] = pod.incarnation
    return found


class Api:
    """The API calls that the supervisor's Role permits."""

    def __init__(self, namespace: str) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        self._base = f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods"
        self._tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))

    def _call(self, method: str, path: str, body: Any = None) -> bytes:
        # The token is rotated on disk, so it is read for every call.
        token = (ACCOUNT / "token").read_text(encoding="ascii").strip()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=15, context=self._tls) as answer:
            content: bytes = answer.read()
        return content

    def see(self, name: str) -> Seen:
        try:
            pod = json.loads(self._call("GET", f"/{name}"))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return Seen(name)
            raise
        return read_pod(name, pod)

    def log(self, name: str, lines: int, previous: bool) -> str:
        """Return the end of a pod's log, with ``previous`` that of the process before the running one."""
        # The sidecar, which repeats NCCL's lines, keeps running when the server restarts.
        return self._log(name, "transport", lines, False) + self._log(name, "sglang", lines, previous)

    def _log(self, name: str, container: str, lines: int, previous: bool) -> str:
        query = f"container={container}&tailLines={lines}&previous={str(previous).lower()}"
        try:
            return self._call("GET", f"/{name}/log?{query}").decode(errors="replace")
        except (OSError, urllib.error.HTTPError) as error:
            return f"(no log: {error})\n"

    def delete(self, name: str, grace: int) -> None:
        try:
            self._call("DELETE", f"/{name}", {"gracePeriodSeconds": grace})
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise


def read_pod(name: str, pod: dict[str, Any]) -> Seen:
    """Return the state of a pod; a pod that is being deleted counts as gone."""
    if pod["metadata"].get("deletionTimestamp"):
        return Seen(name)
    status = pod.get("status", {})
    container: dict[str, Any] = next((c for c in status.get("containerStatuses") or [] if c["name"] == "sglang"), {})
    running = "running" in container.get("state", {})
    conditions = {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "False"}
    memory = conditions.get(MEMORY, {})
    return Seen(
        name=name,
        started=running and bool(container.get("started")),
        running=running,
        incarnation=f"{pod['metadata']['uid']}/{container.get('restartCount', 0)}",
        address=status.get("podIP", ""),
        memory=str(memory.get("message")) if memory.get("reason") == MEMORY_OUT else "",
    )


def head_is_healthy(address: str, port: int, timeout: float) -> bool:
    """Request /health: 200 after about a second if all ranks produced a token, 503 after 20 s if not."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/health", timeout=timeout) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def work_done(address: str, port: int) -> str:
    """Return the head's metrics about its work, empty if there are none (no ``--enable-metrics``, no answer)."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    return "\n".join(line for line in text.splitlines() if line.startswith(WORK))


def keep_logs(api: Api, pods: list[str], directory: Path, lines: int, previous: bool = False) -> None:
    """Save and print the end of each pod's log: it is lost when the pod is deleted or its process crashes again.

    If the directory can't be written, only say so: the group has to restart in any case.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    texts = {name: api.log(name, lines, previous) for name in pods}
    for name, text in texts.items():
        say(f"last lines of {name}:\n" + "\n".join(f"    {line}" for line in text.splitlines()[-SHOWN_LINES:]))
    try:
        for name, text in texts.items():
            (directory / f"{stamp}-{name}.log").write_text(text, encoding="utf-8")
        stamps = sorted({path.name.partition("-")[0] for path in directory.glob("*.log")})
        for path in directory.glob("*.log"):
            if path.name.partition("-")[0] in stamps[:-KEPT_SETS]:
                path.unlink()
    except OSError as error:
        say(f"the logs can't be saved: {error}")


def say(text: str) -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", flush=True)


def check(
    api: Api, pods: list[str], memory: Memory, before: dict[str, str], options: argparse.Namespace, limits: Limits
) -> None:
    """Check a group and restart it if needed."""
    seen = [api.see(name) for name in pods]
    if restarted := crashed(seen, before):
        say(f"restarted by the kubelet: {', '.join(restarted)}")
        keep_logs(api, restarted, options.logs, options.log_lines, previous=True)
    healthy = None
    if all(pod.started for pod in seen):
        healthy = head_is_healthy(seen[0].address, options.port, options.health_timeout)
    work = work_done(seen[0].address, options.port) if healthy is not None else ""
    why = decide(seen, healthy, memory, limits, time.monotonic(), work)
    if why:
        say(f"restarting the group: {why}")
        keep_logs(api, pods, options.logs, options.log_lines)
        # Rank 0 first: from SGLang 0.5.21 on a worker ignores SIGTERM until the head is gone.
        for name in pods:
            api.delete(name, options.grace)
        pause = acted(memory, limits, time.monotonic())
        say(f"all {len(pods)} ranks deleted; the next restart not before {pause:.0f} s")


def watch(api: Api, options: argparse.Namespace, limits: Limits) -> None:
    """Check every group, and repeat; keep trying while the API does not answer."""
    groups: list[tuple[list[str], Memory, dict[str, str]]] = [(pods, Memory(), {}) for pods in options.pods]
    while True:
        for pods, memory, before in groups:
            try:
                check(api, pods, memory, before, options, limits)
            except (OSError, ValueError) as error:
                say(f"the API gave no answer, trying again: {error}")
        time.sleep(options.interval)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument(
        "--pods",
        required=True,
        action="append",
        type=lambda text: text.split(","),
        help="of one group in rank order; give it again for another group",
    )
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--interval", type=float, default=5)
    parser.add_argument("--health-timeout", type=float, default=25)
    parser.add_argument("--stuck-after", type=float, default=Limits.stuck_after)
    parser.add_argument("--first-step-timeout", type=float, default=Limits.first_step)
    parser.add_argument("--grace", type=int, default=10)
    parser.add_argument("--logs", type=Path, default=Path("/var/log/group"))
    parser.add_argument("--log-lines", type=int, default=400)
    options = parser.parse_args()
    say(f"watching {'; '.join(map(', '.join, options.pods))}")
    try:
        limits = Limits(stuck_after=options.stuck_after, first_step=options.first_step_timeout)
        watch(Api(options.namespace), options, limits)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
