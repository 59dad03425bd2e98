# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test logs that must not pass, and how lines become processes, communicators and expectations."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.statements import Via, is_tcp, read_statement, read_via
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, expectation
from nccl_lines import AGAIN, COLLECTED, DONE, IB, OLD_BARE, SOUND, channel, collected, init, judge, nodes, read, said


def no_pass() -> Iterator[tuple[str, tuple[str, Expectation, str]]]:
    """Yield the cases of no_pass.txt: ``### what it is``, ``=== expectation a part of the reason``, and a log."""
    text = (Path(__file__).parents[3] / "fixtures/nccl/no_pass.txt").read_text(encoding="utf-8")
    for block in text.split("### ")[1:]:
        name, expected, log = block.split("\n", 2)
        given, end = json.JSONDecoder().raw_decode(expected.removeprefix("=== "))
        yield name, (log, expectation(given), expected[4 + end :].strip())


NO_PASS = dict(no_pass())


@pytest.mark.parametrize("name", NO_PASS)
def test_no_pass_also_with_text_of_a_collector(name: str) -> None:
    log, expect, why = NO_PASS[name]
    report = judge(log, expect)
    assert not report.satisfied
    assert any(why in text for text in report.failures), report.failures
    for form in COLLECTED:
        assert not judge(collected(form, log), expect).satisfied, form


def test_only_a_line_that_ends_too_early_is_torn() -> None:
    assert asdict(read_via("NET/IB/0/GDRDMA via a proxy")) == asdict(Via("IB", "0", gdr=True))
    kinds = [read_statement(text).kind for text in ("Ring 00 : 0[0] -> 1[0] [send]", "Ring 00 : 0[0] [send]")]
    assert kinds == ["channel", ""]


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


def test_nccl_2_32_is_read() -> None:
    log = "s1:1:1 [0] plugin/net.cc:229 (ncclNetPluginInit) NCCL ATTN Failed to initialize NET plugin IBext_v11\n"
    log += "s1:1:1 [0] rma/socket.cc:12 (rmaInit) NCCL WARN RMA/Socket : no interface for RMA\n"
    log += said("RMA/Plugin: Could not find: librma.so", "net.cc:79 (ncclNetInit) -> 3", IB, *DONE)
    split = "ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 parent 0x1 childCount 1 color 5"
    log += said(f"{split} key 0 commId 0x9 - Init START", f"{split} key 0 commId 0x9 - Init COMPLETE", channel())
    report = judge(log)
    assert report.satisfied, report.failures
    assert set(report.processes[0].hits) == {"plugin_failed"}
    assert report.processes[0].groups == {"0x7", "0x9"}


def test_a_line_that_names_no_communicator_connects_the_last_one() -> None:
    connected = said("Connected all rings, use ring PXN 0 GDR 0").replace("s1:1:1", "s1:1:9")
    (process,) = read(said(nodes(2), nodes(2, "0x2")) + connected).processes
    assert [each.connected for each in process.communicators.values()] == [False, True]


NO_DEVICE = said("comm 0x1 rank 1 nranks 2 commId 0x7 - Init COMPLETE", pid=2)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (
            "".join(
                said(*(init("COMPLETE", comm, rank, shared=comm) for comm in ("0x1", "0x2")), host=f"s{rank}")
                for rank in (0, 1)
            ),
            [2] * 4,
        ),
        # A torn number: these are not both ranks of two, so another host may have the other one.
        ("".join(said(init("COMPLETE", rank=rank, device=rank), pid=rank) for rank in (1, 2)), [0] * 2),
        ("".join(said(init("COMPLETE", rank=rank, device=rank), host="", pid=rank) for rank in (0, 1)), [0] * 2),
        (said(init("COMPLETE")) + NO_DEVICE, [0] * 2),
    ],
)
def test_all_communicators_of_an_old_release_span_the_hosts_that_are_seen(log: str, found: list[int]) -> None:
    assert [comm.nodes for process in read(log).processes for comm in process.communicators.values()] == found


def test_a_version_line_in_one_of_several_files_is_no_silent_start_if_a_set_up_follows() -> None:
    files = [
        said("cudaDriverVersion 13000", pid=n) + f"{OLD_BARE}\n" + said(IB, *AGAIN, channel(), pid=n) for n in (1, 2)
    ]
    assert [NcclLog.joined([read(text) for text in files[:number]]).mute for number in (1, 2)] == [False, False]
    again = NcclLog.joined([read(files[0]), read(f"{OLD_BARE}\n")])
    assert (again.mute, again.version) == (True, "2.20.5+cuda12.4")
    begun = said(IB, pid=3)
    assert not NcclLog.joined([read(SOUND), read(f"{begun}{OLD_BARE}\n{begun}")]).mute


def test_expectations_are_checked() -> None:
    assert expectation({"networks": ["IB"], "gdr": None}) == Expectation(networks=("IB",))
    with pytest.raises(ValueError, match="unknown expectation: rank"):
        expectation({"rank": 2})
    with pytest.raises(ValueError, match="evidence must be one of"):
        expectation({"evidence": "hearsay"})


@pytest.mark.parametrize(
    ("network", "tcp"), [("FastSocket", True), ("fastsocket", True), ("SOCKET", True), ("ib", False)]
)
def test_nccl_accepts_the_name_of_a_network_in_any_case(network: str, tcp: bool) -> None:
    assert is_tcp(network) is tcp
