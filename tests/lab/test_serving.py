# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test serving on the lab's real Kubernetes: groups are replaced, killed, frozen, drained, run side by side, stopped.

One lab of two nodes, in the order of this file. After each disturbance the group becomes ready and passes the
transport gate; the seconds until then are printed (``pytest -s`` or the report of a failure).
"""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from adminroutes import closed_routes
from labcommand import LabCommand, changed
from sitecommand import Site, incarnations, is_ready, revisions, time_to_ready

COVERS = (
    "playbooks/serve.yml",
    "playbooks/serve_stop.yml",
    "playbooks/serve_status.yml",
    "playbooks/chat.yml",
    "playbooks/logs.yml",
    "playbooks/shutdown.yml",
    "roles/sglang",
    "roles/serving_plan",
    "plugins/module_utils/_pod",
    "plugins/plugin_utils/_serving",
)

GROUP = "gemma-4-31b-it"
NODES = 2
WORKER = "$(pgrep --oldest -f '[l]aunch_server.*--node-rank 1 ')"
COUNTERS = "/run/gb10-lab/sys/class/infiniband/*/ports/1/hw_counters/out_of_sequence"
LOSSY = f"n=0; while sleep 0.2; do n=$((n + 1)); for file in {COUNTERS}; do echo $n > $file; done; done"
ON_TWO = {"serving_plan_overrides": {"topology": {"nodes": NODES, "tp": NODES}}}


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    yield Site.deployed(make_lab(), nodes=NODES, **ON_TWO)


def test_a_group_is_served_and_a_second_run_changes_nothing(cluster: Site) -> None:
    assert changed(cluster.play("serve")) > 0
    assert all(map(is_ready, cluster.pods()))
    print(f"two ranks: ready after {time_to_ready(cluster.pods()):.0f} s")
    assert changed(cluster.play("serve")) == 0


def test_a_group_answers_a_question_and_its_logs_are_shown(cluster: Site) -> None:
    answer = cluster.play("chat", instance=GROUP, question="Hello?")
    assert re.search(r"^\d+ tokens, the first after \d+\.\d\d s", answer, re.M)
    logs = cluster.play("logs", instance=GROUP, sglang_log_lines=5)
    assert all(f" on spark{number}:" in logs for number in (1, 2))
    assert f"logs -f {GROUP}-0-0 -c sglang" in logs


# Prints the status of each request to each address with its port, as JSON. kube-proxy may open a new NodePort late.
ASK = """
import http.client, json, sys, time
def ask(to, method, path, tries=40):
    connection = http.client.HTTPConnection(to, timeout=10)
    try:
        connection.request(method, path)
    except ConnectionRefusedError:
        if not tries:
            raise
        time.sleep(0.5)
        return ask(to, method, path, tries - 1)
    return connection.getresponse().status
requests = json.load(sys.stdin)
print(json.dumps({to: [ask(to, *each) for each in requests] for to in sys.argv[1:]}))
"""


def statuses(cluster: Site, rank: int, asked: list[tuple[str, str]], *doors: str) -> dict[str, list[int]]:
    """Return what a process of a rank's pod is answered at each address."""
    words = ("exec", "-i", f"{GROUP}-{rank}-0", "-c", "sglang", "--", "python3", "-c", ASK, *doors)
    return dict(json.loads(cluster.kubectl(*words, stdin=json.dumps(asked))))


def test_no_route_of_any_release_that_administers_answers_a_client(cluster: Site) -> None:
    """Ask at the pod, the Service, a NodePort and the VFs; lab/gateway_routing asks at the gateway."""
    before, head = cluster.incarnations(), cluster.pods()[0]
    networks = json.loads(head["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    vfs = [f"{network['ips'][0].partition('/')[0]}:30000" for network in networks]
    selector = cluster.get("service", GROUP)["spec"]["selector"]
    spec = {"type": "NodePort", "selector": selector, "ports": [{"port": 30000}]}
    made = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "opened"}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    port = cluster.get("service", "opened")["spec"]["ports"][0]["nodePort"]
    where = head["status"]
    doors = [f"{where['podIP']}:30000", f"{GROUP}.{cluster.namespace}:30000", f"{where['hostIP']}:{port}"]
    asked = [(method, route) for route in closed_routes() for method in ("GET", "POST")]
    used = statuses(cluster, 1, [("GET", "/v1/models"), ("GET", "/metrics")], *doors)
    assert set(map(tuple, used.values())) == {(200, 200)}
    for to, answers in statuses(cluster, 1, asked, *doors, *vfs).items():
        wrong = [each for each, status in zip(asked, answers, strict=True) if status != 403]
        assert wrong == [], to
    # A process of the pod is no client: the administrator's way.
    assert statuses(cluster, 0, [("POST", "/flush_cache")], "127.0.0.1:30000") == {"127.0.0.1:30000": [200]}
    cluster.kubectl("delete", "service", "opened")
    assert cluster.incarnations() == before, "the server runs as before"


def test_a_shutdown_without_a_confirmation_switches_nothing_off(cluster: Site) -> None:
    assert "[shutdown.unconfirmed]" in cluster.play("shutdown", check=False)
    cluster.play("shutdown", "--check", shutdown_confirm="yes")
    assert all(map(is_ready, cluster.pods()))


def test_check_mode_shows_a_preset_s_flags_and_changes_nothing(cluster: Site) -> None:
    before = cluster.pods()
    output = cluster.play("serve", "--check", "--diff", preset="mtp-6")
    assert output.count("+    --speculative-num-steps 6") == NODES
    assert output.count("-    --speculative-num-steps 4") == NODES
    assert incarnations(cluster.pods()) == incarnations(before)


def test_a_preset_replaces_the_group_as_a_whole(cluster: Site) -> None:
    before = cluster.pods()
    cluster.play("serve", preset="mtp-6")
    after = cluster.pods()
    assert {p["metadata"]["uid"] for p in before}.isdisjoint(p["metadata"]["uid"] for p in after)
    assert len(revisions(after)) == 1
    assert revisions(after) != revisions(before)
    print(f"a preset: ready after {time_to_ready(after):.0f} s")
    cluster.play("verify", preset="mtp-6")


@pytest.mark.parametrize(
    ("what", "node", "rank", "signal"),
    [
        ("a killed worker", "spark2", 1, "KILL"),
        ("a frozen worker", "spark2", 1, "STOP"),
        ("a killed head", "spark1", 0, "KILL"),
    ],
)
def test_a_disturbed_group_comes_back_as_a_whole(cluster: Site, what: str, node: str, rank: int, signal: str) -> None:
    before = incarnations(cluster.pods())
    cluster.signal(node, rank, signal)
    if signal == "STOP":
        # Two more faults at once: a rail is pulled, and the rails of another rank lose packets.
        cluster.lab.shell(node, f"nsenter --net --target {WORKER} ip link set net1 down")
        cluster.lab.shell("spark1", f"systemd-run --quiet --unit=lossy sh -c '{LOSSY}'")
    print(f"{what}: ready again after {cluster.wait_ready(before, NODES):.0f} s")
    if signal == "STOP":
        cluster.lab.shell("spark1", "systemctl stop lossy")
        # Workers are asked through the network policy of the namespace.
        shown = cluster.play("serve_status", instance=GROUP)
        assert "Last hang: [" in shown and "The kernel's log around the last hang:" in shown
        said = cluster.kubectl("logs", f"deploy/{GROUP}-supervisor")
        assert "why the group hung: rank 1: its process front_door.py is stopped (state T)" in said
        assert "rank 1: net1 has no carrier" in said
        assert re.search(r"rank 0: net1 loses packets \(out_of_sequence \+\d+ in ten seconds\)", said)


def test_a_group_with_a_pod_that_lost_its_address_gets_new_pods(cluster: Site) -> None:
    """The rank's process would end at each start in this pod; the kubelet waits longer each time."""
    before = cluster.pods()
    cluster.lab.shell("spark2", f"nsenter --net --target {WORKER} ip address flush dev net1")
    cluster.signal("spark2", 1, "KILL")
    print(f"a VF without its address: ready again after {cluster.wait_ready(incarnations(before), NODES, 600):.0f} s")
    assert {pod["metadata"]["uid"] for pod in before}.isdisjoint(pod["metadata"]["uid"] for pod in cluster.pods())
    assert "restarting the group: " in cluster.kubectl("logs", f"deploy/{GROUP}-supervisor")


def test_a_drained_node_is_waited_for(cluster: Site) -> None:
    before = incarnations(cluster.pods())
    drain = ("drain", "spark2", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
    refused = cluster.ask(*drain, "--timeout=10s")
    assert "would violate the pod's disruption budget" in refused.stdout + refused.stderr
    assert incarnations(cluster.pods()) == before
    cluster.kubectl(*drain, "--timeout=120s", "--disable-eviction")
    assert not is_ready(cluster.pods()[1])
    cluster.kubectl("uncordon", "spark2")
    print(f"an uncordoned node: ready again after {cluster.wait_ready(before, NODES):.0f} s")


def test_a_missing_network_is_named_before_anything_changes(cluster: Site) -> None:
    before = incarnations(cluster.pods())
    cluster.kubectl("delete", "net-attach-def", "gb10-rail1-vf1")
    output = " ".join(cluster.play("serve", check=False, vf_index=1, preset="mtp-6").split())
    assert "gb10-rail1-vf1" in output
    assert "rank 1 on spark2" in output
    assert "playbooks/kubernetes.yml" in output
    assert incarnations(cluster.pods()) == before
    cluster.play("kubernetes")


def test_stopping_deletes_everything_and_returns_the_vfs(cluster: Site) -> None:
    for what, said in (
        ({}, "no group is named"),
        ({"profile": "glm-4.7"}, "'glm-4-7': there is no such group"),
    ):
        refusal = " ".join(cluster.play("serve_stop", check=False, **what).split())
        assert said in refusal
        assert f"the groups in namespace gb10-serving are: {GROUP}." in refusal
    assert cluster.pods()
    cluster.play("serve_stop", instance=GROUP)
    assert cluster.pods() == []
    kinds = "all,cm,sa,role,rolebinding,pdb"
    assert cluster.kubectl("get", kinds, "-l", f"gb10.cluster/instance={GROUP}", "-o", "name") == ""
    assert "enp1s0f0v0" in cluster.lab.shell("spark1", "ip -br link")
    # The last logs of killed and frozen ranks are kept after their supervisor and their group were deleted.
    assert f"{GROUP}-" in cluster.lab.shell("spark1", f"ls /var/log/gb10/gb10-serving/{GROUP}")


def test_a_second_group_on_the_same_gpus_is_refused_until_they_are_shared(cluster: Site) -> None:
    cluster.play("serve", instance="one")
    two = {"instance": "two", "vf_index": 1}
    refusal = " ".join(cluster.play("serve", check=False, **two).split())
    assert "no group was changed" in refusal
    for rank, node in enumerate(("spark1", "spark2")):
        assert f"rank {rank} on {node}: nvidia.com/gpu: the node offers 1, the rank needs 1" in refusal
        assert f"pod gb10-serving/one-{rank}-0 holds 1" in refusal
    assert "serve_stop.yml -e instance=one" in refusal
    assert cluster.pods("two") == []
    cluster.play("kubernetes", device_plugins_gpu_shares=2)
    cluster.play("serve", **two)
    assert all(map(is_ready, [*cluster.pods("one"), *cluster.pods("two")]))
    cluster.play("verify", **two)


def test_two_groups_cannot_use_each_others_vfs(cluster: Site) -> None:
    said = " ".join(cluster.play("serve", check=False, instance="three", vf_index=0).split())
    assert "[serving.vf.taken]" in said
    assert "instance one holds the VFs of this index" in said
    assert cluster.pods("three") == []
