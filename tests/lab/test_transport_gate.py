# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the readiness gate on live pods: what takes the head out of the Service, and what brings it back.

One lab of two nodes, in the order of this file; every test removes its fault.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import ANSWERS
from labcommand import LabCommand
from sitecommand import PATIENCE, incarnations
from transportgroup import GROUP, Cluster, served

COVERS = ("plugins/module_utils/_pod",)


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Cluster:
    return served(make_lab())


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
        ("PATCH", f"{worker}/status{dry}", status),
        ("POST", f"{space}/events{dry}", event),
    ]
    refused: list[tuple[str, str, Any]] = [
        ("GET", f"{space}/pods", None),
        ("GET", stranger, None),
        ("GET", f"{head}/log", None),
        ("PATCH", f"{head}/status{dry}", status),
        ("PATCH", f"{stranger}/status{dry}", status),
        ("PATCH", f"{head}{dry}", label),
        ("DELETE", f"{head}{dry}", None),
        ("POST", f"{head}/eviction{dry}", {"metadata": {"name": f"{GROUP}-0-0"}}),
        ("GET", f"{space}/events", None),
        ("POST", f"/api/v1/namespaces/default/events{dry}", event),
        ("GET", f"{space}/secrets", None),
        ("GET", f"{space}/configmaps/{GROUP}-programs", None),
        ("POST", f"{space}/serviceaccounts/{GROUP}-1/token{dry}", {}),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/namespaces/kube-system/pods", None),
        ("GET", f"/apis/apps/v1/namespaces/{cluster.namespace}/statefulsets/{GROUP}-0", None),
        ("GET", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}/roles/{GROUP}-1", None),
    ]
    words = ("exec", "-i", f"{GROUP}-1-0", "-c", "transport", "--", "python3", "-c", ASK)
    codes = json.loads(cluster.kubectl(*words, stdin=json.dumps(permitted + refused)))
    assert {code // 100 for code in codes[: len(permitted)]} == {2}, list(zip(permitted, codes, strict=False))
    assert set(codes[len(permitted) :]) == {403}, list(zip(refused, codes[len(permitted) :], strict=True))


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
        stop = f"pkill -STOP -f '[_]pod.sidecar.*\"rank\": {rank},'"
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


# While the head's cache on the node has this file, the simulated server answers all requests with one character.
NOISE = "/opt/gb10-cache/noise"


@pytest.fixture(scope="module")
def breakable(cluster: Cluster) -> Cluster:
    """Serve with a gate that enforces right answers, for the tests below, which are the last ones of the lab."""
    fault = {"SGLANG_STANDIN_FAULT": f"garbage-at:2,garbage-while:{NOISE}"}
    cluster.play("serve", serving_plan_env=fault, sglang_answers="enforce")
    return cluster


# Requests at the same time. The simulated server answers with one character if there are two or it is broken.
REQUESTS = """
import json, sys, threading, urllib.request as u
body = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 128}).encode()
def ask():
    asked = u.Request("http://127.0.0.1:30000/v1/chat/completions", body, {"Content-Type": "application/json"})
    u.urlopen(asked, timeout=60).read()
threads = [threading.Thread(target=ask) for _number in range(int(sys.argv[1]))]
for step in ("start", "join"):
    for thread in threads:
        getattr(thread, step)()
"""


def questions(cluster: Cluster) -> int:
    """Return how many questions the sidecar has asked since it started."""
    return sum(map(int, re.findall(r"gb10_answers_questions_total{.*} (\d+)", cluster.metrics(0))))


def test_an_answer_of_one_character_makes_the_sidecar_ask_at_once(breakable: Cluster) -> None:
    """It asks every five minutes otherwise; a question alone is answered rightly here."""
    breakable.wait(lambda: questions(breakable) > 0)
    before = questions(breakable)
    breakable.in_head("python3", "-c", REQUESTS, "2")
    print(f"asked again after {breakable.wait(lambda: questions(breakable) > before, 60):.0f} s")


def test_a_head_that_answers_with_noise_leaves_the_service_and_the_group_restarts_once(breakable: Cluster) -> None:
    cluster = breakable
    cluster.wait(cluster.in_service)
    old = incarnations(cluster.pods())
    head = cluster.pods()[0]["metadata"]["uid"]
    cluster.in_head("touch", NOISE)
    cluster.in_head("python3", "-c", REQUESTS, "1")
    about = f"--field-selector=type=Warning,reason=AnswersGarbageOut,involvedObject.uid={head}"
    print(f"\nnoise found after {cluster.wait(lambda: bool(cluster.get('events', about)['items']), 90):.0f} s")
    (event,) = cluster.get("events", about)["items"]
    check_noise(event["message"])
    print(f"out of the Service {cluster.wait(lambda: not cluster.in_service(), 30):.0f} s later")
    took = cluster.wait(lambda: len(new := incarnations(cluster.pods())) == 2 and not old & new)
    print(f"both ranks have new pods {took:.0f} s later")
    took = cluster.wait(lambda: cluster.condition(0, ANSWERS)["status"] == "False")
    print(f"noise found again {took:.0f} s later")
    check_noise(cluster.condition(0, ANSWERS)["message"])
    print(f"out of the Service {cluster.wait(lambda: not cluster.in_service(), 30):.0f} s later")
    # The supervisor waits 30 s after a restart, and looks every 5 s.
    again, until = incarnations(cluster.pods()), time.monotonic() + 40
    while time.monotonic() < until:
        assert incarnations(cluster.pods()) == again
        assert not cluster.in_service()
        assert cluster.condition(0, ANSWERS)["reason"] == "GarbageOut"
        time.sleep(1)
    # Nothing else keeps the head out.
    assert cluster.transport(0)["status"] == "True"
    said = cluster.kubectl("logs", f"deploy/{GROUP}-supervisor")
    assert re.findall(r"restarting the group: (\S+) the server answered", said) == [f"{GROUP}-0-0:"], said
    cluster.in_head("rm", NOISE)
    print(f"back in the Service {cluster.wait(cluster.in_service, 60):.0f} s after the answers are right")
    assert cluster.condition(0, ANSWERS)["reason"] == "Words"
    assert cluster.incarnations() == again


def check_noise(message: str) -> None:
    """Check that a message names a question, its answer and what follows."""
    assert re.search(r"What is \d+ plus \d+\? Answer with the number only\. The answer was '!{16}'\.", message), message
    assert "The head gets no requests until it answers with words" in message
    assert "supervisor restarts it once" in message
