#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what the playbooks do with the Kubernetes API, on clusters whose nodes and pods kwok simulates.

The API server, the controllers, the scheduler and etcd are real (lab/kubernetes/build); no host is contacted. Each
size gets the device plugins, Multus and the networks, and then groups of at most 16 ranks. kwok 0.8.0:
GOBIN=$PWD/bin go install sigs.k8s.io/kwok/cmd/kwok@v0.8.0. The output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from growth import GROUP, ROOT, make_inventory, make_profile, timed, write

PORT = 16443
API = f"https://127.0.0.1:{PORT}"
READY = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")]
# What a kubelet reports of a pod that runs, and what it does with a deleted one
RUNS = (
    "phase: Running\npodIP: 10.0.0.1\n"
    + yaml.safe_dump({"conditions": READY})
    + "containerStatuses:\n{{ range .spec.containers }}\n- name: {{ .name | Quote }}\n  image: {{ .image | Quote }}\n"
    f"  imageID: simulated@sha256:{'0' * 64}\n  ready: true\n  restartCount: 0\n"
    "  state: {running: {startedAt: {{ Now | Quote }}}}\n{{ end }}\n"
)
DELETED = ".metadata.deletionTimestamp"


def stage(name: str, kind: str, when: list[dict[str, Any]], then: dict[str, Any]) -> dict[str, Any]:
    """Return a rule of kwok for nodes or pods."""
    about = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": when}, "next": then}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": about}


NODE_READY = '.status.conditions.[] | select(.type == "Ready") | .status'
STAGES = [
    stage(
        "ready",
        "Node",
        [{"key": NODE_READY, "operator": "NotIn", "values": ["True"]}],
        {"statusTemplate": "conditions:\n- {type: Ready, status: 'True', reason: KubeletReady}\n"},
    ),
    stage(
        "run",
        "Pod",
        [
            {"key": ".status.phase", "operator": "In", "values": ["Pending"]},
            {"key": DELETED, "operator": "DoesNotExist"},
        ],
        {"statusTemplate": RUNS},
    ),
    stage("end", "Pod", [{"key": DELETED, "operator": "Exists"}], {"finalizers": {"empty": True}, "delete": True}),
]
CONTROLLER = {"hosts": "gb10_nodes", "gather_facts": False, "any_errors_fatal": True}
KUBERNETES = {
    **CONTROLLER,
    "tasks": [
        {"import_role": {"name": "gb10.cluster.device_plugins", "rolespec_validate": False}},
        {"import_role": {"name": "gb10.cluster.multus", "tasks_from": "networks", "rolespec_validate": False}},
    ],
}
PLAN, SERVE = ({"import_playbook": str(ROOT / "playbooks" / f"{name}.yml")} for name in ("plan", "serve"))
# Playbook serve reads the hosts for its plan, unless an earlier playbook of the run has.
PLANNED = {
    **CONTROLLER,
    "tasks": [{"ansible.builtin.debug": {"msg": ""}, "run_once": True, "register": "fabric_plan_result"}],
}
# The last task: it waits until all ranks are ready, and then no simulated rank can be asked.
ASKS = "gb10.cluster.sglang : Wait | Wait until all ranks are ready, and read the head's settings"


class Cluster:
    """A control plane without kubelets in a directory."""

    def __init__(self, directory: Path, programs: Path, kwok: Path) -> None:
        self._directory, self._programs, self._kwok = directory, programs, kwok
        self._token = secrets.token_hex(16)
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = directory / "kubeconfig"

    def start(self) -> None:
        """Start the parts one after another."""
        there = self._directory
        access = {
            "clusters": [{"name": "c", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": self._token}}],
            "contexts": [{"name": "gb10", "context": {"cluster": "c", "user": "u"}}],
        }
        write(self.kubeconfig, {"apiVersion": "v1", "kind": "Config", "current-context": "gb10", **access})
        (there / "tokens").write_text(f"{self._token},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", there / "key", "2048"], check=True, capture_output=True)
        etcd, etcd_peer = "http://127.0.0.1:12379", "http://127.0.0.1:12380"
        self._run("etcd", f"--data-dir={there}/etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
                  f"--listen-peer-urls={etcd_peer}", f"--initial-advertise-peer-urls={etcd_peer}",
                  f"--initial-cluster=default={etcd_peer}", "--unsafe-no-fsync", "--log-level=error")  # fmt: skip
        self._run("kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={PORT}", "--bind-address=127.0.0.1",
                  f"--cert-dir={there}/pki", f"--token-auth-file={there}/tokens", "--authorization-mode=Node,RBAC",
                  "--allow-privileged=true", "--service-cluster-ip-range=10.43.0.0/16",
                  "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={there}/key",
                  f"--service-account-signing-key-file={there}/key")  # fmt: skip
        self._wait("/readyz")
        access_flags = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        self._run("kube-controller-manager", *access_flags, f"--service-account-private-key-file={there}/key",
                  "--use-service-account-credentials=false", f"--cert-dir={there}/kcm")  # fmt: skip
        self._run("kube-scheduler", *access_flags, f"--cert-dir={there}/scheduler")
        (there / "stages.yml").write_text(yaml.safe_dump_all(STAGES), encoding="utf-8")
        self._run(str(self._kwok), f"--kubeconfig={self.kubeconfig}", f"--config={there}/stages.yml",
                  "--manage-all-nodes", "--node-lease-duration-seconds=40")  # fmt: skip
        self._wait("/api/v1/namespaces/default/serviceaccounts/default")

    def stop(self) -> None:
        """End all parts."""
        for child in reversed(self.children.values()):
            child.send_signal(signal.SIGKILL)
            child.wait()

    def _run(self, program: str, *flags: str) -> None:
        name = Path(program).name
        with (self._directory / f"{name}.log").open("wb") as log:
            argv = [program if "/" in program else str(self._programs / program), *flags]
            self.children[name] = subprocess.Popen(argv, stdout=log, stderr=log)

    def _wait(self, path: str) -> None:
        for _ in range(120):
            for name, child in self.children.items():
                if child.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self._directory / f'{name}.log').read_text()[-2000:]}")
            try:
                self.call("GET", path)
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
            else:
                return
        raise RuntimeError(f"no answer to {path} within a minute")

    def call(self, verb: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request to the API, and return its answer."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{API}{path}", data, headers, method=verb)
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(request, context=trust, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text

    def add_nodes(self, count: int) -> None:
        """Create nodes with what a Spark has; kwok renews their leases."""
        room = {"cpu": "20", "memory": "119Gi", "pods": "110", "ephemeral-storage": "3Ti", "nvidia.com/gpu": "1"}
        for number in range(1, count + 1):
            name = f"spark{number}"
            labels = {f"kubernetes.io/{key}": value for key, value in (("hostname", name), ("arch", "arm64"))}
            node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}}
            self.call("POST", "/api/v1/nodes", node)
            info = {"architecture": "arm64", "operatingSystem": "linux", "kubeletVersion": "v1.36.4"}
            status = {"capacity": room, "allocatable": room, "nodeInfo": info,
                      "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}  # fmt: skip
            self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, "application/merge-patch+json")

    def objects(self) -> dict[str, int]:
        """Return how many objects of the collection the cluster has, by kind."""
        kinds = {
            "NetworkAttachmentDefinition": "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions",
            "StatefulSet": "/apis/apps/v1/statefulsets",
            "ConfigMap": "/api/v1/configmaps?labelSelector=gb10.cluster/instance",
            "pods of DaemonSets": "/api/v1/namespaces/kube-system/pods",
            "ranks": "/api/v1/pods?labelSelector=gb10.cluster/rank",
        }
        return {kind: len(self.call("GET", path)["items"]) for kind, path in kinds.items()}

    def used(self) -> dict[str, dict[str, float]]:
        """Return CPU seconds and MiB of every part."""
        used = {}
        for name, child in self.children.items():
            words = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            cpu = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            used[name] = {"cpu_seconds": round(cpu, 1), "mib": int(words[21]) * os.sysconf("SC_PAGE_SIZE") >> 20}
        return used


def measure(directory: Path, nodes: int, most: int, programs: Path, kwok: Path) -> dict[str, Any]:
    """Return the figures of one size with up to ``most`` groups, each on nodes of its own."""
    group = min(nodes, GROUP)
    groups = min(most, nodes // group)
    inventory = make_inventory(directory / "inventory", nodes)
    with running(directory, programs, kwok) as cluster:
        cluster.add_nodes(nodes)
        nothing_on_hosts = dict.fromkeys(("gb10_models_dir", "sglang_cache_dir", "sglang_log_dir"), "")
        variables = {
            "gb10_kubeconfig": str(cluster.kubeconfig),
            "gb10_profile_dirs": [str(make_profile(directory / "profiles", group))],
            "profile": "wide",
            "preset": "current",
            "multus_image_verified": True,
            **nothing_on_hosts,
        }
        kubernetes = write(directory / "kubernetes.yml", [PLAN, KUBERNETES])
        serve = write(directory / "serve.yml", [PLAN, PLANNED, SERVE])
        figures: dict[str, Any] = {}

        def play(name: str, playbook: Path, fails_in: str = "", **more: Any) -> None:
            print(f"{nodes} nodes: {name}", file=sys.stderr)
            figures[name], output = timed(inventory, playbook, variables | more, fails_in)
            print(figures[name], file=sys.stderr)
            figures[name]["changed"] = "changed=0" not in output.rpartition("spark1 ")[2].partition("\n")[0]

        play("kubernetes", kubernetes)
        play("kubernetes, again", kubernetes)
        play("group", serve, ASKS, instance="wide0")
        play("group, again", serve, ASKS, instance="wide0")
        play("group, changed", serve, ASKS, instance="wide0", sglang_grace_period=61)
        for number in range(1, groups):
            own = [f"spark{number * group + place}" for place in range(1, group + 1)]
            play("last group", serve, ASKS, instance=f"wide{number}", serving_plan_nodes=own)
        figures["objects"] = cluster.objects()
        figures["control plane"] = cluster.used()
    return figures


@contextmanager
def running(directory: Path, programs: Path, kwok: Path) -> Iterator[Cluster]:
    """Start a cluster, and stop it."""
    cluster = Cluster(directory, programs, kwok)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def main() -> int:
    """Measure every size, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16, 64, 254])
    parser.add_argument("--groups", type=int, default=1, help="most groups that are started, each on its own nodes")
    parser.add_argument("--kwok", type=Path, required=True, help="the program kwok")
    parser.add_argument("--programs", type=Path, required=True, help="directory bin of lab/kubernetes/build")
    options = parser.parse_args()
    results = {}
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory() as directory:
            results[nodes] = measure(Path(directory), nodes, options.groups, options.programs, options.kwok.absolute())
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
