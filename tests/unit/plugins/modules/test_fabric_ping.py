# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.check_results import PF_INDEX
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import fabric_ping
from ansible_collections.gb10.cluster.plugins.modules import fabric_ping as probe
from ansible_collections.gb10.cluster.plugins.modules.fabric_ping import Place, Target
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.check_matrix import ping_verdict
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import fabric
from module_runs import become_nobody, run_module
from ring_samples import cabled_plan

PLAN = plan_fabric(fabric(2, gb10_fabric_vf_count=1))[0].as_dict()
OWN = PLAN["hosts"]["spark1"]["vfs"]
PEER = {vf["address"]: vf["mac"] for vf in PLAN["hosts"]["spark2"]["vfs"]}


def link(vf: dict[str, Any]) -> dict[str, Any]:
    return {"ifname": vf["netdev"], "mtu": 9000, "operstate": "UP", "addr_info": [{"local": vf["address"]}]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A host whose pings are answered; the MAC that answers for each address can be changed."""
    neighbours = dict(PEER)

    def run(argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms", "")

    monkeypatch.setattr(system, "links", lambda: {vf["netdev"]: link(vf) for vf in OWN})
    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda argv: [{"lladdr": neighbours[argv[argv.index("to") + 1]]}])
    return neighbours


def test_both_rails_pass(host: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert (status, result["msg"], result["changed"]) == (0, "2 of 2 directions pass", False)
    assert [one["rtt_ms"] for one in result["results"]] == [0.25, 0.25]
    assert ping_verdict({"spark1": result["results"], "spark2": []}, ["spark1", "spark2"])["ok"] is True


def test_a_peer_that_answers_on_the_wrong_rail_is_named(
    host: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = PEER
    host[second] = PEER[first]
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert (status, result["msg"]) == (0, "1 of 2 directions pass")
    (bad,) = (one for one in result["results"] if not one["ok"])
    assert (bad["layer"], bad["address"]) == ("ethernet", second)
    assert "answers with the MAC of enp1s0f0v0 of spark2 (rail0, VF 0)" in bad["reason"]
    verdict = ping_verdict({"spark1": result["results"], "spark2": []}, ["spark1", "spark2"])
    assert "1/2 ethernet" in verdict["msg"]


def test_a_host_outside_the_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark9")
    assert (status, result["results"]) == (1, [])
    assert "spark9 is not in the fabric plan" in result["msg"]


def test_a_missing_program_is_named(
    host: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nonexistent")
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert status == 1
    assert "ip: command not found on this host" in result["msg"]


def test_a_user_who_cannot_look_into_pods_is_told_so(
    host: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, a VF in a pod would be reported as missing."""
    become_nobody(monkeypatch)
    monkeypatch.setattr(system, "links", dict)

    def stat(path: Path, **_options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", stat)
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert status == 1
    assert "become: true" in result["msg"]


PEER_MAC, OTHER_RAIL = "02:00:00:00:00:02", "02:00:00:01:00:02"
OWNERS = {PEER_MAC: "enp1s0f0v0 of b (rail0, VF 0)", OTHER_RAIL: "enP2p1s0f0v0 of b (rail1, VF 0)"}
TARGET = Target("a", "b", "rail0", 0, "enp1s0f0v0", "02:00:00:00:00:01", "10.100.0.1", "10.100.0.2", PEER_MAC, 9000)
LINK: dict[str, Any] = {"ifname": "enp1s0f0v0", "mtu": 9000, "operstate": "UP", "addr_info": [{"local": "10.100.0.1"}]}


def plan() -> dict[str, Any]:
    def vf(rail: str, index: int, number: int) -> dict[str, Any]:
        return {
            "rail": rail,
            "vf_index": index,
            "netdev": f"{rail}v{index}",
            "mac": "02:00:00:00:00:01",
            "address": f"10.{rail[-1]}.{index}.{number}",
            "prefix": 24,
        }

    ends = (("rail0", 0), ("rail0", 1), ("rail1", 0))
    hosts = {name: {"vfs": [vf(*end, number) for end in ends]} for number, name in enumerate("abc", 1)}
    return {"mtu": 9000, "hosts": hosts}


def test_every_peer_on_the_same_rail_and_index() -> None:
    found = probe.targets(plan(), "a")
    assert [(t.peer, t.rail, t.vf_index, t.address) for t in found if t.rail == "rail0"] == [
        ("b", "rail0", 0, "10.0.0.2"),
        ("c", "rail0", 0, "10.0.0.3"),
        ("b", "rail0", 1, "10.0.1.2"),
        ("c", "rail0", 1, "10.0.1.3"),
    ]
    assert {t.payload for t in found} == {8972}


@pytest.mark.parametrize(
    ("link", "layer"),
    [
        (None, "sriov"),
        ({**LINK, "operstate": "DOWN"}, "link"),
        ({**LINK, "addr_info": []}, "address"),
        ({**LINK, "mtu": 1500}, "mtu"),
        (LINK, ""),
    ],
)
def test_faults_of_the_sending_host_are_named_by_layer(link: dict[str, Any] | None, layer: str) -> None:
    assert probe.before_sending(TARGET, Place("host", (), link) if link else None)[0] == layer


@pytest.mark.parametrize(
    ("where", "change", "remedy"),
    [
        ("host", {"addr_info": []}, "run playbook fabric"),
        ("network namespace cni-1 (process 7)", {"mtu": 1500}, "run playbook fabric"),
        ("pod g-0-0 (network namespace cni-1)", {"addr_info": []}, "delete pod g-0-0, so that its replacement gets it"),
        # The replacement would get the VF with the MTU that it has.
        ("pod g-0-0 (a)", {"mtu": 1500}, "stop the group of pod g-0-0, run playbook fabric and serve it again"),
    ],
)
def test_what_a_pod_lacks_is_given_to_it_when_it_starts(where: str, change: dict[str, Any], remedy: str) -> None:
    found = probe.before_sending(TARGET, Place(where, (), LINK | change))
    assert found[1].endswith(f": {remedy}")


def test_a_second_try_passes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter((1, 0, 0))

    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, next(codes), "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms", "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda _argv: [{"lladdr": PEER_MAC, "state": ["REACHABLE"]}])
    found = probe.probe(TARGET, Place("host", (), LINK), OWNERS, 3, 1)
    assert (found["layer"], found["rtt_ms"]) == ("", 0.25)
    assert "lost all 3 packets" in found["reason"]


@pytest.mark.parametrize(
    ("full", "small", "state", "layer"),
    [
        (0, 0, "REACHABLE", ""),
        (1, 0, "REACHABLE", "mtu"),
        (1, 1, "FAILED", "ethernet"),
        (1, 1, "", "ethernet"),
        (1, 1, "REACHABLE", "ip"),
    ],
)
def test_the_layer_of_a_lost_packet(
    monkeypatch: pytest.MonkeyPatch, full: int, small: int, state: str, layer: str
) -> None:
    ran = []

    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        ran.append(list(argv))
        code = full if "8972" in argv else small
        return subprocess.CompletedProcess(argv, code, "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms", "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda argv: [{"state": [state]}] if state else [])
    place = Place("pod a/b", ("nsenter", "--net=/run/netns/cni-1"), {**LINK, "ifname": "net1"})
    found = probe.probe(TARGET, place, OWNERS, 3, 1)
    assert found["layer"] == layer
    assert found["where"] == "pod a/b"
    assert found["rtt_ms"] == (None if layer else 0.25)
    assert ran[0][:2] == ["nsenter", "--net=/run/netns/cni-1"]
    assert ran[0][5:9] == ["-M", "do", "-s", "8972"]
    assert ran[0][ran[0].index("-I") + 1] == "net1"


@pytest.mark.parametrize(
    ("found", "owner"), [(OTHER_RAIL, "enP2p1s0f0v0 of b"), ("AA:00:00:00:00:01", "no planned function")]
)
@pytest.mark.parametrize("code", [0, 1])
def test_a_peer_that_answers_with_another_mac_fails_though_pings_pass(
    monkeypatch: pytest.MonkeyPatch, found: str, owner: str, code: int
) -> None:
    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, code, "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms", "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda _argv: [{"lladdr": found, "state": ["REACHABLE"]}])
    reached = probe.probe(TARGET, Place("host", (), LINK), OWNERS, 3, 1)
    assert (reached["layer"], reached["ok"]) == ("ethernet", False)
    assert f"answers with the MAC of {owner}" in reached["reason"]
    assert PEER_MAC in reached["reason"]


def test_the_owner_of_every_planned_mac_is_known() -> None:
    macs = probe.planned_macs(plan())
    assert macs["02:00:00:00:00:01"].startswith("rail1v0 of c")


def test_hosts_without_a_common_rail_are_pinged_over_the_hosts_between() -> None:
    plan = cabled_plan(4, gb10_fabric_transit=True)
    over = [target for target in probe.targets(plan, "spark1") if target.vf_index == PF_INDEX]
    assert {target.peer for target in over} == {"spark3"}
    assert len(over) == 4, "both halves of both ways"
    assert {target.netdev for target in over} == {"enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"}
    assert all(target.address.endswith(".255.3") and target.source.endswith(".255.1") for target in over)
    layer, reason = probe.after_failure(over[0], small_passes=False, state="")
    assert layer == "ip"
    assert "over the hosts between" in reason
    assert not [target for target in probe.targets(cabled_plan(4), "spark1") if target.vf_index == PF_INDEX]
