# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A group in a lab, whose environment and transport the tests can break."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import TRANSPORT
from gb10lab.lab import Lab
from labcommand import LabCommand
from sitecommand import PATIENCE, Site

GROUP = "gemma-4-31b-it"


class Cluster(Site):
    """A group, by default of two ranks, whose environment and transport the tests can break."""

    def refused(self, playbook: str, **values: Any) -> str:
        """Run a playbook that must fail; return its output from the failure to the last screen, without line breaks."""
        return " ".join(self.play(playbook, check=False, **values).partition("fatal: ")[2].split())

    def wait(self, is_so: Callable[[], bool], patience: float = PATIENCE) -> float:
        """Wait until ``is_so`` returns true; return the seconds that it took."""
        started = time.monotonic()
        while time.monotonic() - started < patience:
            if is_so():
                return time.monotonic() - started
            time.sleep(1)
        raise AssertionError(self.kubectl("describe", "pods", "-l", "gb10.cluster/rank")[-6000:])

    def in_service(self) -> bool:
        """Return whether the Service sends requests to the head."""
        slices = self.get("endpointslices", f"--selector=kubernetes.io/service-name={GROUP}")["items"]
        return any(each["conditions"].get("ready") for part in slices for each in part.get("endpoints") or [])

    def cable(self, rank: int, state: str) -> None:
        """Set the switch's end of the second rail's VF of a rank ``up`` or ``down``, from outside the host."""
        lab = Lab(self.lab.state, self.lab.state).name
        subprocess.run(["ip", "-n", lab, "link", "set", f"spark{rank + 1}-r1v0", state], check=True, timeout=30)

    def ip(self, rank: int, words: str) -> None:
        """Run ip in the network namespace of a rank's pod."""
        pid = f"$(pgrep --oldest -f '[l]aunch_server.*--node-rank {rank} ')"
        self.lab.shell(f"spark{rank + 1}", f"nsenter --net --target {pid} ip {words}")

    def transport(self, rank: int) -> dict[str, str]:
        """Return the transport condition of a rank."""
        return self.condition(rank, TRANSPORT)

    def condition(self, rank: int, kind: str) -> dict[str, str]:
        """Return a condition of a rank's pod, empty without one."""
        found = [
            c
            for pod in self.pods()
            if pod["metadata"]["name"] == f"{GROUP}-{rank}-0"
            for c in pod["status"].get("conditions", [])
            if c["type"] == kind
        ]
        return {"status": "", "reason": "", "message": ""} | (found[0] if found else {})

    def restarts(self) -> dict[str, int]:
        """Return how often each container was started again."""
        return {
            f"{pod['metadata']['name']} {status['name']}": status["restartCount"]
            for pod in self.pods()
            for status in pod["status"]["containerStatuses"]
        }

    def metrics(self, rank: int) -> str:
        """Return the metrics of a rank's sidecar."""
        script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:30002/metrics').read().decode())"
        return self.kubectl("exec", f"{GROUP}-{rank}-0", "-c", "transport", "--", "python3", "-c", script)

    def check_announced(self, rank: int, reason: str) -> None:
        """Wait until the metrics of a rank name this reason of its condition, and check its events."""
        self.wait(lambda: f'reason="{reason}"' in self.metrics(rank), 60)
        events = self.kubectl("get", "events", "--field-selector=type=Warning,reason=Transport" + reason)
        assert f"pod/{GROUP}-{rank}-0" in events
        assert re.search(r"gb10_transport_proven{[^}]*} 0", self.metrics(rank))

    def judged(self) -> dict[str, Any]:
        """Return the newest verdict in the results directory."""
        found = max(self.lab.results.glob("transport-*/transport.json"), key=lambda path: path.stat().st_mtime)
        return dict(json.loads(found.read_text(encoding="utf-8")))

    def restart(self, ranks: tuple[int, ...], ready: bool, **env: str) -> None:
        """Change variables of ranks (``-`` removes one), replace the group and wait until it serves or has failed."""
        change = [f"{name}-" if value == "-" else f"{name}={value}" for name, value in env.items()]
        if change:
            self.kubectl("set", "env", *(f"statefulset/{GROUP}-{rank}" for rank in ranks), "-c", "sglang", *change)
        old = {pod["metadata"]["uid"] for pod in self.pods()}
        self.kubectl("delete", "pod", "-l", f"gb10.cluster/instance={GROUP},gb10.cluster/rank")
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE:
            pods = self.pods()
            new = len(pods) == 2 and not old & {pod["metadata"]["uid"] for pod in pods}
            if new and (all(map(serves, pods)) if ready else any(map(has_died, pods))):
                return
            time.sleep(2)
        raise AssertionError(self.kubectl("describe", "pods", "-l", "gb10.cluster/rank")[-6000:])


def serves(pod: dict[str, Any]) -> bool:
    """Return whether all containers of a pod are ready, whatever the transport gate says."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("ContainersReady") == "True"


def has_died(pod: dict[str, Any]) -> bool:
    return any(s["restartCount"] or "terminated" in s["state"] for s in pod["status"].get("containerStatuses", []))


def served(lab: LabCommand, nodes: int = 2) -> Cluster:
    """Deploy the nodes, and the group on all of them."""
    overrides = {"topology": {"nodes": nodes, "tp": nodes}}
    made = Cluster.deployed(lab, nodes=nodes, nccl_verify_timeout=20, serving_plan_overrides=overrides)
    made.play("serve")
    return made
