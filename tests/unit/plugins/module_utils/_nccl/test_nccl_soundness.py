# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test logs that must not pass, or must not fail. An earlier version judged each of them wrongly."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.statements import Via, read_statement, read_via
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, expectation, judge_all
from nccl_lines import (
    COLLECTED,
    DONE,
    HALF,
    IB,
    P2P,
    SOUND,
    channel,
    collected,
    init,
    judge,
    nodes,
    other,
    read,
    said,
)


def test_the_sound_log_passes() -> None:
    assert judge(SOUND).satisfied
    assert judge(SOUND, Expectation(networks=("IB",), nodes=2, complete=True)).satisfied


COLLNET = "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0"


def no_pass() -> Iterator[tuple[str, tuple[str, Expectation, str]]]:
    """Yield the cases of no_pass.txt: ``### what it is``, ``=== expectation a part of the reason``, and a log."""
    text = (Path(__file__).parents[3] / "fixtures/nccl/no_pass.txt").read_text(encoding="utf-8")
    for block in text.split("### ")[1:]:
        name, expected, log = block.split("\n", 2)
        given, end = json.JSONDecoder().raw_decode(expected.removeprefix("=== "))
        yield name, (log, expectation(given), expected[4 + end :].strip())


NO_PASS = dict(no_pass()) | {
    "63 of 64 ranks": (
        "".join(
            said(IB, init("COMPLETE", rank=rank, nranks=64), channel(), host=f"s{rank // 8}", pid=rank)
            for rank in range(63)
        ),
        Expectation(),
        "63 of 64 ranks of a communicator were seen",
    ),
    "an idle communicator over TCP before many others": (
        said("Using network Socket", *DONE)
        + "".join(said("Using network IB", *other(n), channel()) for n in range(300)),
        Expectation(),
        "different transports",
    ),
}


@pytest.mark.parametrize("name", NO_PASS)
def test_no_pass(name: str) -> None:
    log, expect, why = NO_PASS[name]
    report = judge(log, expect)
    assert not report.satisfied
    assert any(why in text for text in report.failures), report.failures


@pytest.mark.parametrize("form", COLLECTED)
def test_text_that_a_collector_puts_before_every_line_changes_nothing(form: str) -> None:
    lines = [form.format(number, line) for number, line in enumerate(SOUND.splitlines())]
    report = judge("\n".join(lines) + "\n")
    assert (report.satisfied, [process.host for process in report.processes]) == (True, ["s1"])
    assert judge("Loading: 50%|###  | 1/2\r" + SOUND).as_dict() == judge(SOUND).as_dict()


@pytest.mark.parametrize("form", COLLECTED)
@pytest.mark.parametrize("name", [name for name, case in NO_PASS.items() if len(case[0]) < 5000])
def test_no_pass_with_text_of_a_collector_either(name: str, form: str) -> None:
    log, expect, _why = NO_PASS[name]
    assert not judge(collected(form, log), expect).satisfied


@pytest.mark.parametrize(
    "end", ["[send] via NET/Soc", "[send] via NET/", "[send] via N", "[send] v", "[se", "via NET/Fast"]
)
def test_a_torn_line_may_hide_tcp_when_another_host_continues_it(end: str) -> None:
    torn = said(f"Channel 00/0 : 0[0] -> 1[0] {end}").rstrip("\n") + said(channel(), host="spark2", pid=2)
    assert judge(SOUND + torn).failures == ["a torn channel line may hide TCP; read the log again"]
    whole = said(f"{HALF}IB").rstrip("\n") + said(channel(), host="spark2", pid=2)
    assert judge(SOUND + whole).satisfied
    # What is TCP already needs no doubt.
    tcp = said(*DONE, channel("Socket"))
    assert judge(tcp + torn.partition(channel())[0]).failures == judge(tcp).failures


def test_only_a_line_that_ends_too_early_is_torn() -> None:
    assert asdict(read_via("NET/IB/0/GDRDMA via a proxy")) == asdict(Via("IB", "0", gdr=True))
    kinds = [read_statement(text).kind for text in ("Ring 00 : 0[0] -> 1[0] [send]", "Ring 00 : 0[0] [send]")]
    assert kinds == ["channel", ""]


@pytest.mark.parametrize(
    "text",
    [
        SOUND + said(f"{HALF}I", f"{HALF}Li", pid=2),
        SOUND + said(init("START", rank=1), nodes(2, rank=1), init("COMPLETE", rank=1), f"{HALF}I", host="s2"),
        SOUND + said(init("START", rank=1), nodes(2, rank=1), init("COMPLETE", rank=1), P2P, host="s2"),
        SOUND + said(init("START", rank=1), nodes(2, rank=1), init("COMPLETE", rank=1), COLLNET, host="s2"),
        said("Using network Socket", *DONE, channel()),
        SOUND
        + said("Using network Socket", *(line.replace("MNNVL 0", "MNNVL 1") for line in other(2)), P2P, host="s2"),
        SOUND + "s1:1:1 [0] net.cc:9 NCCL WARN Using network Socket is slow\n",
    ],
    ids=[
        "the start of IB",
        "the start of IB of another rank",
        "a path inside the node of another rank",
        "a reduction inside the network of another rank",
        "channels over RDMA after another selection",
        "NVLink after a selection",
        "a warning",
    ],
)
def test_what_proves_no_tcp_takes_no_pass_away(text: str) -> None:
    report = judge(text)
    assert (report.verdict.verdict, report.failures) == ("ib", [])


def test_a_line_that_ran_into_another_one_keeps_its_own_process() -> None:
    assert [each.channels for each in read(f"{said(channel()).strip()} {said(IB, pid=2)}").processes] == [
        {"IB": {"0": 1}},
        {},
    ]
    nameless = said(IB, host="", pid=5) + said(IB, host="x9", pid=5)
    joined = f"{said(channel()).strip()} {said('Using network Socket', host='s2', pid=5)}"
    seen = {(each.host, each.pid): list(each.selections) for each in read(nameless + joined).processes}
    assert seen == {("", "5"): ["IB"], ("x9", "5"): ["IB"], ("s1", "1"): [], ("s2", "5"): ["Socket"]}
    # The start of the host's name is missing, or other text precedes it.
    for host in ("ark2", "0spark2"):
        torn = said(IB, host="spark2", pid=5) + joined.replace("s2:5", f"{host}:5")
        assert [list(each.selections) for each in read(torn).processes] == [["IB", "Socket"], []]


def test_the_socket_banner_of_2_4_contradicts_nothing() -> None:
    both = said("NET/Socket : Using [0]eth0:10.0.0.1<0>", "NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>")
    early = said("NET/Socket : Using [0]eth0:10.0.0.2<0>", pid=2)
    for text in (both + early, early + both):
        assert judge(text, Expectation(evidence="banner")).verdict.verdict == "ib"
    gone = said("NET/IB : No device found.", pid=2)
    assert judge(both + early + gone, Expectation(evidence="banner")).verdict.verdict == "mixed"


def test_one_rank_of_a_job_may_have_a_log_of_its_own() -> None:
    assert judge(said(IB, init("COMPLETE", nranks=64), channel())).satisfied


def test_missing_ranks_are_counted_over_all_sources() -> None:
    logs = {
        f"rank{rank}": read(said(IB, init("COMPLETE", rank=rank, nranks=3), channel(), host=f"s{rank}"))
        for rank in (0, 1)
    }
    assert judge_all(logs, Expectation())["failures"] == ["2 of 3 ranks of a communicator were seen"]
    jobs = {
        f"{job}{rank}": read(
            said(IB, init("COMPLETE", rank=rank, nranks=size, shared=job), channel(), host=f"{job}{rank}")
        )
        for job, size in (("0x7", 3), ("0x8", 4))
        for rank in (0, 1)
    }
    absent = [f"2 of {size} ranks of a communicator were seen" for size in (3, 4)]
    assert judge_all(jobs, Expectation())["failures"] == absent
    both = [said(IB, init("COMPLETE", rank=rank, nranks=3), channel(), host=f"s{rank}") for rank in (0, 1)]
    two = judge_all({"a": read("".join(both))}, Expectation(ranks=2))
    assert two["failures"] == ["rank 0 (a): 2 of 3 ranks of a communicator were seen"]
    assert [rank["host"] for rank in two["ranks"]] == ["s0", "s1"]
    failures = judge_all({"a": read("".join(both))}, Expectation(networks=("gIB",)))["failures"]
    assert [text.partition(": ")[2] for text in failures] == [
        "IB where gIB is expected",
        "2 of 3 ranks of a communicator were seen",
    ]
    # Ranks that have only begun are no proof that another one is missing.
    idle = {f"rank{n}": read(said(init("START", rank=n, nranks=3), host=f"s{n}")) for n in (0, 1)}
    assert judge_all(idle, Expectation(allow_unknown=True))["failures"] == []


def test_an_error_after_the_channels_changes_health_and_not_the_transport() -> None:
    later = {
        "nccl_error": "NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited\n",
        "peer_gone": "s1:1:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer s2<1>\n",
        "watchdog": "[rank0]:[E] ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout\n",
        "ofi_reg_mr": "s1:1:9 [0] NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12\n",
    }
    for cause, line in later.items():
        report = judge(SOUND + line)
        assert (report.verdict.verdict, report.satisfied, report.as_dict()["healthy"]) == ("ib", True, False), cause
        assert report.troubles == [cause]
        assert f"not healthy: {cause}" in report.msg
    assert judge(SOUND).as_dict()["healthy"] is True
    assert judge(
        SOUND + later["watchdog"] + later["peer_gone"] + later["peer_gone"].replace("1:1", "2:2")
    ).troubles == [
        "peer_gone",
        "watchdog",
    ]


def test_nccl_2_32_is_read() -> None:
    log = "s1:1:1 [0] plugin/net.cc:229 (ncclNetPluginInit) NCCL ATTN Failed to initialize NET plugin IBext_v11\n"
    log += "s1:1:1 [0] rma/socket.cc:12 (rmaInit) NCCL WARN RMA/Socket : no interface for RMA\n"
    log += said("RMA/Plugin: Could not find: librma.so", "net.cc:79 (ncclNetInit) -> 3", IB, *DONE)
    split = (
        "ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 parent 0x1 childCount 1 color 5 key 0"
    )
    log += said(f"{split} commId 0x9 - Init START", f"{split} commId 0x9 - Init COMPLETE", channel())
    report = judge(log)
    assert report.satisfied, report.failures
    assert set(report.processes[0].hits) == {"plugin_failed"}
    assert report.processes[0].groups == {"0x7", "0x9"}
