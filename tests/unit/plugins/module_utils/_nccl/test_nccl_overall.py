# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import io
from contextlib import nullcontext

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.statements import is_tcp
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import (
    Expectation,
    expectation,
    is_final,
    judge_all,
    nothing_read,
)
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report as judge


def log(*lines: str) -> NcclLog:
    text = "".join(f"s1:1:1 [0] NCCL INFO {line}\n" for line in lines)
    return NcclLog().read(io.BytesIO(text.encode()).read)


DONE = "comm 0x1 rank 0 nranks 2 cudaDev 0 busId f000 - Init COMPLETE"
NODES = "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
DEAD = "s1:1:1 [0] net.cc:9 NCCL WARN Error: network IB not found.\n"
BOTH = [f"Channel 0{n}/0 : 0[0] -> 1[0] [send] via NET/IB/{n % 2}" for n in range(4)]

EXT = BOTH[0].replace("IB", "IBext_v8")


@pytest.mark.parametrize(
    ("expect", "lines", "failure"),
    [
        (Expectation(min_devices=2), BOTH[:1], "s1 uses 1 of 2 devices"),
        (Expectation(min_devices=2), [DONE, BOTH[0]], "rank 0 uses 1 of 2 devices"),
        (Expectation(complete=True), BOTH, "no communicator is seen to finish its set-up"),
        (Expectation(complete=True), [NODES, *BOTH], "no communicator is seen to finish its set-up"),
        (Expectation(gdr=True), BOTH, "without GPUDirect RDMA"),
        (Expectation(gdr=False), [BOTH[0] + "/GDRDMA"], "with GPUDirect RDMA"),
        (Expectation(nodes=2), BOTH, "0 of 2 nodes"),
        (Expectation(ranks=2), BOTH, "1 of 2 ranks"),
        (Expectation(networks=("IBext*",)), [*BOTH, EXT], "IB where IBext* is expected"),
        (Expectation(networks=("IB",)), [*BOTH, EXT], "IBext_v8 where IB is expected"),
        (Expectation(), ["Using network IB"], "only the selection says so"),
    ],
)
def test_an_expectation_that_the_log_does_not_meet_is_named(
    expect: Expectation, lines: list[str], failure: str
) -> None:
    report = judge(log(*lines), "x", expect)
    assert not report.satisfied
    assert any(failure in text for text in report.failures), report.failures


def test_a_silent_log_says_nothing() -> None:
    assert judge(log(), "x").failures == ["nothing in the log says which transport NCCL took"]


def test_an_expectation_that_the_log_meets_passes() -> None:
    both = log("Using network IB", DONE, *BOTH)
    report = judge(both, "x", Expectation(min_devices=2, gdr=False, networks=("IB",)))
    assert report.satisfied and report.msg == "x: ib (NET/IB/0 x2, NET/IB/1 x2)"
    assert judge(log("Using network IB", DONE), "x", Expectation(evidence="selection")).satisfied
    assert judge_all({"x": log()}, Expectation(allow_unknown=True))["failures"] == []
    assert judge(log("Using network UCX", DONE, f"{BOTH[0]}/GDRDMA".replace("IB", "UCX")), "x").failures == []


def test_devices_that_nccl_overrides_are_not_counted_as_used() -> None:
    text = log(*BOTH, "NET/IB: Subnet-aware routing: overriding dev 1 with dev 0")
    assert [judge(text, "x", Expectation(min_devices=least)).satisfied for least in (1, 2)] == [True, False]


def test_sources_must_agree_and_the_weakest_evidence_counts() -> None:
    both = judge_all({"a": log(*BOTH), "b": log("Using network Socket")}, Expectation())
    assert (both["verdict"], both["evidence"], both["satisfied"]) == ("mixed", "selection", False)
    assert both["failures"][0] == "the ranks use different transports: a NET/IB/0 x2, NET/IB/1 x2, b socket"
    assert both["failures"][1] == "b: socket is TCP, and RDMA is expected"
    assert f" (and {len(both['failures']) - 1} more)" in both["msg"]
    two = judge_all({"a": log(*BOTH)}, Expectation(ranks=2, nodes=2))
    assert two["msg"] == "NCCL transport ib: 1 of 2 ranks were seen (and 1 more)"
    lone = judge_all({"a": log("NET/IB : No device found.", BOTH[0].replace("IB", "Socket"))}, Expectation())
    found = f"Probable cause: {lone['causes'][0]['summary']}. {lone['causes'][0]['remedy']}"
    assert lone["msg"] == f"NCCL transport socket: a: socket is TCP, and RDMA is expected. {found}"
    assert [len(both[key]) for key in ("ranks", "sources")] == [2, 2]
    assert [(one["source"], one["ranks"], one["verdict"]) for one in both["sources"]] == [
        ("a", 1, "ib"),
        ("b", 1, "socket"),
    ]
    for network, verdict in (("IB", "unknown"), ("Socket", "socket")):
        silent = judge_all({"a": log(), "b": log(BOTH[0].replace("IB", network))}, Expectation())
        assert (silent["verdict"], silent["evidence"], silent["satisfied"]) == (verdict, "none", False)
    assert judge_all({}, Expectation())["failures"] == ["there was no log to read"]
    parts = {"a": log(*BOTH, BOTH[0].replace("IB", "Socket")), "b": NcclLog().read(io.BytesIO(DEAD.encode()).read)}
    assert judge_all(parts, Expectation())["verdict"] == "error"
    failures = judge_all({"a": parts["a"], "c": log(*BOTH)}, Expectation())["failures"]
    assert failures == ["a: ranks or communicators use different transports (IB, Socket)"]
    # Where a plugin may be anything, it is another transport than RDMA.
    assert judge(log(*BOTH, BOTH[0].replace("IB", "UCX")), "x").verdict.verdict == "mixed"
    begun = DONE.replace("COMPLETE", "START")
    late = judge_all({"a": log(DONE, *BOTH), "b": log(begun, *BOTH, "NET/IB : No device found.")}, Expectation())
    assert (late["complete"], [cause["id"] for cause in late["causes"]]) == (False, ["no_rdma_device"])


def test_waiting_ends_when_the_verdict_cannot_improve() -> None:
    assert is_final(judge_all({"a": log("Using network IB", DONE, *BOTH)}, Expectation()))
    assert is_final(judge_all({"a": log(BOTH[0].replace("IB", "Socket"))}, Expectation()))
    assert not is_final(judge_all({"a": log("Using network IB")}, Expectation()))
    dead = judge_all({"a": NcclLog().read(io.BytesIO(DEAD.encode()).read)}, Expectation())
    assert (is_final(dead), dead["failures"]) == (True, ["a: NCCL failed before it chose a transport"])
    assert not is_final(judge_all({}, Expectation()))
    assert not is_final(judge_all({"a": log("Using network IB", DONE, *BOTH)}, Expectation(ranks=2)))


def test_expectations_are_checked() -> None:
    assert expectation({"networks": ["IB"], "gdr": None}) == Expectation(networks=("IB",))
    with pytest.raises(ValueError, match="unknown expectation: rank"):
        expectation({"rank": 2})
    with pytest.raises(ValueError, match="evidence must be one of"):
        expectation({"evidence": "hearsay"})


def member(rank: int, nranks: int, shared: str, *lines: str) -> NcclLog:
    begun = (
        f"ncclCommInitRank comm 0x1 rank {rank} nranks {nranks} cudaDev 0 nvmlDev 0 busId f000 commId {shared} - Init"
    )
    return log(f"{begun} START", *lines, *BOTH, f"{begun} COMPLETE")


def test_ranks_of_several_groups_are_counted_apart() -> None:
    groups = {f"pod-{n}": member(n % 2, 2, "0xa" if n < 2 else "0xb") for n in range(4)}
    assert judge_all(groups, Expectation(ranks=4))["satisfied"]
    assert "2 of 4 ranks were seen" in judge_all(dict(list(groups.items())[:2]), Expectation(ranks=4))["failures"]


def test_a_pass_names_the_troubles_of_all_sources() -> None:
    found = judge_all({"a": log(DONE, *BOTH), "b": log(DONE, *BOTH, "Cuda failure 2 'out of memory'")}, Expectation())
    assert (found["satisfied"], found["healthy"]) == (True, False)
    assert found["msg"].endswith("proved by channels; not healthy: cuda_failure")


def test_a_process_of_several_gpus_is_several_ranks() -> None:
    begun = (
        "ncclCommInitAll comm 0x{0} rank {0} nranks 4 cudaDev {0} nvmlDev {0} busId {0}000 commId 0x7 - Init COMPLETE"
    )
    assert judge(
        log(*(line.format(n) for n in (0, 1) for line in ("Using network IB", begun)), *BOTH), "x", Expectation(ranks=2)
    ).satisfied


def test_a_pod_has_to_run_the_rank_of_its_place() -> None:
    logs = {"pod-0": member(1, 2, "0xa"), "pod-1": member(0, 2, "0xa")}
    assert judge_all(logs, Expectation())["satisfied"]
    assert judge_all(logs, Expectation(), {"pod-0": 1, "pod-1": 0})["satisfied"]
    wrong = judge_all(logs, Expectation(), {"pod-0": 0, "pod-1": 1})
    assert wrong["failures"] == [
        "pod-0 has place 0 and runs rank 1 of NCCL",
        "pod-1 has place 1 and runs rank 0 of NCCL",
    ]
    # Ranks of a communicator for a part of the group do not show the rank in the whole group.
    apart = {f"pod-{n}": member(n % 2, 2, "0xa" if n < 2 else "0xb") for n in range(4)}
    assert judge_all(apart, Expectation(), {f"pod-{n}": n for n in range(4)})["satisfied"]


def test_mtus_that_differ_between_pods_are_reported() -> None:
    qp = "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 305 mtu {} GID 3 (0/164640AFFFF0000)"
    causes = judge_all({"a": log(qp.format(3), *BOTH), "b": log(qp.format(5), *BOTH)}, Expectation())["causes"]
    assert [(cause["id"], "mtu 3" in cause["line"]) for cause in causes] == [("mtu_differs", True)]
    assert [cause["id"] for cause in judge(log(qp.format(5), qp.format(3), *BOTH), "x").causes] == ["mtu_differs"]
    assert judge_all({"a": log(qp.format(5), *BOTH), "b": log(qp.format(5), *BOTH)}, Expectation())["causes"] == []
    # The cause of one source is not named again for all of them.
    two = {"a": log("NET/IB : No device found."), "b": log(qp.format(5), qp.format(3), *BOTH)}
    assert sorted(cause["id"] for cause in judge_all(two, Expectation())["causes"]) == ["mtu_differs", "no_rdma_device"]


def test_every_communicator_has_its_own_verdict() -> None:
    begun = "ncclCommInitRank comm {0} rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 commId {0} - Init COMPLETE"
    report = judge(
        log(begun.format("0xa"), *BOTH, *[f"{BOTH[0]}/GDRDMA"] * 2, "Using network Socket", begun.format("0xb")), "x"
    )
    (rank,) = report.as_dict()["ranks"]
    assert (rank["rank"], rank["gdr_channels"]) == (0, 2)
    keys = ("verdict", "transport_class", "evidence", "gdr_channels")
    assert [[c[key] for key in keys] for c in rank["communicators"]] == [
        ["ib", "rdma", "channels", 2],
        ["socket", "tcp", "selection", 0],
    ]


def test_a_communicator_over_two_networks_is_mixed() -> None:
    report = judge(log(DONE, BOTH[0], BOTH[0].replace("IB", "Socket")), "x")
    assert report.msg.startswith("x: mixed (NET/IB/0 x1, NET/Socket/0 x1): ")
    (rank,) = report.as_dict()["ranks"]
    assert [c["verdict"] for c in rank["communicators"]] == ["mixed"]
    (rank,) = judge(log("Using network Socket", DONE, BOTH[0]), "x").as_dict()["ranks"]
    assert [c["verdict"] for c in rank["communicators"]] == ["ib"]


def test_channels_that_another_thread_writes_are_those_of_the_only_communicator() -> None:
    text = f"s1:1:1 [0] NCCL INFO {DONE}\n" + "".join(f"s1:1:9 [0] NCCL INFO {line}\n" for line in BOTH)
    (rank,) = judge(NcclLog().read(io.BytesIO(text.encode()).read), "x").as_dict()["ranks"]
    assert [(c["verdict"], c["channels"]) for c in rank["communicators"]] == [("ib", {"IB": {"0": 2, "1": 2}})]


def test_a_communicator_inside_a_node_proves_nothing_by_its_selection() -> None:
    begun = "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 commId 0xa - Init"
    inside = "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"
    for lines, verdict in ((("Using network IB", f"{begun} START"), "ib"), ((f"{begun} START", inside), "unknown")):
        (rank,) = judge(log("Using network IB", *lines, f"{begun} COMPLETE"), "x").as_dict()["ranks"]
        assert rank["communicators"][0]["verdict"] == verdict


def test_a_torn_number_of_ranks_costs_no_memory() -> None:
    line = "ncclCommInitRank comm 0x1 rank 0 nranks 212345678901234 cudaDev 0 nvmlDev 0 busId 6000 commId 0x1 - Init"
    line += " COMPLETE"
    assert not judge(log(line), "x").satisfied


@pytest.mark.parametrize(
    ("given", "source"),
    [({}, "text"), ({"own_files": True}, "files"), ({"one_start": True}, "files")],
    ids=["text", "files", "files of one start"],
)
def test_the_result_says_whether_it_rests_on_a_text_or_on_files_of_nccl(given: dict[str, bool], source: str) -> None:
    text = "".join(f"s1:1:1 [0] NCCL INFO {line}\n" for line in BOTH)
    result, kept = judge_sources({"a": [nullcontext(io.BytesIO(text.encode()).read)]}, Expectation(), {}, **given)
    assert b"".join(kept["a"]).decode() == text
    assert result["source"] == source
    assert ("can forge it" in result["remark"]) is (source == "text")
    # An excerpt shows RDMA. A file is whole, so a communicator that was set up is missing in it.
    assert result["satisfied"] is (source == "text")
    assert result["verdict"] == "ib"


def test_one_text_among_files_is_a_text() -> None:
    assert judge_all({"a": NcclLog(own_files=True), "b": log()}, Expectation())["source"] == "text"


@pytest.mark.parametrize(
    ("network", "tcp"), [("FastSocket", True), ("fastsocket", True), ("SOCKET", True), ("ib", False)]
)
def test_nccl_accepts_the_name_of_a_network_in_any_case(network: str, tcp: bool) -> None:
    assert is_tcp(network) is tcp


def test_the_second_process_of_a_text_is_judged_too() -> None:
    lines = [*(f"s1:1:1 [0] NCCL INFO {line}\n" for line in BOTH), *[f"s2:1:1 [0] NCCL INFO {BOTH[0]}/GDRDMA\n"] * 2]
    given = {"a": [nullcontext(io.BytesIO("".join(lines).encode()).read)]}
    result, _kept = judge_sources(given, Expectation(min_devices=2), {"a": 0})
    assert result["failures"] == ["rank 0 (a): s2 uses 1 of 2 devices (NET/IB/0 x2)"]
    assert ([rank["pod"] for rank in result["ranks"]], result["sources"][0]["gdr_channels"]) == (["a", "a"], 2)


def test_no_log_is_no_text() -> None:
    assert (nothing_read("no file")["source"], nothing_read("no file")["remark"]) == ("files", "")


@pytest.mark.parametrize(
    ("torn", "verdict"), [("", "intra"), ("s1:2:2 [1] NCCL INFO Channel 01/0 : 1[1] -> ", "unknown")]
)
def test_a_torn_path_of_a_later_process_is_no_path_inside_the_node(torn: str, verdict: str) -> None:
    ends = ("1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1]", "2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0]")
    text = "".join(f"s1:{end} via P2P/CUMEM\n" for end in ends) + torn
    report = judge(NcclLog().read(io.BytesIO(text.encode()).read), "x", Expectation())
    assert (report.verdict.verdict, report.as_dict()["intra"]) == (verdict, {"P2P/CUMEM": 2})
