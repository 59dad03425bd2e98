# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test logs that must not pass, or must not fail. An earlier version judged each of them wrongly."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.expectation import Expectation, judge_log
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.overall import judge_all
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report

INTRA = Expectation(allow_intra=True)


def read(text: str) -> NcclLog:
    return NcclLog().read(io.BytesIO(text.encode()).read)


def judge(text: str, expect: Expectation | None = None) -> Report:
    return judge_log(read(text), "log", expect)


def said(*lines: str, host: str = "s1", pid: int = 1) -> str:
    return "".join(f"{host}:{pid}:{pid} [0] NCCL INFO {line}\n" for line in lines)


def init(what: str, comm: str = "0x1", rank: int = 0, nranks: int = 2, shared: str = "0x7", device: int = 0) -> str:
    return (
        f"ncclCommInitRank comm {comm} rank {rank} nranks {nranks} cudaDev {device} nvmlDev {device} busId f{device}00"
        f" commId {shared} - Init {what}"
    )


def nodes(count: int, comm: str = "0x1", rank: int = 0, nranks: int = 2) -> str:
    return f"comm {comm} rank {rank} nRanks {nranks} nNodes {count} localRanks 1 localRank 0 MNNVL 0"


def channel(network: str = "IB", device: int = 0) -> str:
    return f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/{network}/{device}"


def other(number: int) -> tuple[str, str, str]:
    """Return the set-up of one more communicator of two nodes."""
    comm = f"0x1{number:x}"
    return init("START", comm, shared=comm), nodes(2, comm), init("COMPLETE", comm, shared=comm)


HALF = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/"
START = ("NCCL version 2.28.9+cuda13.0", "cudaDriverVersion 13000")
P2P = "Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM"
DONE = (init("START"), nodes(2), init("COMPLETE"))
AGAIN = (init("START", shared="0x8"), nodes(2), init("COMPLETE", shared="0x8"))
SOUND = said(*DONE, channel())


def test_the_sound_log_passes() -> None:
    assert judge(SOUND).satisfied
    assert judge(SOUND, Expectation(networks=("IB",), nodes=2, complete=True)).satisfied


NO_PASS = {
    "a torn line that may be TCP, with the network named": (
        SOUND + said("Channel 00/0 : 0[0] -> 1[0] [send] via NET/So", pid=2),
        Expectation(networks=("IB", "IBext*")),
        "a torn channel line may hide TCP",
    ),
    "a channel line that ends before its network": (
        SOUND + said("Channel 00/0 : 0[0] -> 1[0] [se", pid=2),
        Expectation(),
        "a torn channel line may hide TCP",
    ),
    "a banner of a communicator that never finished": (
        said("NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", init("START")),
        Expectation(evidence="banner"),
        "1 of 1 communicators never finished",
    ),
    "a banner and a torn line": (
        said("NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:10.0.0.1<0>", *DONE, "Channel 00/0 : 0[0] -> 1[0] via NET/"),
        Expectation(evidence="banner"),
        "a torn channel line may hide TCP",
    ),
    "a selection before a start that says nothing": (
        said("Using network IB", *DONE) + "NCCL version 2.28.9+cuda13.0\n",
        Expectation(evidence="selection"),
        "NCCL was started again and says nothing since",
    ),
    "connection lines of FastSocket": (
        said(*DONE, channel("FastSocket")),
        Expectation(),
        "plugin:FastSocket is TCP",
    ),
    "a selection of a communicator that never finished": (
        said("Using network IB", init("START"), nodes(2)),
        Expectation(evidence="selection"),
        "1 of 1 communicators never finished",
    ),
    "a selection before a fatal error": (
        said("Using network IB", *DONE)
        + "s1:1:1 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with error 12, o\n",
        Expectation(evidence="selection"),
        "completion_retry",
    ),
    "an unfinished communicator beside a finished one": (
        said(*DONE, channel(), init("START", comm="0x2", shared="0x8")),
        Expectation(),
        "1 of 2 communicators never finished",
    ),
    "paths inside nodes of a job on two hosts": (
        said(P2P) + said(P2P, host="s2"),
        INTRA,
        "nothing in the log says which transport",
    ),
    "paths inside a node and a torn network line": (
        said(init("COMPLETE"), P2P, "Channel 01/0 : 0[0] -> 1[0] [send] via NE"),
        INTRA,
        "nothing in the log says which transport",
    ),
    "libfabric without its provider": (
        said(*DONE, channel("AWS Libfabric")),
        Expectation(),
        "not known to be RDMA",
    ),
    "63 of 64 ranks": (
        "".join(
            said(init("COMPLETE", rank=rank, nranks=64), channel(), host=f"s{rank // 8}", pid=rank)
            for rank in range(63)
        ),
        Expectation(),
        "63 of 64 ranks of a communicator were seen",
    ),
    "an earlier run over IB, then a start that says nothing": (
        SOUND + "NCCL version 2.28.9+cuda13.0\nINFO:     Uvicorn running on http://127.0.0.1:30000\n",
        Expectation(),
        "NCCL was started again and says nothing since",
    ),
    "a selection of TCP while the number of nodes is unknown": (
        said(init("COMPLETE"), channel(), "Using network Socket", init("COMPLETE", comm="0x2", shared="0x8")),
        Expectation(),
        "different transports (IB)",
    ),
    "an address that is used again, now for TCP": (
        said("Using network IB", *DONE, channel(), "Using network Socket", *DONE),
        Expectation(),
        "different transports",
    ),
    "channel lines without a prefix": (
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n" * 4,
        Expectation(),
        "may be quoted",
    ),
    "channel lines of a process that never built anything": (
        said(channel(), pid=9) + said(*DONE),
        Expectation(),
        "may be a quotation",
    ),
    "a statement of a real process that a prompt continues in the next line": (
        said(*DONE, "Channel 00/02 :    0   1") + "my link is a[0] -> b[1] [send] via NET/IB/0\n",
        Expectation(),
        "nothing in the log says which transport",
    ),
    "a channel line that a JSON log quotes before there are any": (
        said(*DONE) + json.dumps({"prompt": said(channel()).strip()}) + "\n",
        Expectation(),
        "may be a quotation",
    ),
    "a channel line in a sentence before there are any": (
        said(*DONE) + "why do I see " + said(channel()),
        Expectation(),
        "may be a quotation",
    ),
    "a process that started after the channel lines and has set up nothing": (
        said(*START) + SOUND + said(*START, "Bootstrap : Using eth0:10.0.0.1<0>", pid=2),
        Expectation(),
        "process s1:2 has started NCCL later",
    ),
    "many torn lines before the one that may be TCP": (
        SOUND + said(*(f"{HALF}IBx{n}" for n in range(300)), f"{HALF}So", pid=2),
        Expectation(),
        "a torn channel line may hide TCP",
    ),
    "an idle communicator over TCP before many others": (
        said("Using network Socket", *DONE)
        + "".join(said("Using network IB", *other(n), channel()) for n in range(300)),
        Expectation(),
        "different transports",
    ),
    "TCP in a log of more processes than are told apart": (
        "".join(said("Using network IB", pid=n) for n in range(5000))
        + said(*DONE, channel("Socket"), host="s2")
        + SOUND,
        Expectation(),
        "too many processes",
    ),
    "TCP in the first of very many containers of one name": (
        said(*START, *DONE, channel("Socket")) + said(*START, *DONE, channel()) * 5000,
        Expectation(),
        "too many processes",
    ),
    "FastSocket's banner": (
        said("NET/FastSocket : Using [0]eth0:10.0.0.1<0>"),
        Expectation(evidence="banner"),
        "socket is TCP",
    ),
}


@pytest.mark.parametrize("name", NO_PASS)
def test_no_pass(name: str) -> None:
    log, expect, why = NO_PASS[name]
    report = judge(log, expect)
    assert not report.satisfied
    assert any(why in text for text in report.failures), report.failures


COLLECTED = [
    "[pod/g-0-0/sglang] 2026-11-22T10:00:0{0}.1{0}Z {1}",
    "Nov  9 10:00:0{0} spark-1 docker[1{0}]: {1}",
    "[1,0]<stdout>:{1}",
    "\x1b[36m(RayWorker pid={0})\x1b[0m {1}",
    '{{"stream": "stdout", "time": "2026-11-22T10:00:0{0}.1Z", "log": "{1}\\n"}}',
    "11/22/2026 10:00:0{0} AM {1}",
    "worker-1  | {1}",
]


@pytest.mark.parametrize("form", COLLECTED)
def test_text_that_a_collector_puts_before_every_line_changes_nothing(form: str) -> None:
    lines = [form.format(number, line) for number, line in enumerate(SOUND.splitlines())]
    assert judge("\n".join(lines) + "\n").satisfied
    assert judge("Loading: 50%|###  | 1/2\r" + SOUND).satisfied


def collected(form: str, log: str) -> str:
    return "".join(form.format(number % 10, line) + "\n" for number, line in enumerate(log.splitlines()))


@pytest.mark.parametrize("form", COLLECTED)
@pytest.mark.parametrize("name", [name for name, case in NO_PASS.items() if len(case[0]) < 5000])
def test_no_pass_with_text_of_a_collector_either(name: str, form: str) -> None:
    log, expect, _why = NO_PASS[name]
    assert not judge(collected(form, log), expect).satisfied


BARE = "NCCL version 2.28.9+cuda13.0"
SILENT = "NCCL was started again and says nothing since"


@pytest.mark.parametrize("form", ["{1}", "2026-11-22T10:00:00.1Z stdout F {1}", "(RayWorker pid=3) {1}", *COLLECTED])
def test_a_silent_start_is_found_after_the_text_of_a_collector(form: str) -> None:
    report = judge(collected(form, f"{SOUND}{BARE}\n"))
    assert any(SILENT in text for text in report.failures), report.failures
    # Another rank, which was not started again, goes on.
    two = said(*START, *DONE, channel()) + said(init("START", rank=1), init("COMPLETE", rank=1), channel(), host="s2")
    assert judge(collected(form, two)).satisfied
    later = said(channel(), "Connected all trees", "comm 0x1 destroyed", host="s2")
    report = judge(collected(form, f"{two}{BARE}\n{later}"))
    assert any(SILENT in text for text in report.failures), report.failures
    # NCCL before 2.21 prints this line at INFO too, after the first line of rank 0.
    log = said("Bootstrap : Using eth0:10.0.0.1<0>") + f"{BARE}\n{SOUND}"
    assert judge(collected(form, log)).satisfied
    log += said("Bootstrap : Using eth0:10.0.0.1<0>", pid=2) + f"{BARE}\n" + said(*AGAIN, channel(), pid=2)
    assert judge(collected(form, log)).satisfied
    # And so does a second copy of the library, in the same process.
    assert judge(collected(form, f"{SOUND}{BARE}\n" + said(*other(1), channel()))).satisfied


@pytest.mark.parametrize("start", ["\x1b[36m(RayWorker pid=3)\x1b[0m ", "Loading: 100%\r", "INFO ready"])
def test_a_silent_start_is_found_after_other_text(start: str) -> None:
    assert any(SILENT in text for text in judge(f"{SOUND}{start}{BARE}\n").failures)


def test_only_the_version_as_nccl_prints_it_is_a_silent_start() -> None:
    for line in (
        "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error, NCCL version 2.28.9",
        "why does it say NCCL version 2.28.9+cuda13.0 and nothing else?",
    ):
        assert not any(SILENT in text for text in judge(f"{SOUND}{line}\n").failures)


def test_a_silent_start_of_one_pod_is_not_taken_back_by_another() -> None:
    def pod(name: str, log: str) -> str:
        return collected(f"[pod/{name}/s] {{1}}", log)

    log = pod("a", SOUND) + pod("b", said(init("START", rank=1), init("COMPLETE", rank=1), channel(), host="s2"))
    assert judge(log).satisfied
    again = pod("b", said(*START, *AGAIN, channel(), host="s2", pid=2))
    assert any(SILENT in text for text in judge(f"{log}{pod('a', BARE)}{again}").failures)
    # A process that a prompt quotes takes nothing back either.
    quoted = pod("a", collected("> {1}", said(*START, *AGAIN, channel(), pid=2)))
    assert any(SILENT in text for text in judge(f"{log}{pod('a', BARE)}{quoted}").failures)


def test_a_later_process_is_unready_while_others_go_on() -> None:
    log = said(*START) + SOUND + said(*START, pid=2) + said("Connected all trees")
    assert any("process s1:2 has started NCCL later" in text for text in judge(log).failures)


@pytest.mark.parametrize(
    "text",
    [
        "plugin/net.cc:379 NCCL WARN Failed to initialize any NET plugin",
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with error 12, opcode 1",
        "NCCL INFO NET/IB : Got completion from peer 10.0.0.2<1> with error 12, opcode 1",
    ],
)
def test_a_quoted_failure_of_the_process_itself_makes_nothing_fail_for_sure(text: str) -> None:
    line = f"s1:1:9 [0] {text}"
    for quoted in (json.dumps({"p": line}), f"> {line}", f"why do I see {line}"):
        report = judge(f"{SOUND}{quoted}\n")
        assert (report.verdict.verdict, report.satisfied, report.troubles) == ("unknown", False, [])
        assert all("so it may be a quotation" in failure for failure in report.failures)
    # In a line of the process, and in one that another line ran into, it counts.
    for real in (f"{line}\n", said("Connected all trees").rstrip("\n") + f"{line}\n"):
        for form in ("{1}", "2026-11-22T10:00:00.1Z {1}", "[2026-11-22 10:00:0{0}] {1}"):
            report = judge(collected(form, f"{SOUND}{real}"))
            assert (report.verdict.verdict, report.satisfied, bool(report.troubles)) == ("ib", False, True)


@pytest.mark.parametrize(
    "end", ["[send] via NET/Soc", "[send] via NET/", "[send] via N", "[send] v", "[se", "via NET/Fast"]
)
def test_a_torn_line_may_hide_tcp_when_another_host_continues_it(end: str) -> None:
    torn = said(f"Channel 00/0 : 0[0] -> 1[0] {end}").rstrip("\n") + said(channel(), host="spark2", pid=2)
    assert judge(SOUND + torn).failures == ["a torn channel line may hide TCP; read the log again"]
    whole = said(f"{HALF}IB").rstrip("\n") + said(channel(), host="spark2", pid=2)
    assert judge(SOUND + whole).satisfied


def test_a_server_that_prints_its_earlier_log_as_a_string_proves_nothing() -> None:
    quoted = json.dumps({"prompt": SOUND}) + "\n"
    assert judge(quoted).verdict.verdict == "unknown"
    assert "lines quote several statements and prove nothing" in judge(quoted).failures[0]
    tcp = said(*DONE, channel("Socket"))
    assert judge(tcp + quoted).as_dict()["verdict"] == "socket"
    assert judge(SOUND + json.dumps({"prompt": tcp}) + "\n").satisfied


TCP_LINE = said(channel("Socket")).strip()
# Lines that a server may print because a prompt quotes them, without a line of their own for a known process.
QUOTED = {
    "without a prefix": "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "only the path": "via NET/Socket/0",
    "in a sentence": f"why do I see {TCP_LINE}",
    "in quotation marks": f'"{TCP_LINE}"',
    "as JSON": json.dumps({"prompt": TCP_LINE}),
    "coloured": f"\x1b[33muser>\x1b[0m {TCP_LINE}",
    "of a process that never started": said(channel("Socket"), pid=8).strip(),
    "a failure of such a process": "s9:8:8 [0] plugin/net.cc:379 NCCL WARN Failed to initialize any NET plugin",
    "an error without a prefix": "NCCL error: NET/IB : Got completion from peer 10.0.0.2<1> with error 12, opcode 1",
}


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    "form", ["{}", "[pod/g-0-0/sglang] {}", "Nov  9 10:00:00 spark-1 docker[1]: {}", "2026-11-22 {}"]
)
@pytest.mark.parametrize("name", QUOTED)
def test_a_line_that_may_be_a_quotation_takes_a_pass_away_and_decides_no_transport(
    name: str, form: str, end: str
) -> None:
    def log(text: str) -> str:
        return "".join(form.format(line) + end for line in [*text.splitlines(), QUOTED[name]])

    for expect in (Expectation(), Expectation(allow_unknown=True), Expectation(evidence="banner")):
        report = judge(log(SOUND), expect)
        assert (report.verdict.verdict, report.satisfied) == ("unknown", False)
        assert all("so it may be a quotation, and text alone can't tell" in text for text in report.failures)
    assert judge(log(said(*DONE, channel("Socket")))).verdict.verdict == "socket"
    # Before the connection, it proves no TCP either.
    assert judge(log(said(*START, *DONE))).verdict.verdict == "unknown"


# What a server may make of a whole log that a prompt quotes.
WHOLE: dict[str, Callable[[str], str]] = {
    "JSON": lambda log: json.dumps({"prompt": log}),
    "JSON in JSON": lambda log: json.dumps({"log": json.dumps({"prompt": log})}),
    "Python": repr,
    **{
        f"one line, {end!r}": lambda log, end=end: log.replace("\n", end)
        for end in ("\u2028", "\r", "\v", "\0", "\\r", "\\r\\n", "\\u000A", "\t", "; ", "\x1b[0m ", "%0A", "<br>")
    },
    **{
        f"lines after {start!r}": lambda log, start=start: "".join(f"{start}{line}\n" for line in log.splitlines())
        for start in ("> ", "    ", 'level=info msg="', "| ")
    },
}


@pytest.mark.parametrize("form", WHOLE)
def test_a_quoted_log_of_a_running_process_proves_nothing(form: str) -> None:
    quoted = WHOLE[form](said(*START, *DONE, channel())) + "\n"
    assert judge(said(*START, *DONE, channel("Socket")) + quoted).verdict.verdict == "socket"
    assert judge(said(*START, *DONE) + quoted).verdict.verdict == "unknown"
    over_tcp = WHOLE[form](said(*START, *DONE, channel("Socket"))) + "\n"
    report = judge(said(*START, *DONE, channel()) + over_tcp)
    assert report.verdict.verdict == "unknown" or report.satisfied
    assert "mixed" not in report.msg


@pytest.mark.parametrize("form", [form for form in WHOLE if not form.startswith("lines")])
def test_one_line_proves_nothing(form: str) -> None:
    assert judge("Started\n" + WHOLE[form](said(*START, *DONE, channel())) + "\n").verdict.verdict == "unknown"


@pytest.mark.parametrize("name", QUOTED)
def test_a_quoted_line_over_rdma_does_not_change_the_verdict_of_a_group_on_tcp(name: str) -> None:
    tcp = said(*DONE, channel("Socket"))
    quoted = QUOTED[name].replace("Socket", "IB")
    assert judge(f"{tcp}{quoted}\n").verdict.verdict == "socket"
    assert not judge(f"{tcp}{quoted}\n").satisfied
    if "Channel" in quoted or "via" in quoted:
        # A sound log says the same.
        assert judge(f"{SOUND}{quoted}\n").satisfied


def test_docker_writes_one_statement_per_string() -> None:
    lines = [json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in SOUND.splitlines()]
    assert judge("".join(lines)).satisfied


def test_the_socket_banner_of_2_4_contradicts_nothing() -> None:
    both = said("NET/Socket : Using [0]eth0:10.0.0.1<0>", "NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>")
    early = said("NET/Socket : Using [0]eth0:10.0.0.2<0>", pid=2)
    assert judge(both + early, Expectation(evidence="banner")).verdict.verdict == "ib"
    gone = said("NET/IB : No device found.", pid=2)
    assert judge(both + early + gone, Expectation(evidence="banner")).verdict.verdict == "mixed"


def test_containers_with_one_name_are_ranks_and_no_restart() -> None:
    """``docker run --hostname worker``: every container has host worker and process 1."""
    log = said(*START, init("START", rank=0), channel("Socket"), host="worker")
    log += said(*START, init("START", rank=1), init("COMPLETE", rank=1), channel(), host="worker")
    report = judge(log)
    assert (report.verdict.verdict, len(report.earlier), report.satisfied) == ("mixed", 0, False)
    assert report.channels == {"IB": {"0": 1}, "Socket": {"0": 1}}


@pytest.mark.parametrize("collector", ["{1}", "[pod/g-0/s] {1}", "2026-11-22T10:00:00.1Z stdout F {1}"])
@pytest.mark.parametrize("quote", ["> {1}", "    {1}", "| {1}", 'level=info msg="{1}', '{{"content": "{1}"}}'])
def test_a_log_that_a_server_below_info_quotes_proves_nothing(quote: str, collector: str) -> None:
    report = judge(collected(collector, f"{BARE}\n" + collected(quote, said(*START) + SOUND)))
    assert (report.verdict.verdict, report.satisfied) == ("unknown", False)
    assert "they may be a quotation, and text alone can't tell" in report.failures[0]
    assert judge(collected(collector, f"{BARE}\n{SOUND}")).satisfied


def test_each_of_many_containers_with_one_name_has_a_record_of_its_own() -> None:
    log = "".join(
        said(*START, init("START", rank=rank, nranks=9), init("COMPLETE", rank=rank, nranks=9), channel())
        for rank in range(9)
    )
    report = judge(log)
    assert sorted(process.rank for process in report.processes) == list(range(9))
    assert report.satisfied, report.failures


def test_two_processes_of_one_start_on_one_gpu_both_count() -> None:
    log = said(*DONE, channel("Socket")) + said(*AGAIN, channel(), pid=2)
    files = {"pod": [nullcontext(io.BytesIO(log.encode()).read)]}
    # Text that a server prints may also be a quotation of another log, so a restart from TCP to RDMA is not believed.
    assert judge_sources(files, Expectation(), {})[0]["verdict"] == "unknown"
    files = {"pod": [nullcontext(io.BytesIO(log.encode()).read)]}
    assert judge_sources(files, Expectation(), {}, one_start=True)[0]["verdict"] == "mixed"
    twice = said(*START, *DONE, channel("Socket"), *START, *AGAIN, channel())
    files = {"pod": [nullcontext(io.BytesIO(twice.encode()).read)]}
    assert judge_sources(files, Expectation(), {}, one_start=True)[0]["verdict"] == "mixed"


@pytest.mark.parametrize("pid", [1, 2], ids=["same process number", "another"])
@pytest.mark.parametrize(
    "before",
    [(*DONE, channel("Socket")), ("Using network Socket", *DONE), (*DONE, channel("FastSocket"))],
    ids=["channels", "only selected", "plugin"],
)
def test_a_restart_from_tcp_to_rdma_may_be_a_quotation(before: tuple[str, ...], pid: int) -> None:
    report = judge(said(*START, *before) + said(*START, *AGAIN, channel(), pid=pid))
    assert (report.verdict.verdict, report.satisfied, len(report.earlier)) == ("unknown", False, 1)
    assert "s1:1 used TCP" in report.failures[0]
    assert "it may be a restart or a quotation, and text alone can't tell" in report.failures[0]


@pytest.mark.parametrize("pid", [1, 2], ids=["same process number", "another"])
def test_a_start_with_another_commid_is_a_restart(pid: int) -> None:
    for before in ((*DONE, channel()), (*DONE, P2P), (init("START"),)):
        report = judge(said(*START, *before) + said(*START, *AGAIN, channel(), pid=pid))
        assert (report.satisfied, len(report.earlier)) == (True, 1), report.failures
    # The other way round there is no doubt.
    report = judge(said(*START, *DONE, channel()) + said(*START, *AGAIN, channel("Socket"), pid=pid))
    assert (report.verdict.verdict, len(report.earlier)) == ("socket", 1)


@pytest.mark.parametrize("collector", ["{}", "[pod/g-0/s] {}", "2026-11-22T10:00:00.1Z stdout F {}"])
@pytest.mark.parametrize(
    "quote", ["> {}", "    {}", "| {}", '{{"content": "{}"}}', "2026-11-22 10:00:00.1 | INFO     | m:f:12 - {}"]
)
def test_a_quoted_log_of_another_process_replaces_nothing(quote: str, collector: str) -> None:
    real = said(*START, *DONE, channel("Socket"))
    for lines in ((init("COMPLETE", shared="0x8"), channel()), (*START, *AGAIN, channel())):
        quoted = [quote.format(line) for line in said(*lines, pid=8).splitlines()]
        log = "".join(collector.format(line) + "\n" for line in [*real.splitlines(), *quoted])
        report = judge(log, Expectation(networks=("IB", "IBext*"), nodes=2))
        assert (report.verdict.verdict, report.satisfied) == ("mixed", False)


def test_one_rank_of_a_job_may_have_a_log_of_its_own() -> None:
    assert judge(said(init("COMPLETE", nranks=64), channel())).satisfied


def test_missing_ranks_are_counted_over_all_sources() -> None:
    logs = {
        f"rank{rank}": read(said(init("COMPLETE", rank=rank, nranks=3), channel(), host=f"s{rank}")) for rank in (0, 1)
    }
    assert judge_all(logs, Expectation())["failures"] == ["2 of 3 ranks of a communicator were seen"]


def test_an_error_after_the_channels_changes_health_and_not_the_transport() -> None:
    later = {
        "nccl_error": "ncclRemoteError: NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited\n",
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


def test_nccl_2_32_is_read() -> None:
    log = "s1:1:1 [0] plugin/net.cc:229 (ncclNetPluginInit) NCCL ATTN Failed to initialize NET plugin IBext_v11\n"
    log += "s1:1:1 [0] rma/socket.cc:12 (rmaInit) NCCL WARN RMA/Socket : no interface for RMA\n"
    log += said("RMA/Plugin: Could not find: librma.so", "net.cc:79 (ncclNetInit) -> 3", *DONE)
    split = (
        "ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 parent 0x1 childCount 1 color 5 key 0"
    )
    log += said(f"{split} commId 0x9 - Init START", f"{split} commId 0x9 - Init COMPLETE", channel())
    report = judge(log)
    assert report.satisfied, report.failures
    assert set(report.processes[0].hits) == {"plugin_failed"}
    assert report.processes[0].groups == {"0x7", "0x9"}


@pytest.mark.parametrize(
    "line",
    [
        "s1:1:1 [0] NCCL INFO comm 0x{0:x} rank 0 nranks 2 cudaDev 0 busId f commId 0x{0:x} - Init START\n",
        "s{0}:1:1 [0] NCCL INFO Using network Sockets{0}:2:2 [0] NCCL INFO Using network Socket\n",
        "s1:{0}:1 [0] NCCL INFO NCCL version 2.28.9\n",
        "s1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init START\ns1:1:1 [0] NCCL INFO NCCL version 2.28.9+{0}\n",
        "s1:1:1 [0] NCCL INFO Got completion {0} ibv error found set to WARN\n",
        "s1:{0}:1 [0] NCCL INFO Using network IB\nNCCL version 2.28.9+cuda13.0\n",
    ],
    ids=["unfinished communicators", "hosts", "processes", "restarts", "causes", "silent starts"],
)
def test_cost_grows_with_the_log_and_no_faster(line: str) -> None:
    def cost(count: int) -> float:
        data = "".join(line.format(number) for number in range(count)).encode()
        started = time.process_time()
        judge_log(NcclLog().read(io.BytesIO(data).read), "log")
        return time.process_time() - started

    # Eight times the lines may cost 32 times as much, which leaves room for a busy machine; a scan of everything before
    # each line costs 64 times as much.
    assert min(cost(16_000) for _run in range(2)) < 32 * max(min(cost(2_000) for _run in range(3)), 0.02)


@pytest.mark.parametrize(
    "text",
    [
        f"comm 0x1 rank {'1' * 5000} nranks 2 cudaDev 0 busId f commId 0x7 - Init START",
        f"comm 0x1 rank 0 nRanks 2 nNodes {'1' * 5000} localRanks 1 localRank 0 MNNVL 0",
        f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/{'1' * 5000}",
        "comm 0x1 rank 0 nranks 2" + " busId a" * 4000 + " commId b" * 4000 + " Init X",
        "comm 0x1 rank 0 nranks 2 " * 9000 + " Init X",
        "NET/IB : Using " + "a" * 200_000,
        "NET/IB :" + " qp 1 " * 30_000 + " mtu x",
        "NET/OFI regMr " * 15_000,
    ],
)
def test_no_line_stops_the_reader(text: str) -> None:
    """NCCL cuts its lines at 1024 bytes; a server may print longer ones."""
    wrong = "Channel 1" * 20_000 + " -> NET/x\n" + "1" * 200_000 + " NET/x\n"
    started = time.process_time()
    report = judge(SOUND + said(text) + f"s1:1:1 [0] NCCL WARN {text}\nNET/x {text}\n" + wrong)
    assert report.verdict.verdict == "ib"
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "line",
    [
        "s1:{0}:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n",
        "s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/N{0}/0\n",
        "s1:1:1 [0] NCCL INFO Using network N{0}\n",
        "s1:1:1 [0] NCCL INFO NET/IB : Using [0]m{0}:1/RoCE ; OOB eth0:10.0.0.1<0>\n",
        "s1:1:{0} [0] NCCL INFO comm 0x{0} rank 0 nranks 2 cudaDev 0 busId f commId 0x{0} - Init START\n",
        "s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/{0}\n",
    ],
    ids=["processes", "networks", "selections", "devices", "threads", "torn lines"],
)
def test_memory_does_not_grow_with_the_log(line: str) -> None:
    lines = (line.format(number).encode() for number in range(25_000))
    tracemalloc.start()
    judge_log(NcclLog().read(lambda _size: b"".join(islice(lines, 2500))), "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
