# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that text which quotes NCCL neither makes a log pass nor makes a sound one fail."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.expectation import Expectation
from nccl_lines import (
    AGAIN,
    BARE,
    DONE,
    IB,
    OLD_BARE,
    SOUND,
    START,
    TCP_LINE,
    channel,
    collected,
    init,
    judge,
    nodes,
    said,
)


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


def test_a_server_that_prints_its_earlier_log_as_a_string_proves_nothing() -> None:
    quoted = json.dumps({"prompt": SOUND}) + "\n"
    assert judge(quoted).verdict.verdict == "unknown"
    assert "lines quote several statements and prove nothing" in judge(quoted).failures[0]
    tcp = said(*DONE, channel("Socket"))
    assert judge(tcp + quoted).as_dict()["verdict"] == "socket"
    assert judge(SOUND + json.dumps({"prompt": tcp}) + "\n").satisfied


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
    quoted = WHOLE[form](said(*START, IB, *DONE, channel())) + "\n"
    assert judge(said(*START, *DONE, channel("Socket")) + quoted).verdict.verdict == "socket"
    assert judge(said(*START, *DONE) + quoted).verdict.verdict == "unknown"
    over_tcp = WHOLE[form](said(*START, *DONE, channel("Socket"))) + "\n"
    report = judge(said(*START, IB, *DONE, channel()) + over_tcp)
    assert report.verdict.verdict == "unknown" or report.satisfied
    assert "mixed" not in report.msg


@pytest.mark.parametrize("form", [form for form in WHOLE if not form.startswith("lines")])
def test_one_line_proves_nothing(form: str) -> None:
    assert judge("Started\n" + WHOLE[form](said(*START, IB, *DONE, channel())) + "\n").verdict.verdict == "unknown"


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


@pytest.mark.parametrize("collector", ["{1}", "[pod/g-0/s] {1}", "2026-11-22T10:00:00.1Z stdout F {1}"])
@pytest.mark.parametrize("quote", ["> {1}", "    {1}", "| {1}", 'level=info msg="{1}', '{{"content": "{1}"}}'])
def test_a_log_that_a_server_below_info_quotes_proves_nothing(quote: str, collector: str) -> None:
    report = judge(collected(collector, f"{BARE}\n" + collected(quote, said(*START) + SOUND)))
    assert (report.verdict.verdict, report.satisfied) == ("unknown", False)
    assert "they may be a quotation, and text alone can't tell" in report.failures[0]
    first = said("Bootstrap : Using eth0:10.0.0.1<0>")
    assert judge(collected(collector, f"{first}{OLD_BARE}\n{SOUND}")).satisfied


@pytest.mark.parametrize("collector", ["{1}", "[pod/g-0/s] {1}"])
@pytest.mark.parametrize(
    ("version", "before"),
    [(BARE, ()), (BARE, ("Bootstrap : Using eth0:10.0.0.1<0>",)), (OLD_BARE, ())],
    ids=["new", "new, among other lines", "old"],
)
@pytest.mark.parametrize(
    "quoted", [SOUND, said(*START) + SOUND, f"{OLD_BARE}\n{SOUND}"], ids=["set-up", "start", "old"]
)
def test_a_log_that_a_server_below_info_prints_as_it_is_proves_nothing(
    quoted: str, version: str, before: tuple[str, ...], collector: str
) -> None:
    for expect in (Expectation(), Expectation(evidence="selection")):
        report = judge(collected(collector, said(*before) + f"{version}\n{quoted}"), expect)
        assert (report.verdict.verdict, report.satisfied) == ("unknown", False)
        assert "prints its version as it does below INFO" in report.failures[0]


def whole(network: str, selects: bool = True, bus: bool = True, shared: str = "0x7", address: str = "0x1") -> list[str]:
    """Return the lines of a process that sets a communicator up, without busId and commId if ``bus`` is false."""
    lines = [f"Using network {network}"] * selects
    lines += [init("START", address, shared=shared), nodes(2, address), init("COMPLETE", address, shared=shared)]
    return [line if bus else line.replace(f" busId f000 commId {shared}", "") for line in lines]


@pytest.mark.parametrize(("pid", "host"), [(1, "s1"), (8, "s1"), (1, "s2")], ids=["same", "process", "host"])
@pytest.mark.parametrize("address", ["0x1", "0x2"])
@pytest.mark.parametrize("bus", [True, False], ids=["busid", "no busid"])
@pytest.mark.parametrize("missing", ["nothing", "selection", "channels", "both", "start"])
def test_a_log_over_rdma_that_a_server_over_tcp_prints_as_it_is_does_not_pass(
    missing: str, bus: bool, address: str, pid: int, host: str
) -> None:
    real = whole("Socket", selects=missing not in ("selection", "both"))
    real = real[:1] + real[2:] if missing == "start" else real
    real += [] if missing in ("channels", "both") else [channel("Socket")]
    quoted = whole("IB", bus=bus, shared="0x8", address=address)
    for start in ((), START):
        for lines in (quoted, quoted[1:], [quoted[0], *quoted[2:]], quoted[:-1], [quoted[-1]]):
            text = said(*start, *lines, channel(), pid=pid, host=host)
            # Without a line of the server that names a network, such a quotation lacks it as well.
            if missing == "both" and lines[0] != quoted[0]:
                continue
            report = judge(said(*START, *real) + text)
            assert not report.satisfied, text
            assert report.verdict.verdict in ("unknown", "mixed", "socket")


@pytest.mark.parametrize(
    "end", ["NET/Socket/0", "a NET/Socket/1", "ET/Socket/0", "/Socket/0", "Socket/0", "Socket/0/Shared"]
)
def test_the_end_of_a_torn_tcp_line_takes_the_pass_away(end: str) -> None:
    report = judge(f"{SOUND}{end}\n" + said("Connected all rings"))
    assert (report.verdict.verdict, report.satisfied) == ("unknown", False)
    assert judge(f"{SOUND}why is Socket/0 slow\n" + said("Connected all rings")).satisfied


@pytest.mark.parametrize("collector", ["{}", "[pod/g-0/s] {}", "2026-11-22T10:00:00.1Z stdout F {}"])
@pytest.mark.parametrize(
    "quote", ["> {}", "    {}", "| {}", '{{"content": "{}"}}', "2026-11-22 10:00:00.1 | INFO     | m:f:12 - {}"]
)
def test_a_quoted_log_of_another_process_replaces_nothing(quote: str, collector: str) -> None:
    real = said(*START, *DONE, channel("Socket"))
    for lines in ((init("COMPLETE", shared="0x8"), channel()), (*START, IB, *AGAIN, channel())):
        quoted = [quote.format(line) for line in said(*lines, pid=8).splitlines()]
        log = "".join(collector.format(line) + "\n" for line in [*real.splitlines(), *quoted])
        report = judge(log, Expectation(networks=("IB", "IBext*"), nodes=2))
        assert (report.verdict.verdict, report.satisfied) == ("mixed", False)


@pytest.mark.parametrize("nodes_line", [[nodes(2)], []])
@pytest.mark.parametrize("begins", [[*START], [], ["NET/Socket : Using [0]eth0:10.0.0.1<0>"]])
@pytest.mark.parametrize("again", [(init("COMPLETE"),), AGAIN, ()])
def test_a_communicator_that_was_complete_before_any_network_was_named_proves_nothing(
    nodes_line: list[str], begins: list[str], again: tuple[str, ...]
) -> None:
    """A server that connects later, and a raw quotation of a log over RDMA: neither names the network it takes."""
    server = said(*begins, init("START"), *nodes_line, init("COMPLETE"))
    report = judge(server + said(*again, channel()))
    assert (report.verdict.verdict, report.satisfied) == ("unknown", False)
    assert "completed a communicator before any line named its network" in report.msg


@pytest.mark.parametrize("address", ["0x1", "0x2"])
@pytest.mark.parametrize("pid", [1, 2])
@pytest.mark.parametrize("begins", [[*START], [START[0], "NET/Socket : Using [0]eth0:10.0.0.1<0>"]])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_communicator_without_a_network_of_its_own_takes_the_pass_of_a_quotation_away(
    first: bool, begins: list[str], pid: int, address: str
) -> None:
    """The quotation names the network that it takes, and the server's log does not."""
    quotation = said(
        *START, IB, init("START", address), nodes(2, address), init("COMPLETE", address), channel(), pid=pid
    )
    server = said(init("START"), nodes(2), init("COMPLETE"))
    log = said(*begins) + (quotation + server if first else server + quotation)
    report = judge(log)
    assert (report.verdict.verdict, report.satisfied) == ("unknown", False), log
    assert "quotation" in report.msg


def test_a_split_may_share_the_network_of_its_parent() -> None:
    child = (
        "ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 parent 0x1 splitCount 1 color 5 key 0"
    )
    split = said(f"{child}- Init START", nodes(2, "0x2"), f"{child} - Init COMPLETE")
    assert judge(SOUND + split).satisfied
    # Old releases, which print no commId, name the network once per process.
    second = init("COMPLETE", "0x2")
    old = said("NCCL version 2.10.3+cuda11.4", IB, *DONE, channel(), second.replace(" commId 0x7", ""))
    assert judge(old).satisfied
    assert not judge(old + said(second)).satisfied


def test_a_release_that_names_no_network_passes_because_it_connects_first() -> None:
    """NCCL 2.5 lists its devices and prints no "Using network"."""
    devices = "NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:10.0.0.1<0>"
    assert judge(said("NCCL version 2.5.6+cuda10.2", devices, channel(), init("COMPLETE"))).satisfied
