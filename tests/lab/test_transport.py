# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test role nccl_verify on live pods: its proof, every fault that the lab can inject, and the comparison with TCP.

One lab of two nodes, in the order of this file; every test removes its fault. Faults are injected by
changing the running group, because the serving plan refuses to deploy most of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gb10lab.lab import Lab
from labcommand import LabCommand, changed
from sitecommand import PATIENCE, Site

GROUP = "gemma-4-31b-it"
TWO = {"topology": {"nodes": 2, "tp": 2}}
# Ansible wraps messages, so they are compared without line breaks.
FATAL = re.compile(r"fatal: .*?(?=\nTASK|\nPLAY)", re.DOTALL)


class Cluster(Site):
    """A group of two ranks, whose environment and transport the tests can break."""

    def refused(self, playbook: str, **values: Any) -> str:
        """Run a playbook that must fail; return its fatal messages without line breaks."""
        return " ".join(" ".join(FATAL.findall(self.play(playbook, check=False, **values))).split())

    def stop(self) -> None:
        """Stop the group if it exists; the playbook refuses to stop a group that does not exist."""
        if self.get("serviceaccounts", f"--selector=gb10.cluster/instance={GROUP}")["items"]:
            self.play("serve_stop", instance=GROUP)

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
        found = [
            c
            for pod in self.pods()
            if pod["metadata"]["name"] == f"{GROUP}-{rank}-0"
            for c in pod["status"].get("conditions", [])
            if c["type"] == "gb10.cluster/transport"
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


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Cluster]:
    made = Cluster.deployed(make_lab(), nodes=2, nccl_verify_timeout=20, serving_plan_overrides=TWO)
    made.play("serve")
    yield made


def test_a_healthy_group_is_proved_by_log_counters_and_rank_labels(cluster: Cluster) -> None:
    output = cluster.play("verify")
    assert changed(output) == 0
    verdict = cluster.judged()
    assert (verdict["verdict"], verdict["evidence"], verdict["satisfied"]) == ("ib", "channels", True)
    assert [(rank["rank"], rank["pod"]) for rank in verdict["ranks"]] == [
        (0, f"{GROUP}-0-0"),
        (1, f"{GROUP}-1-0"),
    ]
    assert all(set(rank["channels"]["IB"]) == {"0", "1"} for rank in verdict["ranks"])
    for rank in (0, 1):
        assert "via NET/IB/1" in cluster.kubectl("logs", f"{GROUP}-{rank}-0", "-c", "transport")
        assert "NCCL INFO" not in cluster.kubectl("logs", f"{GROUP}-{rank}-0", "-c", "sglang")


# Sends requests to the API with the sidecar's token, and prints the codes of the answers.
ASK = """
import json, os, ssl, sys, urllib.error, urllib.request
account = "/var/run/secrets/gb10"
tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=account + "/ca.crt"))
base = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}".format(**os.environ)
codes = []
for method, path, body in json.load(sys.stdin):
    kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
    headers = {"Authorization": "Bearer " + open(account + "/token").read(), "Content-Type": kind}
    data = json.dumps(body).encode() if body is not None else None
    asked = urllib.request.Request(base + path, data, headers, method=method)
    try:
        codes.append(urllib.request.build_opener(tls).open(asked, timeout=10).status)
    except urllib.error.HTTPError as error:
        codes.append(error.code)
print(json.dumps(codes))
"""


def test_the_sidecar_may_patch_the_status_of_its_group_and_nothing_else(cluster: Cluster) -> None:
    space, dry = f"/api/v1/namespaces/{cluster.namespace}", "?dryRun=All"
    head, worker = f"{space}/pods/{GROUP}-0-0", f"{space}/pods/{GROUP}-1-0"
    # The API checks permissions before it looks for the pod.
    stranger = f"{space}/pods/another-pod"
    status = {"status": {"conditions": [{"type": "gb10.cluster/test", "status": "True"}]}}
    event = {
        "metadata": {"generateName": "test-"},
        "involvedObject": {"kind": "Pod", "namespace": cluster.namespace, "name": f"{GROUP}-1-0"},
    }
    label = {"metadata": {"labels": {"gb10.cluster/test": "1"}}}
    permitted: list[tuple[str, str, Any]] = [
        ("GET", head, None),
        ("GET", worker, None),
        ("PATCH", f"{head}/status{dry}", status),
        ("PATCH", f"{worker}/status{dry}", status),
        ("POST", f"{space}/events{dry}", event),
    ]
    refused: list[tuple[str, str, Any]] = [
        ("GET", f"{space}/pods", None),
        ("GET", stranger, None),
        ("GET", f"{head}/log", None),
        ("PATCH", f"{stranger}/status{dry}", status),
        ("PATCH", f"{head}{dry}", label),
        ("DELETE", f"{head}{dry}", None),
        ("POST", f"{head}/eviction{dry}", {"metadata": {"name": f"{GROUP}-0-0"}}),
        ("GET", f"{space}/events", None),
        ("POST", f"/api/v1/namespaces/default/events{dry}", event),
        ("GET", f"{space}/secrets", None),
        ("GET", f"{space}/configmaps/{GROUP}-programs", None),
        ("POST", f"{space}/serviceaccounts/{GROUP}/token{dry}", {}),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/namespaces/kube-system/pods", None),
        ("GET", f"/apis/apps/v1/namespaces/{cluster.namespace}/statefulsets/{GROUP}-0", None),
        ("GET", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}/roles/{GROUP}-transport", None),
    ]
    words = ("exec", "-i", f"{GROUP}-1-0", "-c", "transport", "--", "python3", "-c", ASK)
    codes = json.loads(cluster.kubectl(*words, stdin=json.dumps(permitted + refused)))
    assert {code // 100 for code in codes[: len(permitted)]} == {2}, list(zip(permitted, codes, strict=False))
    assert set(codes[len(permitted) :]) == {403}, list(zip(refused, codes[len(permitted) :], strict=True))


# Lines of a log that proves RDMA on both rails, and one line each that shows TCP and a failure. {0} is the rank.
IB_LINES = tuple(
    f"{GROUP}-{{0}}-0:7:7 [0] NCCL INFO {line}"
    for line in (
        "NCCL version 2.28.9+cuda13.0",
        "Using network IB",
        "ncclCommInitRank comm 0x1 rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init START",
        "comm 0x1 rank {0} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        "ncclCommInitRank comm 0x1 rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init COMPLETE",
        "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
        "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1",
        "Connected all rings, use ring PXN 0 GDR 0",
    )
)
BAD_LINES = (
    f"{GROUP}-{{0}}-0:8:8 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
    f"[2026-11-22 01:02:03] {GROUP}-{{0}}-0:8:8 [0] plugin/net.cc:379 NCCL WARN Failed to initialize any NET plugin",
)


def say_in_every_pod(cluster: Cluster, lines: tuple[str, ...]) -> None:
    """Make every server print lines to its log, as if a prompt had quoted them: plainly, and as one JSON line."""
    for rank, pod in enumerate(cluster.pods()):
        name = pod["metadata"]["name"]
        said = "".join(f"{line.format(rank)}\n" for line in lines)
        said += json.dumps({"prompt": said, "rank": rank}) + "\n"
        cluster.kubectl("exec", "-i", name, "-c", "sglang", "--", "sh", "-c", "cat > /proc/1/fd/1", stdin=said)
        # The runtime copies the line into the log, which may take a moment.
        last = said.splitlines()[-1]
        cluster.wait(lambda name=name, last=last: last in cluster.kubectl("logs", name, "-c", "sglang"), 20)


def test_lines_of_nccl_that_a_server_prints_do_not_fail_a_healthy_group(cluster: Cluster) -> None:
    say_in_every_pod(cluster, BAD_LINES)
    cluster.play("verify")
    assert cluster.judged()["verdict"] == "ib"
    # The sidecars have looked several times since then.
    assert [cluster.transport(rank)["reason"] for rank in (0, 1)] == ["Proven", "Proven"]
    assert cluster.in_service()


def test_a_log_that_the_counters_contradict_fails_with_both_shown(cluster: Cluster) -> None:
    # The simulated RDMA counters then stay at 0, as if the bytes had gone over TCP although the log says IB.
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="/nowhere")
    message = cluster.refused("verify", nccl_verify_tokens=256)
    assert "the log says RDMA, but the RDMA devices moved 0 bytes" in message
    assert cluster.judged()["verdict"] == "ib"

    def stand_still() -> bool:
        cluster.in_head("python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--measure", "64")
        return cluster.transport(0)["reason"] == "CountersSilent"

    print(f"\nsilent counters found after {cluster.wait(stand_still, 120):.0f} s")
    cluster.check_announced(0, "CountersSilent")
    cluster.wait(lambda: not cluster.in_service(), 30)
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="-")
    cluster.wait(cluster.in_service)


# Sends bytes to the other rank over the first rail's interface until it is killed; the other rank reads them.
STREAM = {
    0: "import socket as s\nc = s.create_connection(('10.100.0.2', 29999))\nwhile True: c.sendall(bytes(1 << 20))",
    1: "import socket as s\nc = s.create_server(('', 29999)).accept()[0]\nwhile c.recv(1 << 20): pass",
}


def test_bytes_over_tcp_beside_a_log_of_rdma_fail_the_run_and_say_which_to_doubt(cluster: Cluster) -> None:
    """The RDMA counters move a little, so they alone contradict nothing; the ledger misses the model's bytes there."""
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="/nowhere")
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(1):
            for node in ("spark1", "spark2"):
                cluster.lab.shell(node, "echo 2000000 2000000 >> /run/gb10-lab/rdma-traffic/rocep1s0f0v0")

    def stream(rank: int) -> None:
        words = ("exec", f"{GROUP}-{rank}-0", "-c", "sglang", "--", "timeout", "-s", "KILL", "100", "python3", "-c")
        # Ends with the signal, and the client before the server listens.
        while not over.is_set():
            cluster.ask(*words, STREAM[rank])

    threads = [threading.Thread(target=stream, args=(rank,)) for rank in (1, 0)] + [threading.Thread(target=trickle)]
    for thread in threads:
        thread.start()
    try:
        message = cluster.refused("verify", nccl_verify_tokens=64)
    finally:
        over.set()
        # Only this test runs a program that names the port.
        for node in ("spark1", "spark2"):
            cluster.lab.shell(node, "pkill -KILL -f '[2]9999' || true")
        for thread in threads:
            thread.join(120)
    assert cluster.judged()["verdict"] == "ib"
    assert "the log says rdma, the bytes of gemma-4-31b-it-0-0 say tcp: " in message
    assert "Doubt the log: a library without a log line, or a second communicator, used another path" in message
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="-")
    cluster.wait(cluster.in_service)


def test_a_gate_that_warns_names_the_cause_and_leaves_the_head_in_the_service(cluster: Cluster) -> None:
    cluster.play("serve", sglang_transport_gate="warn")
    cluster.wait(cluster.in_service)
    assert all("readinessGates" not in pod["spec"] for pod in cluster.pods())
    cluster.ip(1, "link set net1 mtu 1500")
    cluster.wait(lambda: cluster.transport(1)["reason"] == "MtuFell", 30)
    cluster.wait(lambda: cluster.transport(0)["status"] == "False", 30)
    assert "net1 has MTU 1500, planned 9000" in cluster.transport(0)["message"]
    cluster.check_announced(1, "MtuFell")
    # Longer than a gate that enforces takes to remove the head.
    time.sleep(20)
    assert cluster.in_service()
    cluster.incarnations()
    cluster.ip(1, "link set net1 mtu 9000")
    cluster.wait(lambda: cluster.transport(0)["status"] == "True")
    cluster.play("serve")
    cluster.wait(cluster.in_service)


def test_an_mtu_that_fell_in_all_pods_is_found_by_pings_from_inside_the_pods(cluster: Cluster) -> None:
    def set_mtu(mtu: int) -> None:
        for rank in (0, 1):
            cluster.ip(rank, f"link set net1 mtu {mtu}")

    set_mtu(1500)
    message = cluster.refused("verify")
    cluster.wait(lambda: cluster.transport(1)["reason"] == "MtuFell", 30)
    assert "net1 has MTU 1500, planned 9000" in cluster.transport(0)["message"]
    cluster.check_announced(1, "MtuFell")
    assert not cluster.in_service()
    set_mtu(9000)
    cluster.wait(cluster.in_service)
    assert "spark2 rail0 VF 0" in message
    assert "net1 has MTU 1500, planned 9000" in message
    assert cluster.judged()["satisfied"] is True
    assert "4 directions on all rails and VFs pass" in " ".join(cluster.play("verify").split())


def test_a_rank_that_restarts_without_rdma_removes_the_head_from_the_service_until_it_is_healthy(
    cluster: Cluster,
) -> None:
    cluster.wait(cluster.in_service)
    replace_worker(cluster, privileged=False)
    print(f"\nout of the Service after {cluster.wait(lambda: not cluster.in_service(), 30):.0f} s")
    # NCCL fails on both ranks, so both servers start again and again.
    cluster.wait(lambda: cluster.transport(1)["reason"] == "WrongTransport")
    for rank in (1, 0):
        took = cluster.wait(lambda rank=rank: "gb10_rdma_mode=privileged" in cluster.transport(rank)["message"], 30)
        print(f"rank {rank} names the remedy {took:.0f} s later")
        assert cluster.transport(rank)["status"] == "False"
    cluster.check_announced(1, "WrongTransport")
    begun = cluster.restarts()[f"{GROUP}-1-0 sglang"]

    def starts_again() -> bool:
        assert 'cause="no_rdma_device"} 1' in cluster.metrics(1)
        return cluster.restarts()[f"{GROUP}-1-0 sglang"] > begun

    print(f"rank 1 starts again after {cluster.wait(starts_again):.0f} s and still names the cause")
    assert 'cause="no_rdma_device"} 1' in cluster.metrics(1)
    assert re.search(r"gb10_transport_proven{[^}]*} 0", cluster.metrics(0))
    assert not cluster.in_service()
    replace_worker(cluster, privileged=True)
    # After some failures, the kubelet waits up to 5 minutes before it starts the head's server again.
    print(f"back in the Service after {cluster.wait(cluster.in_service, 2 * PATIENCE):.0f} s")
    assert re.search(r'gb10_transport_rdma_bytes_total{[^}]*device="rocep1s0f0v0"[^}]*} [1-9]', cluster.metrics(1))
    # New pods start without that wait, which would delay the next tests.
    cluster.restart((0, 1), ready=True)
    cluster.wait(cluster.in_service)


def replace_worker(cluster: Cluster, privileged: bool) -> None:
    """Replace the pod of rank 1 immediately by one with or without access to RDMA devices."""
    path = "/spec/template/spec/containers/0/securityContext/privileged"
    change = json.dumps([{"op": "replace", "path": path, "value": privileged}])
    cluster.kubectl("patch", f"statefulset/{GROUP}-1", "--type=json", "-p", change)
    cluster.kubectl("delete", "pod", f"{GROUP}-1-0", "--grace-period=0", "--force")


def test_a_lost_gid_removes_the_head_from_the_service_until_it_is_back(cluster: Cluster) -> None:
    cluster.ip(1, "address del 10.101.0.2/24 dev net2")
    cluster.wait(lambda: cluster.transport(1)["reason"] == "GidMissing", 30)
    cluster.wait(lambda: not cluster.in_service(), 30)
    assert "no RoCE v2 GID for 10.101.0.2" in cluster.transport(0)["message"]
    cluster.check_announced(1, "GidMissing")
    cluster.ip(1, "address add 10.101.0.2/24 dev net2")
    cluster.wait(cluster.in_service)


def test_a_pulled_cable_removes_the_head_from_the_service_until_it_is_back(cluster: Cluster) -> None:
    cluster.wait(cluster.in_service)
    cluster.cable(1, "down")
    try:
        took = cluster.wait(lambda: cluster.transport(1)["reason"] == "LinkDown", 30)
        print(f"\npulled cable found after {took:.0f} s")
        cluster.wait(lambda: not cluster.in_service(), 30)
        assert "net2 has no carrier" in cluster.transport(0)["message"]
        assert "cable" in cluster.transport(0)["message"]
        cluster.check_announced(1, "LinkDown")
        assert re.search(r'gb10_transport_link_speed_bits_per_second{[^}]*interface="net2"} 0\n', cluster.metrics(1))
    finally:
        cluster.cable(1, "up")
    print(f"back in the Service after {cluster.wait(cluster.in_service):.0f} s")
    assert cluster.transport(1)["reason"] == "Proven"


def test_a_sidecar_that_hangs_removes_the_head_from_the_service_until_it_is_started_again(cluster: Cluster) -> None:
    cluster.wait(cluster.in_service)
    before = cluster.restarts()
    for rank in (1, 0):
        # The bracket keeps pkill from finding its own command line.
        stop = f"pkill -STOP -f '[_]transport_gate.sidecar.*\"rank\": {rank},'"
        cluster.lab.shell(f"spark{rank + 1}", stop)
        took = cluster.wait(lambda: not cluster.in_service(), 45)
        print(f"\nout of the Service {took:.0f} s after the sidecar of rank {rank} hung")
        if rank:
            assert "container transport does not run or does not answer" in cluster.transport(0)["message"]
        print(f"back in the Service after {cluster.wait(cluster.in_service):.0f} s")
    assert cluster.restarts() == {name: count + name.endswith("transport") for name, count in before.items()}


# Writes lines to a file of its own, as NCCL does in another process of the server.
SECOND_PROCESS = """
cd /var/log/nccl/*; while read -r line; do echo "$HOSTNAME:99:99 [0] NCCL INFO $line"; done > $HOSTNAME.99
"""


def test_a_new_communicator_on_tcp_removes_the_head_from_the_service_until_a_restart(cluster: Cluster) -> None:
    said = "".join(
        f"{line}\n"
        for line in (
            "Using network Socket",
            "ncclCommInitRank comm 0x9 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init START",
            "comm 0x9 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            "ncclCommInitRank comm 0x9 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x9 - Init COMPLETE",
            "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0",
        )
    )
    cluster.kubectl("exec", "-i", f"{GROUP}-1-0", "-c", "sglang", "--", "sh", "-c", SECOND_PROCESS, stdin=said)
    took = cluster.wait(lambda: cluster.transport(1)["reason"] == "WrongTransport", 30)
    print(f"\nTCP found after {took:.0f} s")
    cluster.wait(lambda: not cluster.in_service(), 30)
    assert "different transports (IB, Socket)" in cluster.transport(0)["message"]
    assert "playbook verify" in cluster.transport(0)["message"]
    cluster.check_announced(1, "WrongTransport")
    cluster.kubectl("delete", "pod", f"{GROUP}-1-0")
    cluster.wait(cluster.in_service)


@dataclass(frozen=True)
class Fault:
    """Variables that are set on some ranks by hand, and the expected verdict, cause and remedy."""

    env: dict[str, str]
    ranks: tuple[int, ...]
    starts: bool
    verdict: str
    cause: str
    line: str
    remedy: str


FAULTS = {
    "IB disabled": Fault(
        {"NCCL_IB_DISABLE": "1"},
        (0, 1),
        True,
        "socket",
        "ib_disabled",
        "NCCL_IB_DISABLE set by environment to 1",
        "look in /etc/nccl.conf and the image too",
    ),
    "wrong HCA": Fault(
        {"NCCL_IB_HCA": "enp1s0f0v0"},
        (0, 1),
        True,
        "socket",
        "hca_selection",
        "NCCL_IB_HCA set to enp1s0f0v0",
        "Use RDMA device names (rdma link)",
    ),
    "wrong interface": Fault(
        {"NCCL_SOCKET_IFNAME": "=net7"},
        (0, 1),
        False,
        "error",
        "no_socket_interface",
        "Bootstrap : no socket interface found",
        "that the NetworkAttachmentDefinition is in the pod",
    ),
    # NCCL does not compare the networks. The ranks print their channels, and then fail to connect.
    "one rank different": Fault(
        {"NCCL_IB_DISABLE": "1"},
        (1,),
        False,
        "mixed",
        "ib_disabled",
        "NCCL_IB_DISABLE set by environment to 1",
        "look in /etc/nccl.conf and the image too",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_the_environment(cluster: Cluster, fault: Fault) -> None:
    planned = {
        variable["name"]: variable.get("value", "-")
        for variable in cluster.pods()[0]["spec"]["containers"][0]["env"]
        if variable["name"] in fault.env
    }
    cluster.restart(fault.ranks, ready=fault.starts, **fault.env)
    if fault.starts:
        say_in_every_pod(cluster, IB_LINES)
    # Judging the environment would stop the role before it reads the log. Test both, one after the other.
    message = cluster.refused("verify", nccl_verify_environment=False)
    verdict = cluster.judged()
    assert (verdict["verdict"], verdict["satisfied"]) == (fault.verdict, False), message
    first = verdict["causes"][0]
    assert first["id"] == fault.cause, verdict["causes"]
    assert fault.line in first["line"]
    assert first["rank"] in (*fault.ranks, None)
    assert fault.remedy in message
    if fault.starts:
        named = cluster.refused("verify")
        assert next(iter(fault.env)) in named
        # The quoted lines prove nothing to the sidecars either.
        assert {cluster.transport(rank)["status"] for rank in (0, 1)} == {"False"}
        assert cluster.transport(fault.ranks[-1])["reason"] == "WrongTransport"
    else:
        # The server starts again and again, and each start is unproven at first.
        lost = "Failed" if fault.verdict == "error" else "WrongTransport"
        cluster.wait(lambda: cluster.transport(fault.ranks[-1])["reason"] == lost)
    assert not cluster.in_service()
    cluster.restart(fault.ranks, ready=True, **(dict.fromkeys(fault.env, "-") | planned))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("unprivileged", ["NCCL transport socket", "/dev/infiniband", "gb10_rdma_mode=privileged", "rank 0"]),
        ("no-vf-address", ["Network is unreachable", "IPv4"]),
        ("missing-nad", ["gb10-rail1-vf0", "rank 0", "playbooks/kubernetes.yml"]),
    ],
)
def test_a_fault_of_the_deployment(cluster: Cluster, fault: str, words: list[str]) -> None:
    cluster.stop()
    try:
        message = cluster.refused("lab/serve_with_fault.yml", lab_fault=fault)
    finally:
        cluster.stop()
        cluster.play("kubernetes")
    assert [word for word in words if word not in message] == [], message


def test_both_transports_are_proved_measured_and_compared(cluster: Cluster) -> None:
    output = cluster.play("compare_transports")
    ratio = re.search(r"RDMA is ([\d.]+) times as fast as TCP", output)
    # The simulated SGLang is half as fast over TCP as over RDMA, as published for four GB10.
    assert ratio
    assert 1.2 < float(ratio[1]) < 3.5
    kept = {path.parent.name: json.loads(path.read_text()) for path in cluster.lab.results.glob("*/transport.json")}
    assert kept[f"transport-{GROUP}-socket"]["verdict"] == "socket"
    assert kept[f"transport-{GROUP}-roce"]["verdict"] == "ib"
    assert ratio[0] in (cluster.lab.results / f"transport-{GROUP}.txt").read_text()


def test_a_bandwidth_that_cannot_be_measured_fails_the_run(cluster: Cluster) -> None:
    # The image of the simulated SGLang has no PyTorch.
    assert "no PyTorch" in cluster.refused("verify", nccl_verify_bandwidth_bytes=1000000)


def test_latency_is_measured_and_the_share_of_the_fabric_stated(cluster: Cluster) -> None:
    simulated = (Path(__file__).resolve().parents[2] / "lab/sglang/torch_simulated.py").read_text()
    place = 'd=$(python3 -m site --user-site) && mkdir -p "$d" && cat > "$d/torch.py"'
    for rank in (0, 1):
        words = ("exec", "-i", f"{GROUP}-{rank}-0", "-c", "sglang", "--", "sh", "-c", place)
        cluster.kubectl(*words, stdin=simulated)
    said = " ".join(cluster.play("latency", nccl_verify_bandwidth_bytes=1000000).split())
    share = (
        r"the fabric takes [\d.]+ of [\d.]+ ms between tokens \(\d+%\), an all-reduce of 8192 bytes [\d.]+ microseconds"
    )
    assert re.search(share + r" \(p99 [\d.]+\)", said), said[-3000:]
    (kept,) = cluster.lab.results.glob(f"transport-{GROUP}-roce/proof.json")
    measured = json.loads(kept.read_text())["bandwidth"]
    assert [each["bytes"] for each in measured["latency"]] == [4096 << power for power in range(9)]
    assert all(0 < each["p50"] <= each["p99"] for each in measured["latency"])
    assert measured["decode"]["fabric_ms"] > 0
    limit = {"rdma": 0.1, "tcp": 0}
    message = cluster.refused("verify", nccl_verify_bandwidth_bytes=1000000, nccl_verify_max_latency=limit)
    assert "an all-reduce of 8192 bytes over ib takes" in message
