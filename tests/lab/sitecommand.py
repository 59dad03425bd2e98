# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the collection's playbooks on a lab, as a user does."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from labcommand import CHECKOUT, LABCTL, LabCommand

CACHE = Path(os.environ.get("GB10_CACHE") or Path.home() / ".cache" / "gb10-lab")
PATIENCE = 300
VERSIONS = json.loads((CHECKOUT / "lab" / "kubernetes" / "versions.json").read_text())
# Options of playbook kubernetes that leave out the device plugins and Multus, which need VFs.
ONLY_K3S = ("--tags", "k3s")


def ring_profile(name: str, nodes: int) -> dict[str, Any]:
    """Return the profile of a small model on all hosts of a ring."""
    return {
        "name": name,
        "description": f"A small model on {nodes} hosts",
        "model": {"repo": "organisation/Model", "arch": "LlamaForCausalLM", "weights_gb": 10},
        # the first release whose NCCL chooses the device by the subnet
        "sglang_version": "0.5.22",
        "images": [{"sglang": "0.5.22", "image": "localhost/gb10/sglang-standin:0.5.22"}],
        "topology": {"nodes": nodes, "tp": nodes},
        "server_args": {"mem_fraction_static": 0.5, "context_length": 8192},
        "status": "untested",
        "default_preset": "default",
        "presets": {"default": {"description": "All hosts"}},
    }


@dataclass
class Site:
    """A lab with Kubernetes: ``more`` is an additional inventory, ``values`` are variables for every playbook."""

    lab: LabCommand
    group: str = "gemma-4-31b-it"
    namespace: str = "gb10-serving"
    more: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)

    @classmethod
    def deployed(cls, lab: LabCommand, nodes: int = 4, **values: Any) -> Self:
        """Bring up hosts, fabric and Kubernetes."""
        made = cls(lab, values=values)
        lab.up(nodes, kubernetes=True)
        made.play("fabric")
        made.play("kubernetes")
        return made

    def _beside(self) -> list[str | Path]:
        return ["-i", self.more] if self.more else []

    def play(self, playbook: str, *words: str | Path, check: bool = True, **values: Any) -> str:
        """Run a playbook with variables and return its output."""
        return self.lab.play(playbook, *self._beside(), *words, check=check, **{**self.values, **values})

    def killed(self, playbook: str, point: str, **values: Any) -> str:
        """Run a playbook, kill its control process as soon as its output matches, and return that output."""
        return self.lab.killed(playbook, point, *self._beside(), **{**self.values, **values})

    def import_image(self, archive: Path, nodes: Iterable[str]) -> None:
        """Import the images of a Docker archive on nodes."""
        for node in nodes:
            with archive.open("rb") as stream:
                importing = [LABCTL, "exec", node, "--", "k3s", "ctr", "images", "import", "-"]
                subprocess.run(importing, stdin=stream, check=True, env=self.lab.environment, timeout=900)

    def ask(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as on a user's laptop, in this site's namespace unless ``words`` name another one."""
        path = max(CACHE.glob("kubernetes-*/bin/kubectl"))
        where = ["--kubeconfig", self.lab.state / "kubeconfig", "--context", "gb10"]
        space = [f"--namespace={self.namespace}"] if self.namespace else []
        return self.lab.run(path, *where, *space, *words, stdin=stdin)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl, which must succeed, and return its output."""
        done = self.ask(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        """Return objects as the API server has them."""
        return dict(json.loads(self.kubectl("get", *words, "-o", "json")))

    def versions(self) -> dict[str, str]:
        """Return the version of the kubelet of every node."""
        return {n["metadata"]["name"]: n["status"]["nodeInfo"]["kubeletVersion"] for n in self.get("nodes")["items"]}

    def pods(self, group: str = "") -> list[dict[str, Any]]:
        """Return the pods of a group, rank 0 first."""
        found = self.get("pods", f"--selector=gb10.cluster/instance={group or self.group},gb10.cluster/rank")["items"]
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["gb10.cluster/rank"]))

    def incarnations(self) -> set[str]:
        """Return ids that change with every start of a rank's process; fail unless all ranks are ready."""
        pods = self.pods()
        assert pods
        assert all(map(is_ready, pods)), self.kubectl("get", "pods", "-o", "wide")
        return incarnations(pods)

    def in_head(self, *words: str, group: str = "") -> str:
        """Run a program in the head's container."""
        return self.kubectl("exec", f"{group or self.group}-0-0", "-c", "sglang", "--", *words)

    def signal(self, node: str, rank: int, name: str) -> None:
        """Send a signal to a rank's process, on its host."""
        # The bracket keeps pkill from finding its own command line.
        self.lab("exec", node, "--", "pkill", f"-{name}", "-f", f"[l]aunch_server.*--node-rank {rank} ")

    def wait_ready(self, before: Iterable[str], ranks: int, patience: float = PATIENCE) -> float:
        """Wait until all ranks are ready and none of the processes in ``before`` is left; return the seconds."""
        old, started = set(before), time.monotonic()
        while time.monotonic() - started < patience:
            pods = self.pods()
            if len(pods) == ranks and all(map(is_ready, pods)) and not old & incarnations(pods):
                return time.monotonic() - started
            time.sleep(2)
        raise AssertionError(f"not ready after {patience} s:\n{self.kubectl('get', 'pods', '-o', 'wide')}")

    def left(self, host: str, may_differ: str) -> list[str]:
        """Return the lines of a host's fingerprint that differ from ``before``."""
        patience = time.monotonic() + 10
        while True:
            now = set(self.lab.fingerprint(host).splitlines())
            then = set(self.before[host].splitlines())
            found = sorted([f"+ {line}" for line in now - then] + [f"- {line}" for line in then - now])
            found = [line for line in found if not re.search(may_differ, line[2:])]
            if not found or time.monotonic() > patience:
                return found
            time.sleep(1)


def prepare(*releases: str) -> None:
    """Build the air-gap directories of releases of K3s that the cache lacks."""
    done = subprocess.run([CHECKOUT / "lab" / "kubernetes" / "prepare", *releases], check=False)
    assert done.returncode == 0, "lab/kubernetes/prepare failed, see above"


def release(version: str) -> dict[str, str]:
    """Return the variables that install this release of K3s from its air-gap directory."""
    return {"k3s_version": version, "k3s_airgap_dir": str(CACHE / f"k3s-airgap-{version}")}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready and not being deleted."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def incarnations(pods: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return ids that change with every start of a rank's process."""
    return {
        f"{pod['metadata']['uid']}/{status['restartCount']}"
        for pod in pods
        for status in pod["status"].get("containerStatuses", [])
        if status["name"] == "sglang"
    }


def time_to_ready(pods: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds from the first rank's creation to the last rank's readiness, by the API's timestamps."""
    known = list(pods)
    created = min(pod["metadata"]["creationTimestamp"] for pod in known)
    ready = max(c["lastTransitionTime"] for pod in known for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return (datetime.fromisoformat(ready) - datetime.fromisoformat(created)).total_seconds()


def revisions(pods: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the revisions of pods; pods of one deployment have the same revision."""
    return {pod["metadata"]["annotations"]["gb10.cluster/revision"] for pod in pods}
