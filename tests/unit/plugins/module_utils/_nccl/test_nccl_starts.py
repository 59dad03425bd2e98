# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a process that started again is told from other ranks, and that old lines prove nothing."""

import io
from contextlib import nullcontext

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation
from nccl_lines import (
    AGAIN,
    BARE,
    COLLECTED,
    DONE,
    IB,
    OLD_BARE,
    P2P,
    SOUND,
    START,
    channel,
    collected,
    init,
    judge,
    nodes,
    other,
    read,
    said,
)

SILENT = "NCCL says nothing since"


@pytest.mark.parametrize("form", ["{1}", "2026-11-22T10:00:00.1Z stdout F {1}", "(RayWorker pid=3) {1}", *COLLECTED])
def test_a_silent_start_is_found_after_the_text_of_a_collector(form: str) -> None:
    report = judge(collected(form, f"{SOUND}{BARE}\n"))
    assert any(SILENT in text for text in report.failures), report.failures
    # Another rank, which was not started again, goes on.
    two = said(*START, IB, *DONE, channel()) + said(
        IB, init("START", rank=1), init("COMPLETE", rank=1), channel(), host="s2"
    )
    assert judge(collected(form, two)).satisfied
    later = said(channel(), "Connected all trees", "comm 0x1 destroyed", host="s2")
    report = judge(collected(form, f"{two}{BARE}\n{later}"))
    assert any(SILENT in text for text in report.failures), report.failures
    # Up to 2.22, NCCL prints this line at INFO too, after the first line of rank 0.
    log = said("Bootstrap : Using eth0:10.0.0.1<0>") + f"{OLD_BARE}\n{SOUND}"
    assert judge(collected(form, log)).satisfied
    log += said("Bootstrap : Using eth0:10.0.0.1<0>", pid=2) + f"{OLD_BARE}\n" + said(IB, *AGAIN, channel(), pid=2)
    assert judge(collected(form, log)).satisfied
    # And so does a second copy of the library, in the same process.
    assert judge(collected(form, f"{SOUND}{OLD_BARE}\n" + said(IB, *other(1), channel()))).satisfied


@pytest.mark.parametrize("start", ["\x1b[36m(RayWorker pid=3)\x1b[0m ", "Loading: 100%\r", "INFO ready"])
def test_a_silent_start_is_found_after_other_text(start: str) -> None:
    assert any(SILENT in text for text in judge(f"{SOUND}{start}{BARE}\n").failures)


def test_a_torn_version_is_read() -> None:
    for version in ("2.28or(", "2.2000]", "2.2ocessGroupNCCL", f"2.{'9' * 5000}"):
        assert judge(f"NCCL version {version}\n{SOUND}").satisfied


def test_only_the_version_as_nccl_prints_it_is_a_silent_start() -> None:
    for line in (
        "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error, NCCL version 2.28.9",
        "why does it say NCCL version 2.28.9+cuda13.0 and nothing else?",
    ):
        assert not any(SILENT in text for text in judge(f"{SOUND}{line}\n").failures)


def test_a_silent_start_of_one_pod_is_not_taken_back_by_another() -> None:
    def pod(name: str, log: str) -> str:
        return collected(f"[pod/{name}/s] {{1}}", log)

    log = pod("a", SOUND) + pod("b", said(IB, init("START", rank=1), init("COMPLETE", rank=1), channel(), host="s2"))
    assert judge(log).satisfied
    again = pod("b", said(*START, IB, *AGAIN, channel(), host="s2", pid=2))
    assert any(SILENT in text for text in judge(f"{log}{pod('a', BARE)}{again}").failures)
    later = f"{pod('a', OLD_BARE)}{pod('a', said(IB, *AGAIN, channel()))}{pod('b', BARE)}"
    assert any(SILENT in text for text in judge(f"{log}{later}").failures)


def test_a_version_line_in_one_of_several_files_is_no_silent_start_if_a_set_up_follows() -> None:
    files = [
        said("cudaDriverVersion 13000", pid=n) + f"{OLD_BARE}\n" + said(IB, *AGAIN, channel(), pid=n) for n in (1, 2)
    ]
    assert [NcclLog.joined([read(text) for text in files[:number]]).mute for number in (1, 2)] == [False, False]
    again = NcclLog.joined([read(files[0]), read(f"{OLD_BARE}\n")])
    assert (again.mute, again.version) == (True, "2.20.5+cuda12.4")
    begun = said(IB, pid=3)
    assert not NcclLog.joined([read(SOUND), read(f"{begun}{OLD_BARE}\n{begun}")]).mute


def test_a_rank_that_goes_on_after_a_version_line_without_a_prefix_is_not_silent() -> None:
    begun = said(IB, pid=2)
    assert judge(f"{SOUND}{begun}{OLD_BARE}\n{begun}").satisfied
    for before in (SOUND + begun, begun + SOUND):
        assert not judge(f"{before}{OLD_BARE}\n").satisfied


def test_a_later_process_is_unready_while_others_go_on() -> None:
    log = said(*START) + SOUND + said(*START, pid=2) + said("Connected all trees")
    assert any(SILENT in text for text in judge(log).failures)
    # Rank 1 sets up its communicator after this start, so these lines may be those of one start.
    rank = init("START", rank=1), init("COMPLETE", rank=1), channel()
    assert not read(SOUND + said(*START, pid=2) + said(IB, *rank, host="s2")).mute


def test_what_a_process_prints_once_is_no_restart_even_after_its_channels() -> None:
    assert judge(SOUND + said("cudaDriverVersion 13000")).satisfied
    assert not judge(SOUND + said("cudaDriverVersion 13000") * 2).satisfied


def test_containers_with_one_name_are_ranks_and_no_restart() -> None:
    """``docker run --hostname worker``: every container has host worker and process 1."""
    log = said(*START, init("START", rank=0), channel("Socket"), host="worker")
    log += said(*START, init("START", rank=1), init("COMPLETE", rank=1), channel(), host="worker")
    report = judge(log)
    assert (report.verdict.verdict, len(report.earlier), report.satisfied) == ("mixed", 0, False)
    assert report.channels == {"IB": {"0": 1}, "Socket": {"0": 1}}


def test_each_of_many_containers_with_one_name_has_a_record_of_its_own() -> None:
    log = "".join(
        said(*START, IB, init("START", rank=rank, nranks=9), init("COMPLETE", rank=rank, nranks=9), channel())
        for rank in range(9)
    )
    report = judge(log)
    assert sorted(process.rank for process in report.processes) == list(range(9))
    assert report.satisfied, report.failures


def test_two_processes_of_one_start_on_one_gpu_both_count() -> None:
    after = said(IB, *AGAIN, channel(), pid=2)
    assert judge(said("Using network Socket", *DONE) + after).verdict.verdict == "mixed"
    inside = (init("START"), nodes(1), init("COMPLETE"))
    assert len(judge(said("Using network Socket", *inside) + after).earlier) == 1
    log = said(*DONE, channel("Socket")) + said(IB, *AGAIN, channel(), pid=2)
    files = {"pod": [nullcontext(io.BytesIO(log.encode()).read)]}
    # In one text, only a version line or the start of a server tells that the later one replaced the earlier one.
    assert judge_sources(files, Expectation(), {})[0]["verdict"] == "mixed"
    files = {"pod": [nullcontext(io.BytesIO(log.encode()).read)]}
    assert judge_sources(files, Expectation(), {}, one_start=True)[0]["verdict"] == "mixed"
    twice = said(*START, *DONE, channel("Socket"), *START, IB, *AGAIN, channel())
    files = {"pod": [nullcontext(io.BytesIO(twice.encode()).read)]}
    assert judge_sources(files, Expectation(), {}, one_start=True)[0]["verdict"] == "mixed"


@pytest.mark.parametrize("pid", [1, 2], ids=["same process number", "another"])
@pytest.mark.parametrize(
    "before",
    [(*DONE, channel("Socket")), ("Using network Socket", *DONE), (*DONE, channel("FastSocket"))],
    ids=["channels", "only selected", "plugin"],
)
def test_after_a_restart_from_tcp_to_rdma_the_last_start_counts(before: tuple[str, ...], pid: int) -> None:
    report = judge(said(*START, *before) + said(*START, IB, *AGAIN, channel(), pid=pid))
    assert (report.verdict.verdict, report.satisfied, len(report.earlier)) == ("ib", True, 1)


@pytest.mark.parametrize("second", ["0x7", "0x6"], ids=["of one group", "of two groups"])
def test_a_process_on_two_gpus_replaces_one_on_each(second: str) -> None:
    def on(gpu: int, pid: int, network: str, shared: str) -> str:
        comm = f"0x{gpu + 1}"
        return said(*(init(w, comm, gpu, 2, shared, gpu) for w in ("START", "COMPLETE")), channel(network), pid=pid)

    earlier = said(*START, pid=1) + on(0, 1, "Socket", "0x7") + said(*START, pid=2) + on(1, 2, "Socket", second)
    report = judge(earlier + said(*START, pid=3) + on(0, 3, "IB", "0x8") + on(1, 3, "IB", "0x8"))
    assert (report.verdict.verdict, len(report.as_dict()["earlier_starts"])) == ("ib", 2)


@pytest.mark.parametrize("pid", [1, 2], ids=["same process number", "another"])
def test_a_start_with_another_commid_is_a_restart(pid: int) -> None:
    for before in ((*DONE, channel()), (*DONE, P2P), (init("START"),)):
        report = judge(said(*START, *before) + said(*START, IB, *AGAIN, channel(), pid=pid))
        assert (report.satisfied, len(report.earlier)) == (True, 1), report.failures
    # The other way round there is no doubt.
    for again in (AGAIN, AGAIN[1:]):
        report = judge(said(*START, IB, *DONE, channel()) + said(*START, *again, channel("Socket"), pid=pid))
        assert (report.verdict.verdict, len(report.earlier)) == ("socket", 1)
