# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test role nccl_verify on live pods: its proof, every fault that the lab can inject, and the comparison with TCP.

One lab of two nodes, in the order of this file; every test removes its fault. Faults are injected by
changing the running group, because the serving plan refuses to deploy most of them.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from labcommand import LabCommand, changed
from transportgroup import GROUP, Cluster, served

COVERS = (
    "playbooks/verify.yml",
    "playbooks/compare_transports.yml",
    "playbooks/latency.yml",
    "roles/nccl_verify",
    "plugins/module_utils/_nccl",
    "plugins/module_utils/_fabric",
    "plugins/plugin_utils/_proof",
)


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Cluster:
    return served(make_lab())


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
        # As an argument, because a standard input may end before the program in the container reads it.
        cluster.kubectl("exec", name, "-c", "sglang", "--", "sh", "-c", 'printf %s "$0" > /proc/1/fd/1', said)
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
    assert "the log says RDMA, but the RDMA devices moved 0 bytes" in message, message
    assert cluster.judged()["verdict"] == "ib"

    def stand_still() -> bool:
        cluster.in_head("python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--measure", "64")
        return cluster.transport(0)["reason"] == "CountersSilent"

    print(f"\nsilent counters found after {cluster.wait(stand_still, 120):.0f} s")
    cluster.check_announced(0, "CountersSilent")
    cluster.wait(lambda: not cluster.in_service(), 30)
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="-")
    cluster.wait(cluster.in_service)


# Ranks that exchange bytes over the first rail's interface until they are killed: both ways, as a model's ranks do.
STREAM = """
import socket, threading
c = {}
def send():
    while True:
        c.sendall(bytes(1 << 20))
threading.Thread(target=send, daemon=True).start()
while c.recv(1 << 20):
    pass
"""
ENDS = {
    0: "socket.create_connection(('10.100.0.2', 29999))",
    1: "socket.create_server(('', 29999)).accept()[0]",
}
# Far less than the model exchanges, however long the run takes.
TRICKLE = """
until [ -e /run/gb10-lab/over ]; do echo 2000 2000 >> /run/gb10-lab/rdma-traffic/rocep1s0f0v0; sleep 0.1; done
"""


def test_bytes_over_tcp_beside_a_log_of_rdma_fail_the_run_and_say_which_to_doubt(cluster: Cluster) -> None:
    """The RDMA counters move a little, so they alone contradict nothing; the ledger misses the model's bytes there."""
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="/nowhere")
    over = threading.Event()

    def trickle(node: str) -> None:
        cluster.lab.shell(node, TRICKLE)

    def stream(rank: int) -> None:
        words = ("exec", f"{GROUP}-{rank}-0", "-c", "sglang", "--", "timeout", "-s", "KILL", "100", "python3", "-c")
        # Ends with the signal, and the client before the server listens.
        while not over.is_set():
            cluster.ask(*words, STREAM.format(ENDS[rank]))

    nodes = ("spark1", "spark2")
    threads = [threading.Thread(target=stream, args=(rank,)) for rank in (1, 0)]
    threads += [threading.Thread(target=trickle, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        message = cluster.refused("verify", nccl_verify_tokens=64, nccl_verify_min_bytes=1000)
    finally:
        over.set()
        # Only this test runs a program that names the port.
        for node in nodes:
            cluster.lab.shell(node, "touch /run/gb10-lab/over; pkill -KILL -f '[2]9999' || true")
        for thread in threads:
            thread.join(120)
    assert cluster.judged()["verdict"] == "ib"
    assert "the log says rdma, the bytes of gemma-4-31b-it-0-0 say tcp: " in message, message
    assert "Doubt the log: a library without a log line, or a second communicator, used another path" in message, (
        message
    )
    cluster.restart((0, 1), ready=True, GB10_LAB_TRAFFIC="-")
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
    assert "spark2 rail0 VF 0" in message, message
    assert "net1 has MTU 1500, planned 9000" in message, message
    assert cluster.judged()["satisfied"] is True
    assert "4 directions on all rails and VFs pass" in " ".join(cluster.play("verify").split())


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
    assert fault.remedy in message, message
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
    assert "an all-reduce of 8192 bytes over ib takes" in message, message
