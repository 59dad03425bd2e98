# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a group of four ranks whose sidecars get slow answers, no answers or resets from the API server.

A program on each node stands between the pod of the group and the API server. The kubelets still reach the API server.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from labcommand import LabCommand
from sitecommand import is_ready
from transportgroup import Cluster, served

COVERS = ("plugins/module_utils/_pod",)

PORT, RANKS, WATCHED_S = 16443, 4, 75
# Answers after 4 s (a sidecar waits for 5 s), never, or with a reset; writes one byte per connection to a file.
PROXY = r"""
import socket, struct, sys, threading, time
fault, address = sys.argv[1], (sys.argv[2], 443)

def pump(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass

def serve(client):
    if fault == "hangs":
        time.sleep(3600)
    elif fault == "slow":
        time.sleep(4)
        with client, socket.create_connection(address) as server:
            threading.Thread(target=pump, args=(client, server), daemon=True).start()
            pump(server, client)
    else:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

with socket.create_server(("", 16443), backlog=64) as listener, open("/run/slow-api.count", "wb", 0) as count:
    while True:
        client, _address = listener.accept()
        count.write(b".")
        threading.Thread(target=serve, args=(client,), daemon=True).start()
"""


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Cluster:
    return served(make_lab(), RANKS)


@contextmanager
def faulty(cluster: Cluster, fault: str) -> Iterator[None]:
    """Give the API server a fault for the group's pods."""
    api = cluster.get("service", "kubernetes", "--namespace=default")["spec"]["clusterIP"]
    pods = cluster.pods()
    rules = [
        f"PREROUTING -s {pod['status']['podIP']} -d {api} -p tcp --dport 443 -j REDIRECT --to-ports {PORT}"
        for pod in pods
    ]
    hosts = [pod["spec"]["nodeName"] for pod in pods]
    for host, rule in zip(hosts, rules, strict=True):
        start = f"systemd-run --quiet --collect --unit=slow-api python3 -c '{PROXY}' {fault} {api}"
        cluster.lab.shell(host, f"{start}; iptables -w -t nat -I {rule}")
    try:
        yield
    finally:
        for host, rule in zip(hosts, rules, strict=True):
            cluster.lab.shell(host, f"iptables -w -t nat -D {rule}; systemctl stop slow-api")


def ready_since(cluster: Cluster) -> dict[str, str]:
    """Return since when each pod is ready, without a moment in which it was not."""
    return {
        pod["metadata"]["name"]: condition["lastTransitionTime"]
        for pod in cluster.pods()
        if is_ready(pod)
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready"
    }


@pytest.mark.parametrize("fault", ["slow", "hangs", "resets"])
def test_a_faulty_api_leaves_the_group_in_the_service_and_a_fault_of_the_head_still_counts(
    cluster: Cluster, fault: str
) -> None:
    cluster.wait(cluster.in_service)
    restarts, since = cluster.restarts(), ready_since(cluster)
    assert len(since) == RANKS
    with faulty(cluster, fault):
        started, looks = time.monotonic(), 0
        while time.monotonic() - started < WATCHED_S:
            assert cluster.in_service(), cluster.transport(0)
            looks += 1
            time.sleep(3)
        asked = len(cluster.lab.shell("spark1", "cat /run/slow-api.count"))
        assert asked >= 3, "the sidecar of the head has not met the fault"
        assert (cluster.restarts(), ready_since(cluster)) == (restarts, since)
        cluster.cable(0, "down")
        try:
            gone = cluster.wait(lambda: not cluster.in_service(), 60)
        finally:
            cluster.cable(0, "up")
    back = cluster.wait(cluster.in_service)
    assert cluster.restarts() == restarts
    print(
        f"\n{RANKS} ranks, API {fault}: in the Service at {looks} looks in {WATCHED_S} s ({asked} requests); "
        f"out {gone:.0f} s after the head lost a link, back {back:.0f} s after both were repaired"
    )
