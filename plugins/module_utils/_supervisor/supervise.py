# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restart all ranks of a serving group together when the head is stuck or a rank was lost.

Runs in its own pod, whose RBAC permits only reading and deleting the group's pods; standard library only. If the
process of a rank ends, the kubelet restarts it and the other ranks end by themselves within seconds. Five cases
need this program: a frozen rank (the head answers 503 forever and never exits), a start that makes no progress, a rank
that restarted without the others noticing, a rank that crashes again and again in its pod, and a node that runs out of
memory.
"""

from __future__ import annotations

import argparse
import http.client
import time
import urllib.request
from pathlib import Path

from .._in_pod.api import InPodApi
from .._in_pod.pages import say
from .._kube.labels import SIDECAR
from .._kube.start_log import progress
from .state import WORK, History, Limits, Seen, acted, crashed, decide, is_starting, read_pod

# After one rank crashes the others follow one by one, so one failure can leave a set of logs per rank.
KEPT_SETS = 30
SHOWN_LINES = 20
# Lines of a rank's log of which the last one shows whether its start goes on: probes cause a line every few seconds.
LAST_LINES = 50
_HTTP = urllib.request.build_opener()


class SupervisorApi(InPodApi):
    """The API calls that the supervisor's Role permits."""

    def see(self, name: str) -> Seen:
        """Return the state of a pod, which may not exist."""
        pod = self.find("GET", self.core(f"pods/{name}"))
        return Seen(name) if pod is None else read_pod(name, pod)

    def log(self, name: str, lines: int, previous: bool) -> str:
        """Return the end of a pod's log, with ``previous`` that of the process before the running one."""
        # The sidecar, which repeats NCCL's lines, keeps running when the server restarts.
        return self._log(name, SIDECAR, lines, False) + self._log(name, "sglang", lines, previous)

    def said(self, names: list[str]) -> list[str] | None:
        """Return the last line that each server's start wrote, or None if a log can't be read."""
        try:
            logs = [self._read_log(name, "sglang", LAST_LINES, False) for name in names]
        except (OSError, http.client.HTTPException):
            return None
        return [line for log in logs for line in progress(log.splitlines())[-1:]]

    def _log(self, name: str, container: str, lines: int, previous: bool) -> str:
        try:
            return self._read_log(name, container, lines, previous)
        except (OSError, http.client.HTTPException) as error:
            return f"(no log: {error})\n"

    def _read_log(self, name: str, container: str, lines: int, previous: bool) -> str:
        query = f"container={container}&tailLines={lines}&previous={str(previous).lower()}"
        return self.read("GET", self.core(f"pods/{name}/log?{query}")).decode(errors="replace")

    def delete(self, name: str, grace: int) -> None:
        """Delete a pod, which may be gone already."""
        self.find("DELETE", self.core(f"pods/{name}"), {"gracePeriodSeconds": grace})


def head_is_healthy(address: str, port: int, timeout: float) -> bool:
    """Request /health: 200 after about a second if all ranks produced a token, 503 after 20 s if not."""
    try:
        with _HTTP.open(f"http://{address}:{port}/health", timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def work_done(address: str, port: int) -> str:
    """Return the head's metrics about its work, empty if there are none (no ``--enable-metrics``, no answer)."""
    try:
        with _HTTP.open(f"http://{address}:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    return "\n".join(line for line in text.splitlines() if line.startswith(WORK))


def keep_logs(api: SupervisorApi, pods: list[str], directory: Path, lines: int, previous: bool = False) -> None:
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


def check(
    api: SupervisorApi,
    pods: list[str],
    history: History,
    before: dict[str, str],
    options: argparse.Namespace,
    limits: Limits,
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
    said = api.said([pod.name for pod in seen if not pod.started]) if is_starting(seen) else []
    why = decide(seen, healthy, history, limits, time.monotonic(), work, said)
    if why:
        say(f"restarting the group: {why}")
        keep_logs(api, pods, options.logs, options.log_lines)
        # Rank 0 first: from SGLang 0.5.21 on a worker ignores SIGTERM until the head is gone.
        for name in pods:
            api.delete(name, options.grace)
        pause = acted(history, limits, time.monotonic())
        say(f"all {len(pods)} ranks deleted; the next restart not before {pause:.0f} s")


def watch(api: SupervisorApi, options: argparse.Namespace, limits: Limits) -> None:
    """Check every group, and repeat; a check that fails is tried again."""
    groups: list[tuple[list[str], History, dict[str, str]]] = [(pods, History(), {}) for pods in options.pods]
    while True:
        for pods, history, before in groups:
            try:
                check(api, pods, history, before, options, limits)
            except (OSError, http.client.HTTPException, ValueError) as error:
                say(f"{pods[0]} and its group could not be checked, trying again: {error!r}")
        time.sleep(options.interval)


def main() -> None:
    """Watch the groups until the pod ends."""
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
    parser.add_argument("--start-timeout", type=float, default=Limits.start)
    parser.add_argument("--grace", type=int, default=10)
    parser.add_argument("--logs", type=Path, default=Path("/var/log/group"))
    parser.add_argument("--log-lines", type=int, default=400)
    options = parser.parse_args()
    say(f"watching {'; '.join(map(', '.join, options.pods))}")
    try:
        limits = Limits(options.stuck_after, options.first_step_timeout, options.start_timeout)
        watch(SupervisorApi(options.namespace, timeout=15), options, limits)
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
