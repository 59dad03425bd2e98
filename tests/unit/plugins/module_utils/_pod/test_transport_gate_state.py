# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when a rank counts as proven, and what its condition says when it does not."""

import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import gate
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import (
    Condition,
    History,
    Rail,
    Seen,
    decide,
    unproven,
)

RAILS = (
    Rail("rocep1s0f0v0", "net1", "10.100.0.1", 9000),
    Rail("roceP2p1s0f0v0", "net2", "10.101.0.1", 9000),
)
GOOD = {
    "satisfied": True,
    "verdict": "ib",
    "transport_class": "rdma",
    "evidence": "channels",
    "complete": True,
    "causes": [],
    "msg": "the rank talks over NET/IB/0, NET/IB/1, proved by channels",
}
NO_DEVICE = {"id": "no_rdma_device", "confidence": 0.7}
MISMATCH = {"id": "wrong_peer_type", "confidence": 0.6}
TCP = GOOD | {"satisfied": False, "verdict": "socket", "transport_class": "tcp", "causes": [NO_DEVICE], "msg": "TCP"}
EARLY = GOOD | {
    "satisfied": False,
    "complete": False,
    "verdict": "unknown",
    "transport_class": "unknown",
    "evidence": "none",
    "msg": "?",
}
DEAD = EARLY | {"verdict": "error", "evidence": "failure", "msg": "failed"}
SOUND: dict[str, Any] = {
    "start": "1",
    "judged": GOOD,
    "gids": frozenset(rail.address for rail in RAILS),
    "mtus": {"net1": 9000, "net2": 9000},
}


def look(history: History | None = None, now: float = 0, rdma: bool = True, **changes: Any) -> Condition:
    found = decide(Seen(**(SOUND | changes)), history or History(), RAILS, rdma, now)
    assert found.proven is (found.reason == "Proven")
    return found


def test_a_healthy_rank_is_proven() -> None:
    assert look() == Condition(True, "Proven", GOOD["msg"])


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"start": ""}, "NotStarted", "has not started"),
        ({"judged": EARLY}, "NotProven", "?"),
        ({"judged": TCP}, "WrongTransport", "TCP"),
        ({"judged": DEAD}, "Failed", "failed"),
        ({"judged": GOOD, "changed": "a line vanished"}, "EvidenceChanged", "a line vanished"),
        ({"judged": TCP, "changed": "a line vanished"}, "WrongTransport", "TCP"),
        ({"gids": frozenset({"10.101.0.1"})}, "GidMissing", "rocep1s0f0v0 has no RoCE v2 GID for 10.100.0.1"),
        ({"gids": frozenset({"10.100.0.1"})}, "GidMissing", "roceP2p1s0f0v0 has no RoCE v2 GID for 10.101.0.1"),
        ({"others": {"g-1-0": "", "g-2-0": "TCP"}}, "OtherRanks", "g-2-0: TCP"),
    ],
)
def test_every_other_state_says_why(changes: dict[str, Any], reason: str, words: str) -> None:
    condition = look(**changes)
    assert (condition.proven, condition.reason) == (False, reason)
    assert words in condition.message
    assert "g-1-0" not in condition.message


def test_a_communicator_that_is_made_while_serving_is_given_time_and_tcp_is_not() -> None:
    history = History()
    unfinished = GOOD | {"satisfied": False, "complete": False, "msg": "1 of 3 communicators never finished"}
    seen = [(0, GOOD), (3, unfinished), (6, GOOD), (15, unfinished), (905, unfinished), (906, unfinished), (907, GOOD)]
    found = [look(history, now, judged=judged) for now, judged in seen]
    assert [each.reason for each in found] == ["Proven"] * 5 + ["NotProven", "Proven"]
    assert found[2] == found[0]
    more = "; NCCL is setting up another communicator since then, which leaves this proof as it is for at most "
    more += "15 minutes"
    assert found[1].message == found[4].message == f"{GOOD['msg']}{more}"
    assert look(history, 908, judged=TCP).reason == "WrongTransport"
    # A proof of the start before does not count for a new start.
    assert look(history, 25, judged=unfinished, start="2").reason == "NotProven"


@pytest.mark.parametrize(
    ("judged", "changed", "reason"),
    [
        ({"complete": False}, "", "Proven"),
        ({"complete": False}, "a line vanished", "EvidenceChanged"),
        ({"complete": True}, "", "NotProven"),
        ({"complete": False, "evidence": "selection"}, "", "NotProven"),
    ],
)
def test_only_the_setup_of_a_communicator_is_given_more_than_15_seconds(
    judged: dict[str, Any], changed: str, reason: str
) -> None:
    history = History()
    look(history)
    assert look(history, 20, judged=GOOD | {"satisfied": False} | judged, changed=changed).reason == reason


def test_a_cause_in_the_files_is_named_before_a_variable_that_hides_lines() -> None:
    mismatch = GOOD | {"satisfied": False, "causes": [MISMATCH], "msg": "wrong type"}
    assert look(judged=mismatch, blinder="NCCL_X=1") == Condition(False, "NotProven", "wrong type", "wrong_peer_type")
    assert look(judged=EARLY, blinder="NCCL_X=1").cause == "blinded"


@pytest.mark.parametrize("change", [{"judged": EARLY}, {"changed": "a line vanished"}])
def test_a_look_between_two_writes_takes_no_proof_away(change: dict[str, Any]) -> None:
    history = History()
    assert [look(history, 1).reason, look(history, 15.9, **change).reason] == ["Proven"] * 2
    assert not look(history, 16, **change).proven


def test_a_group_that_is_meant_to_use_tcp_needs_no_gids() -> None:
    assert look(rdma=False, gids=frozenset(), judged=TCP | {"satisfied": True}).proven


def test_the_condition_names_the_probable_cause() -> None:
    for confidence, cause in ((0.3, "no_rdma_device"), (0.29, "")):
        causes = [MISMATCH | {"confidence": 0.2}, NO_DEVICE | {"confidence": confidence}]
        assert look(judged=TCP | {"causes": causes}).cause == cause


REMEDY = "NCCL transport socket: gb10_rdma_mode=privileged"


def test_the_message_of_the_head_names_other_ranks_beside_its_own_failure() -> None:
    others = {"g-1-0": REMEDY, "g-2-0": ""}
    mismatch = GOOD | {"satisfied": False, "causes": [MISMATCH], "msg": "wrong type 3 != 4"}
    found = look(judged=mismatch, others=others)
    assert found == Condition(False, "NotProven", f"wrong type 3 != 4. Other ranks: g-1-0: {REMEDY}", "wrong_peer_type")
    assert look(judged=mismatch).message == "wrong type 3 != 4"
    assert look(judged=DEAD, others=others).message.endswith(f"Other ranks: g-1-0: {REMEDY}")


def test_a_rank_that_fails_at_every_start_keeps_its_cause_until_nccl_says_more() -> None:
    history = History()
    again = EARLY | {"msg": "nothing"}
    starts = [("1", TCP), ("1", TCP), ("", again), ("2", again), ("2", TCP), ("3", again)]
    found = [look(history, judged=judged, start=start) for start, judged in starts]
    assert {each.cause for each in found} == {"no_rdma_device"}
    assert [each.reason for each in found] == [
        *("WrongTransport", "WrongTransport", "NotProven", "NotProven", "WrongTransport", "NotProven")
    ]
    assert [each.message for each in found[-2:]] == ["TCP", "nothing. The start before this one: TCP"]
    # The next start got RDMA, but is not connected yet.
    selected = GOOD | {"satisfied": False, "evidence": "selection", "msg": "not connected"}
    for start, judged in (("3", selected), ("4", again)):
        assert look(history, judged=judged, start=start) == Condition(False, "NotProven", judged["msg"])


def test_the_cause_of_an_earlier_start_never_outlives_a_proof() -> None:
    history = History()
    look(history, judged=TCP)
    assert look(history, start="2").proven
    assert look(history, start="3", judged=EARLY) == Condition(False, "NotProven", "?")
    assert look(history, start="").reason == "NotStarted"


def test_a_failure_without_a_known_cause_replaces_the_cause_of_an_earlier_start() -> None:
    history = History()
    look(history, judged=TCP)
    assert (look(history, start="2", judged=DEAD).reason, history.last_failure) == ("Failed", ("2", "failed", ""))
    found = look(history, start="3", judged=EARLY)
    assert (found.message, found.cause) == ("?. The start before this one: failed", "")


def test_a_start_on_fewer_rails_names_the_restart_that_it_needs() -> None:
    found = look(judged=GOOD | {"satisfied": False, "msg": "rank 0 uses 1 of 2 devices"})
    assert (found.reason, found.message[:59]) == (
        "NotProven",
        "rank 0 uses 1 of 2 devices. If this stays, restart the grou",
    )
    assert "restart" not in look(judged=EARLY).message


def test_an_mtu_below_the_plan_is_found_by_a_sidecar_that_has_just_started() -> None:
    fallen = look(History(), mtus={"net1": 9000, "net2": 1500})
    assert (fallen.reason, fallen.message[:35]) == ("MtuFell", "net2 has MTU 1500, planned 9000, so")
    # Its VF is in a pod, which playbook fabric leaves alone.
    assert fallen.message.endswith("run serve_stop, fabric and serve")
    assert look(mtus={"net1": 9216, "net2": 9000}).proven
    # An interface whose MTU cannot be read says nothing.
    assert look(mtus={}).proven


DOWN = ("net2 has no carrier",)


def test_a_link_that_is_down_is_named_even_if_nccl_failed_because_of_it() -> None:
    for judged in (GOOD, TCP, DEAD):
        found = look(judged=judged, down=DOWN)
        assert (found.proven, found.reason) == (False, "LinkDown")
        assert found.message.startswith("net2 has no carrier. NCCL can send nothing")
        assert "cable" in found.message
    assert look(judged=TCP, down=DOWN, rdma=False).reason == "LinkDown"
    assert look(start="", down=DOWN).reason == "NotStarted"


@pytest.mark.parametrize(
    ("counted", "reasons"),
    [
        # Nothing was sent since, then a generation used the rails.
        ((7_000, 7_000, 9_047, 9_048), ["NotProven", "NotProven", "Proven"]),
        # What was sent before the link came back does not count.
        ((9_500, 9_500, 9_600, 90_000), ["NotProven", "NotProven", "Proven"]),
        # The driver was loaded again.
        ((7_000, 0, 5_000, 5_000), ["NotProven", "Proven", "Proven"]),
        # A device without counters can prove nothing more.
        ((None, None, None, None), ["Proven"] * 3),
        ((7_000, None, 7_000, 9_048), ["Proven", "NotProven", "Proven"]),
    ],
)
def test_a_link_that_is_back_counts_after_bytes_were_sent(counted: tuple[int | None, ...], reasons: list[str]) -> None:
    history = History()
    assert look(history, rdma_bytes=1_000).proven
    for sent in (1_000, counted[0]):
        assert look(history, rdma_bytes=sent, down=DOWN).reason == "LinkDown"
    found = [look(history, rdma_bytes=each) for each in counted[1:]]
    assert [each.reason for each in found] == reasons
    # Over TCP, the connections themselves notice the loss.
    history = History()
    look(history, rdma=False, rdma_bytes=5, down=DOWN)
    assert look(history, rdma=False, rdma_bytes=5).proven


def test_a_start_after_the_link_came_back_is_a_new_proof() -> None:
    history = History()
    look(history, rdma_bytes=5, down=DOWN)
    assert look(history, rdma_bytes=5).reason == "NotProven"
    assert look(history, rdma_bytes=5, start="2").proven


def count(history: History, steps: list[tuple[float, float | None, int | None]]) -> list[str]:
    return [look(history, now, tokens=tokens, rdma_bytes=moved).reason for now, tokens, moved in steps]


def test_counters_that_stand_still_while_tokens_flow_are_found_and_recover() -> None:
    steps = [(0, 0, 0), (21, 100, 10_000_000), (42, 200, 10_000_000), (63, 300, 10_000_010), (84, 400, 20_000_000)]
    assert count(History(), list(steps)) == ["Proven", "Proven", "Proven", "CountersSilent", "Proven"]
    # Windows with bytes between silent ones.
    steps = [(0, 0, 0), (21, 100, 0), (42, 200, 10_000_000), (63, 300, 10_000_000)]
    assert set(count(History(), list(steps))) == {"Proven"}


@pytest.mark.parametrize(
    ("tokens", "seconds", "moved", "reasons"),
    [
        # Two windows of the smallest size, with one byte less than the tokens need.
        (32, 20.0, 32 * 64 - 1, ["Proven", "Proven", "CountersSilent", "CountersSilent"]),
        (32, 20.0, 32 * 64, ["Proven"] * 4),
        # A window that is too small goes on.
        (31, 20.0, 0, ["Proven"] * 4 + ["CountersSilent"]),
        (32, 19.5, 0, ["Proven"] * 4 + ["CountersSilent"]),
    ],
)
def test_the_size_of_a_window(tokens: int, seconds: float, moved: int, reasons: list[str]) -> None:
    steps = [(step * seconds, float(step * tokens), step * moved) for step in range(len(reasons))]
    assert count(History(), list(steps)) == reasons


def test_the_silent_windows_of_the_start_before_do_not_count() -> None:
    history = History()
    assert count(history, [(0, 0, 0), (20, 64, 0), (40, 128, 0)])[-1] == "CountersSilent"
    assert [look(history, now, start="2", tokens=now * 4, rdma_bytes=0).reason for now in (60, 80, 100)] == [
        "Proven",
        "Proven",
        "CountersSilent",
    ]


def test_an_idle_moment_does_not_begin_a_window_anew() -> None:
    steps = [(0, 0, 0), (10, 0, 0), (20, 64, 0), (30, 64, 0), (40, 128, 0)]
    assert count(History(), list(steps)) == ["Proven"] * 4 + ["CountersSilent"]


def test_counters_prove_nothing_against_an_idle_unmeasured_or_restarted_server() -> None:
    still = [(20.0 * step, 5.0, 7) for step in range(10)]
    assert set(count(History(), list(still))) == {"Proven"}
    assert set(count(History(), [(20.0 * step, None, 7) for step in range(10)])) == {"Proven"}
    assert set(count(History(), [(20.0 * step, 100.0 * step, None) for step in range(10)])) == {"Proven"}
    # The server and its counters started again.
    assert set(count(History(), [(0, 900, 9_000_000), (21, 0, 9_000_000), (42, 20, 9_000_000)])) == {"Proven"}
    again = [(0, 900, 9_000_000), (20, 0, 9_000_000), (40, 100, 9_000_000), (60, 200, 9_000_000)]
    assert count(History(), list(again)) == ["Proven"] * 3 + ["CountersSilent"]
    # The driver was loaded again while tokens flow.
    assert set(count(History(), [(0, 0, 9_000_000), (20, 100, 0), (40, 200, 10)])) == {"Proven"}


def test_tokens_that_are_counted_only_when_a_long_request_ends_are_no_alarm() -> None:
    steps = [(0, 0, 0), (60, 0, 60_000_000), (61, 4000, 60_000_100), (120, 4000, 120_000_000), (121, 8000, 120_000_100)]
    assert set(count(History(), list(steps))) == {"Proven"}


SIDECAR = {"name": "transport", "ready": True, "state": {"running": {"startedAt": "2026-11-22T12:00:00Z"}}}


def pod(**status: Any) -> dict[str, Any]:
    server = {"name": "sglang", "state": {"running": {"startedAt": "2026-11-22T12:00:00Z"}}}
    said = {"type": "gb10.cluster/transport", "status": "True", "lastTransitionTime": "2026-11-22T12:00:30Z"}
    return {
        "metadata": {},
        "status": {"containerStatuses": [server, SIDECAR], "conditions": [{"type": "Ready"}, said]} | status,
    }


def test_another_rank_counts_only_with_a_proof_since_its_last_start() -> None:
    assert unproven(pod()) == ""
    containers = pod()["status"]["containerStatuses"]
    assert unproven(pod(containerStatuses=containers[::-1])) == ""
    no_time = [{"name": "sglang", "state": {"running": {}}}, SIDECAR]
    assert unproven(pod(containerStatuses=no_time)) == "its container sglang does not run"
    said = {"type": "gb10.cluster/transport", "status": "True", "lastTransitionTime": None}
    assert unproven(pod(conditions=[said])) == "it has proven nothing since its last start"
    assert unproven(pod() | {"metadata": {"deletionTimestamp": "x"}}) == "it is being deleted"
    assert unproven({"metadata": {}}) == "its container sglang does not run or does not answer"
    # A server that waits for its next start: its sidecar still knows what the last one did.
    waits = [{"name": "sglang", "state": {"waiting": {}}}, SIDECAR]
    wrong = {"type": "gb10.cluster/transport", "status": "False", "message": "TCP"}
    assert unproven(pod(containerStatuses=waits, conditions=[wrong])) == "its container sglang does not run. TCP"
    assert unproven(pod(containerStatuses=waits)) == "its container sglang does not run"
    server = pod()["status"]["containerStatuses"][0]
    for silent in ({"name": "transport", "state": {"waiting": {}}}, SIDECAR | {"ready": False}):
        said = unproven(pod(containerStatuses=[server, silent]))
        assert said == "its container transport does not run or does not answer"
    assert unproven(pod(conditions=None)) == "its sidecar has said nothing yet"
    said = pod()["status"]["conditions"][1]
    for status in ("False", "Unknown"):
        assert unproven(pod(conditions=[said | {"status": status, "message": "NCCL is on TCP"}])) == "NCCL is on TCP"
    assert unproven(pod(conditions=[said | {"status": "False"}])) == "no reason is known"
    assert unproven(pod(conditions=[said | {"lastTransitionTime": "2026-11-22T12:00:00Z"}])) == ""
    old = said | {"lastTransitionTime": "2026-11-22T11:59:59Z"}
    assert unproven(pod(conditions=[old])) == "it has proven nothing since its last start"


def test_metrics_are_in_prometheus_format() -> None:
    counted = {
        "rdma": {
            "rocep1s0f0v0": {"xmit_bytes": 7, "rcv_bytes": 8, "port_xmit_discards": 1, "sent_pkts": 4},
            "other": {"xmit_bytes": 9},
        },
        "net": {"net1": {"tx_bytes": 5, "rx_bytes": 6, "tx_packets": 2}, "eth0": {"tx_bytes": 3}},
    }
    links = {"net1": {"carrier_changes": 3, "speed": 200000}}
    condition = Condition(False, "WrongTransport", "text", "no_rdma_device")
    seen = Seen("", TCP, gids=frozenset([RAILS[0].address]), mtus={"net1": 9000})
    text = gate.render({"instance": 'g"\n', "rank": "1"}, condition, seen, 12.345, RAILS, counted, links)
    who = 'instance="g\\"\\n",rank="1"'
    assert f"gb10_transport_proven{{{who}}} 0\n" in text
    assert f"gb10_transport_verdict_age_seconds{{{who}}} 12.3\n" in text
    said = 'class="tcp",evidence="channels",reason="WrongTransport",cause="no_rdma_device"'
    assert f"gb10_transport_info{{{who},{said}}} 1\n" in text
    rail = 'rail="0",device="rocep1s0f0v0",interface="net1"'
    assert f'gb10_transport_rdma_bytes_total{{{who},{rail},direction="received"}} 8\n' in text
    assert f'gb10_transport_tcp_bytes_total{{{who},{rail},direction="sent"}} 5\n' in text
    assert f'gb10_transport_rdma_events_total{{{who},{rail},event="port_xmit_discards"}} 1\n' in text
    assert f"gb10_transport_link_changes_total{{{who},{rail}}} 3\n" in text
    assert f"gb10_transport_link_speed_bits_per_second{{{who},{rail}}} 200000000000\n" in text
    assert f'gb10_transport_gid_present{{{who},{rail},address="{RAILS[0].address}"}} 1\n' in text
    assert f'address="{RAILS[1].address}"}} 0\n' in text
    assert re.findall(r"gb10_transport_mtu_bytes\{.*\} (.*)", text) == ["9000"]
    # Packets are neither bytes nor errors.
    assert "packets" not in text
    assert "sent_pkts" not in text
    assert "eth0" not in text
    assert '"other"' not in text
    assert text.count("# TYPE gb10_transport_verdict_age_seconds gauge") == 1
    assert "gid_present" not in gate.render({}, condition, seen, 1, (), counted, links)
    down = {"net1": {"carrier_changes": 4, "speed": -1}}
    text = gate.render({}, condition, seen, 1, RAILS, {}, down)
    assert f"gb10_transport_link_speed_bits_per_second{{{rail}}} 0\n" in text
