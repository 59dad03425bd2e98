# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test logs in which something is missing that a pass needs: a communicator's end, a rank, the start of a line."""

import io
from contextlib import nullcontext

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation
from nccl_lines import DONE, IB, INTRA, P2P, SOUND, START, channel, init, judge, nodes, other, read, said

CONNECTED = "Connected all rings, use ring PXN 0 GDR 0"
HUNG = said(init("START", "0x2", shared="0x8"))


@pytest.mark.parametrize("line", [CONNECTED, CONNECTED.replace("rings", "trees")])
@pytest.mark.parametrize("one_start", [False, True])
def test_a_line_that_names_no_communicator_does_not_finish_one_that_was_begun(line: str, one_start: bool) -> None:
    text = SOUND + HUNG + said(line)
    report, _log = judge_sources({"pod": [nullcontext(io.BytesIO(text.encode()).read)]}, Expectation(), {}, one_start)
    assert not report["satisfied"]
    assert "1 of 2 communicators never finished their set-up" in report["msg"]


def test_a_communicator_whose_address_is_used_again_before_it_finished_is_counted() -> None:
    again = said(init("START", "0x2", shared="0x9"), init("COMPLETE", "0x2", shared="0x9"))
    assert judge(SOUND + said(init("START", "0x2", nranks=1, shared="0x8")) + again).satisfied
    later = "".join(said(IB, *other(number), channel()) for number in range(300))
    # Of those that are dropped, only TCP that was chosen and not used is a doubt.
    inside = (init("START"), nodes(1), init("COMPLETE"))
    for dropped in (
        ("Using network Socket", *DONE, channel()),
        ("Using network Foo", *DONE),
        ("Using network Socket", *inside),
    ):
        assert judge(said(*dropped) + later).satisfied
    assert judge(SOUND + again).satisfied
    for hung, complete in (
        (HUNG + again, True),
        ((HUNG + again).replace("s1:1:1", "s2:2:2"), True),
        (said(IB, init("START", rank=1), nodes(2, rank=1), channel(), host="s2"), False),
    ):
        report = judge(SOUND + hung)
        assert report.failures == ["1 of 2 communicators never finished their set-up"]
        assert report.complete is complete


def test_a_release_that_prints_neither_start_nor_complete_finishes_with_connected() -> None:
    old = said("comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0", channel(), CONNECTED)
    assert judge(old, Expectation(complete=True)).satisfied
    # The number of lines before the last one of such a rank says nothing about the start of another process.
    parent = said("comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0") + said(*START, pid=2)
    assert judge(parent + old).satisfied


def test_a_line_that_names_no_communicator_connects_the_last_one() -> None:
    log = said(nodes(2), nodes(2, "0x2")) + said(CONNECTED).replace("s1:1:1", "s1:1:9")
    (process,) = read(log).processes
    assert [each.connected for each in process.communicators.values()] == [False, True]


@pytest.mark.parametrize("end", ["", "\n", "\nlater\n"])
@pytest.mark.parametrize("words", ["Fatal Python error: Segmentation fault", "Caught signal 11 (Segmentation fault)"])
def test_the_last_words_of_a_log_are_read_with_and_without_a_line_end(words: str, end: str) -> None:
    assert judge(f"{SOUND}{words}{end}").troubles == ["segfault"]


@pytest.mark.parametrize("host", ["worker", ""])
def test_a_missing_rank_is_found_also_if_all_nodes_have_the_same_name(host: str) -> None:
    ranks = [
        said(
            IB,
            init("START", rank=rank, nranks=3),
            nodes(3, rank=rank, nranks=3),
            init("COMPLETE", rank=rank, nranks=3),
            channel(),
            host=host,
            pid=rank + 1,
        )
        for rank in range(3)
    ]
    assert judge("".join(ranks)).satisfied
    torn = ranks[0].replace(said(nodes(3, nranks=3), host=host), "")
    for first in (ranks[0], torn):
        assert judge(first + ranks[1]).failures == ["2 of 3 ranks of a communicator were seen"]
    # The log of one node need not contain the ranks of the others.
    assert judge(ranks[0]).satisfied


@pytest.mark.parametrize(
    ("evidence", "line"),
    [("selection", "Using network IB"), ("banner", "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB e:1")],
)
def test_a_promise_without_a_finished_communicator_proves_nothing(evidence: str, line: str) -> None:
    expect = Expectation(evidence=evidence)  # type: ignore[arg-type]
    assert not judge(said(line), expect).satisfied
    assert not judge(f"user said: NCCL INFO {line}\n", expect).satisfied
    assert not judge("".join(f"NCCL INFO {text}\n" for text in (line, *DONE)), expect).satisfied
    assert judge(said(line, *DONE), expect).satisfied


INSIDE = said(IB, init("START"), nodes(1), init("COMPLETE"), P2P)


@pytest.mark.parametrize(
    "text",
    [INSIDE + "via NET/So\n", said(P2P), f"NCCL INFO {P2P}\n", INSIDE + HUNG],
    ids=["a torn line without a prefix", "no communicator", "no process", "an unfinished communicator"],
)
def test_paths_inside_a_node_need_a_sound_log_too(text: str) -> None:
    assert judge(INSIDE, INTRA).satisfied
    # A second communicator at the address of the first one, which is dropped.
    assert judge(INSIDE + INSIDE, INTRA).satisfied
    assert not judge(text, INTRA).satisfied


def test_nvlink_between_nodes_is_no_network_once_a_rank_names_its_path() -> None:
    comm = (init("START"), nodes(2).replace("MNNVL 0", "MNNVL 1"), init("COMPLETE"))
    assert [judge(said(*comm, *path), INTRA).verdict.verdict for path in ((P2P,), ())] == ["intra", "unknown"]


def test_paths_inside_a_node_may_be_those_of_any_rank_and_no_rank_may_leave_it() -> None:
    quiet = said(init("START"), nodes(1), init("COMPLETE"))
    second = said(init("START", rank=1), nodes(1, rank=1), init("COMPLETE", rank=1), P2P, pid=2)
    assert judge(quiet + second, INTRA).verdict.verdict == "intra"
    # A process of another host has only begun.
    assert judge(said(*START, host="s2") + second, INTRA).verdict.verdict == "intra"
    assert judge(said(P2P) + said(P2P, host="s2"), INTRA).verdict.verdict == "unknown"
    leaves = said(init("START", "0x2", shared="0x8"), nodes(2, "0x2"), init("COMPLETE", "0x2", shared="0x8"), pid=3)
    assert judge(second + leaves, INTRA).verdict.verdict == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        INSIDE + said(*other(1), channel()),
        SOUND + said(init("START", "0x2", nranks=1, shared="0x8")),
        said(nodes(2), channel()),
    ],
    ids=["a communicator inside the node before", "a communicator of one rank", "an excerpt without starts"],
)
def test_a_communicator_that_needs_no_network_or_no_end_takes_no_pass_away(text: str) -> None:
    report = judge(text)
    assert (report.failures, report.complete) == ([], True)


def test_a_rank_that_has_used_no_channel_yet_has_to_name_its_network() -> None:
    idle = (init("START", rank=1), nodes(2, rank=1), init("COMPLETE", rank=1))
    assert judge(SOUND + said("Using network IB", *idle, host="s2")).satisfied
    local = init("START", "0x9", 1, shared="0x9"), nodes(1, "0x9", 1), init("COMPLETE", "0x9", 1, shared="0x9")
    two = said(*local, *idle, host="s2") + said(*idle, host="s3")
    assert judge(SOUND + two).failures == ["rank 1 (s2:1) names no network and no other path"]


def test_files_of_nccl_prove_nothing_about_a_process_without_a_name() -> None:
    bare = SOUND.replace("s1:1:1 ", "")
    assert judge(bare, Expectation(ranks=1)).satisfied
    report, _log = judge_sources(
        {"pod": [nullcontext(io.BytesIO(bare.encode()).read)]}, Expectation(), {}, own_files=True
    )
    assert "no process with a name (host:pid) and channel lines" in report["msg"]
    files = {"pod": [nullcontext(io.BytesIO(SOUND.encode()).read)]}
    assert judge_sources(files, Expectation(), {}, own_files=True)[0]["satisfied"]


@pytest.mark.parametrize("network", ["UCX", "AWS Libfabric"])
def test_a_torn_line_takes_the_pass_of_any_network_away(network: str) -> None:
    sound = said(f"Using network {network}", *DONE, channel(network))
    expect = Expectation(networks=(network,))
    assert judge(sound, expect).satisfied
    assert "a torn channel line may hide TCP" in judge(sound + said(f"{channel()[:-4]}So", pid=2), expect).msg


def test_a_tcp_line_that_ran_into_another_one_counts() -> None:
    joined = said(*DONE, f"{channel()}Channel 01/0 : 1[0] -> 0[0] via NET/Socket/0")
    assert judge(joined).verdict.transport_class in ("tcp", "mixed")
    assert judge(SOUND + joined).verdict.transport_class == "mixed"


@pytest.mark.parametrize("fragment", ["ia NET/Socket/0", "NET/Socket/0", "d] via NET/FastSocket/1"])
def test_the_end_of_a_tcp_line_counts_in_nccl_s_own_files(fragment: str) -> None:
    stream = io.BytesIO(f"{SOUND}{fragment}\n".encode())
    report, _log = judge_sources({"pod": [nullcontext(stream.read)]}, Expectation(networks=("IB",)), {}, True)
    assert not report["satisfied"]


@pytest.mark.parametrize("fragment", ["ia NET/Socket/0", "NET/Socket/0", "a NET/FastSocket/1"])
def test_the_end_of_a_tcp_line_alone_in_a_line_takes_the_pass_away(fragment: str) -> None:
    for end in ("\n", ""):
        report = judge(f"{SOUND}{fragment}{end}")
        assert (report.satisfied, report.as_dict()["gdr_channels"]) == (False, 0)


def test_a_sentence_that_names_socket_fails_no_sound_log() -> None:
    assert judge(f"{SOUND}why does NCCL print NET/Socket/0 here?\n").satisfied


@pytest.mark.parametrize("collector", ["", "2026-11-22T10:00:00.1Z stdout F "])
@pytest.mark.parametrize("time_before", ["", "[2026-11-22 10:00:00] "])
def test_a_warning_counts_with_the_time_that_nccl_writes_before_it(collector: str, time_before: str) -> None:
    failed = "transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with error 12, opcode 1"
    sound = "".join(f"{collector}{line}\n" for line in SOUND.splitlines())
    report = judge(f"{sound}{collector}{time_before}s1:1:1 [0] {failed}\n")
    assert "the transport failed later (completion_retry)" in report.failures


@pytest.mark.parametrize("first", [channel(), P2P])
@pytest.mark.parametrize("rest", ["NET/Socke", "NET/", "N", "NET/Socket/0"])
def test_the_end_of_a_line_that_another_one_ran_into_takes_the_pass_away(first: str, rest: str) -> None:
    joined = f"{first}0[0] -> 1[0] [send] via "
    assert not judge(said(IB, *DONE, channel(), joined + rest)).satisfied
    assert judge(said(IB, *DONE, channel(), f"{joined}NET/IB/1")).satisfied


@pytest.mark.parametrize("rest", ["0] [send] via NET/So", "0] -> 1[0] [send] via", "via NET/Socket/0"])
def test_a_channel_line_without_its_start_takes_the_pass_away(rest: str) -> None:
    assert not judge(SOUND + said(rest, pid=2)).satisfied


@pytest.mark.parametrize("line", [init("START"), channel(), IB, P2P, "NCCL_IB_DISABLE set by environment to 1."])
def test_a_process_that_says_anything_about_communication_is_listed(line: str) -> None:
    assert [rank["pid"] for rank in judge(said(line)).as_dict()["ranks"]] == ["1"]


def test_the_second_process_and_communicator_may_be_those_that_finish() -> None:
    alone = init("COMPLETE", "0x9", nranks=1, shared="0x9")
    assert judge(said(alone, IB, *DONE, channel()), Expectation(nodes=2, complete=True)).satisfied
    assert judge(said(*START) + said(IB, *DONE, host="s2"), Expectation(evidence="selection")).satisfied


def test_a_process_that_only_starts_is_no_rank() -> None:
    assert judge(said(channel()) + said(channel(), host="s2"), Expectation(ranks=2)).satisfied
    text = said(channel()) + said(*START, pid=2)
    report = judge(text, Expectation(ranks=2))
    assert (report.failures, len(report.as_dict()["ranks"])) == (["1 of 2 ranks were seen"], 1)
    # Its version is that of the others.
    assert report.version == "2.28.9+cuda13.0"


def test_an_unknown_network_of_an_idle_communicator_is_no_other_transport() -> None:
    assert judge(SOUND + said("Using network Foo", *other(2))).verdict.verdict == "ib"
    # One that is used names the verdict.
    plugin = said(*DONE, *[channel("IBext_v8")] * 3) + said(IB, *other(2), host="s2")
    assert judge(plugin).verdict.verdict == "plugin:IBext_v8"


def test_all_communicators_of_an_old_release_span_the_hosts_that_are_seen() -> None:
    log = "".join(
        said(*(init("COMPLETE", comm, rank, shared=comm) for comm in ("0x1", "0x2")), host=f"s{rank}")
        for rank in (0, 1)
    )
    assert [comm.nodes for process in read(log).processes for comm in process.communicators.values()] == [2] * 4
    # A torn number: these are not both ranks of two, so another host may have the other one.
    torn = "".join(said(init("COMPLETE", rank=rank, device=rank), pid=rank) for rank in (1, 2))
    nameless = "".join(said(init("COMPLETE", rank=rank, device=rank), host="", pid=rank) for rank in (0, 1))
    no_device = said(init("COMPLETE")) + said("comm 0x1 rank 1 nranks 2 commId 0x7 - Init COMPLETE", pid=2)
    for log in (torn, nameless, no_device):
        assert [comm.nodes for process in read(log).processes for comm in process.communicators.values()] == [0] * 2
