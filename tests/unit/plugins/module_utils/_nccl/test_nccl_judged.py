# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge logs that must not pass, and logs that must not fail, and compare all verdicts with a stored text.

An earlier version judged many of them wrongly. Something is missing in them that a pass needs, or something is in them
that only looks like a failure: a torn line, a start of another process, a text of a collector.
"""

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import stored
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import (
    Expectation,
    Report,
    is_final,
    judge_all,
    nothing_read,
)
from nccl_lines import (
    AGAIN,
    BARE,
    COLLECTED,
    DONE,
    HALF,
    IB,
    INTRA,
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

ANY, SOCKET = Expectation(), "Using network Socket"
CHOSEN, LISTED = Expectation(evidence="selection"), Expectation(evidence="banner")
LIST = "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB e:1"
CONNECTED = "Connected all rings, use ring PXN 0 GDR 0"
HUNG = said(init("START", "0x2", shared="0x8"))
LATER = said(init("START", "0x2", shared="0x9"), init("COMPLETE", "0x2", shared="0x9"))
ONE_NODE = (init("START"), nodes(1), init("COMPLETE"))
INSIDE = said(IB, *ONE_NODE, P2P)
COLLNET = "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0"
SECOND = (init("START", rank=1), nodes(2, rank=1), init("COMPLETE", rank=1))
GDR = f"{channel()}/GDRDMA"
FOUR = [f"Channel 0{n}/0 : 0[0] -> 1[0] [send] via NET/IB/{n % 2}" for n in range(4)]
BEGUN = "ncclCommInitRank comm {0} rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f000 commId {0} - Init COMPLETE"
OLD = "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
QP = "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 305 mtu {} GID 3 (0/164640AFFFF0000)"
NO_DEVICE = "NET/IB : No device found."
PREPOST = "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS set by environment to 1."
CAUSES = yaml.safe_load((Path(__file__).parents[3] / "fixtures/nccl/causes.yml").read_text(encoding="utf-8"))
SHOWS = {name: cause["shows"][0] for name, cause in CAUSES.items()}
BANNERS = said("NET/Socket : Using [0]eth0:10.0.0.1<0>", "NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>")
EARLY = said("NET/Socket : Using [0]eth0:10.0.0.2<0>", pid=2)
PEER_GONE = "s1:1:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer s2<1>\n"
WATCHDOG = "[rank0]:[E] ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout\n"
FAILED = "transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<2> with error 12, opcode 1"
MNNVL = tuple(line.replace("MNNVL 0", "MNNVL 1") for line in other(2))
WORKER = said(*START, init("START", rank=0), channel("Socket"), host="w")
WORKER += said(*START, init("START", rank=1), init("COMPLETE", rank=1), channel(), host="w")


def ranks(number: int, of: int, host: str = "s{0}", shared: str = "0x7", first: int = 0) -> str:
    """Return the logs of some ranks of one group."""
    return "".join(
        said(
            IB,
            *(init(word, rank=rank, nranks=of, shared=shared) for word in ("START", "COMPLETE")),
            nodes(of, rank=rank, nranks=of),
            channel(),
            host=host.format(rank),
            pid=rank + 1,
        )
        for rank in range(first, number)
    )


def on(gpu: int, pid: int, network: str, shared: str) -> str:
    """Return the lines of a process about one of its GPUs."""
    comm = f"0x{gpu + 1}"
    return said(*(init(w, comm, gpu, 2, shared, gpu) for w in ("START", "COMPLETE")), channel(network), pid=pid)


def two_gpus(second: str) -> str:
    earlier = said(*START, pid=1) + on(0, 1, "Socket", "0x7") + said(*START, pid=2) + on(1, 2, "Socket", second)
    return earlier + said(*START, pid=3) + on(0, 3, "IB", "0x8") + on(1, 3, "IB", "0x8")


def torn(end: str) -> str:
    """Return a channel line that another host continues."""
    return said(f"Channel 00/0 : 0[0] -> 1[0] {end}").rstrip("\n") + said(channel(), host="spark2", pid=2)


MANY = "".join(said(IB, *other(number), channel()) for number in range(300))
SECOND_HOST = said(IB, init("START", rank=1), init("COMPLETE", rank=1), channel(), host="s2")
TWO = said(*START, IB, *DONE, channel()) + SECOND_HOST
GOES_ON = said(channel(), "Connected all trees", "comm 0x1 destroyed", host="s2")
BOOTSTRAP = "Bootstrap : Using eth0:10.0.0.1<0>"
FIRST_LINE = said(BOOTSTRAP) + f"{OLD_BARE}\n{SOUND}"
TWO_FIRST = FIRST_LINE + said(BOOTSTRAP, pid=2) + f"{OLD_BARE}\n" + said(IB, *AGAIN, channel(), pid=2)


def pod(name: str, log: str) -> str:
    return collected(f"[pod/{name}/s] {{1}}", log)


PODS = pod("a", SOUND) + pod("b", SECOND_HOST)
# Logs that start again, or only seem to, also with what a collector puts before each line
STARTS = {
    "silent start": f"{SOUND}{BARE}\n",
    "two ranks, no start": TWO,
    "silent start of one rank while another goes on": f"{TWO}{BARE}\n{GOES_ON}",
    # Up to 2.22, NCCL prints this line at INFO too, after the first line of rank 0.
    "version line of an old release": FIRST_LINE,
    "version lines of two ranks of an old release": TWO_FIRST,
    "second copy of the library": f"{SOUND}{OLD_BARE}\n" + said(IB, *other(1), channel()),
}
LOGS: dict[str, str | tuple[str, Expectation]] = {
    "sound": SOUND,
    "sound, as a plan expects": (SOUND, Expectation(networks=("IB",), nodes=2, complete=True)),
    "sound, after a bar of progress": "Loading: 50%|###  | 1/2\r" + SOUND,
    "63 of 64 ranks": "".join(
        said(IB, init("COMPLETE", rank=rank, nranks=64), channel(), host=f"s{rank // 8}", pid=rank)
        for rank in range(63)
    ),
    "one of 64 ranks": said(IB, init("COMPLETE", nranks=64), channel()),
    "idle communicator over TCP before many": said(SOCKET, *DONE) + MANY,
    "dropped: TCP that was used otherwise": said(SOCKET, *DONE, channel()) + MANY,
    "dropped: unknown network": said("Using network Foo", *DONE) + MANY,
    "dropped: inside a node": said(SOCKET, *ONE_NODE) + MANY,
    # Torn lines
    **{
        f"torn: {end}": SOUND + torn(end)
        for end in ("[send] via NET/Soc", "[send] via NET/", "[send] via N", "[send] v")
    },
    **{f"torn: {end}": SOUND + torn(end) for end in ("[se", "via NET/Fast", "[send] via NET/IB")},
    "torn: TCP already": said(*DONE, channel("Socket")) + torn("[se").partition(channel())[0],
    "torn: starts of IB": SOUND + said(f"{HALF}I", f"{HALF}Li", pid=2),
    "torn: start of IB of another rank": SOUND + said(*SECOND, f"{HALF}I", host="s2"),
    **{
        f"torn: another network, {network}": (
            said(f"Using network {network}", *DONE, channel(network)) + more,
            Expectation(networks=(network,)),
        )
        for network in ("UCX", "AWS Libfabric")
        for more in (said(f"{channel()[:-4]}So", pid=2),)
    },
    **{
        f"end of a TCP line: {end!r}": f"{SOUND}{end}"
        for end in ("ia NET/Socket/0\n", "NET/Socket/0", "a NET/FastSocket/1\n")
    },
    **{
        f"without its start: {rest}": SOUND + said(rest, pid=2)
        for rest in ("0] [send] via NET/So", "0] -> 1[0] [send] via", "via NET/Socket/0")
    },
    **{
        f"ran into another: {first.rpartition(' ')[2]} {rest}": said(
            IB, *DONE, channel(), f"{first}0[0] -> 1[0] [send] via {rest}"
        )
        for first in (channel(), P2P)
        for rest in ("NET/Socke", "NET/", "N", "NET/Socket/0", "NET/IB/1")
    },
    "ran into another: TCP": said(*DONE, f"{channel()}Channel 01/0 : 1[0] -> 0[0] via NET/Socket/0"),
    "ran into another: TCP, after a sound log": SOUND
    + said(f"{channel()}Channel 01/0 : 1[0] -> 0[0] via NET/Socket/0"),
    "a sentence that names a socket": f"{SOUND}why does NCCL print NET/Socket/0 here?\n",
    # What proves no TCP
    "another rank inside its node": SOUND + said(*SECOND, P2P, host="s2"),
    "another rank with reductions in the network": SOUND + said(*SECOND, COLLNET, host="s2"),
    "channels over RDMA after another selection": said(SOCKET, *DONE, channel()),
    "NVLink after a selection": SOUND + said(SOCKET, *MNNVL, P2P, host="s2"),
    "a warning that names a network": SOUND + "s1:1:1 [0] net.cc:9 NCCL WARN Using network Socket is slow\n",
    "a warning that quotes a channel": SOUND + f"s1:1:1 [0] net.cc:9 NCCL WARN {channel('Socket')}\n",
    "an unknown network of an idle communicator": SOUND + said("Using network Foo", *other(2)),
    "an unknown network of an idle communicator, and IB is expected": (
        SOUND + said("Using network Foo", *other(2)),
        Expectation(networks=("IB",)),
    ),
    "another network is chosen than expected": (
        said("Using network gIB", *DONE),
        Expectation(networks=("IB",), evidence="selection"),
    ),
    "a plugin, and IB of an idle communicator": said(*DONE, *[channel("IBext_v8")] * 3)
    + said(IB, *other(2), host="s2"),
    "banners of 2.4": (BANNERS + EARLY, LISTED),
    "banners of 2.4, socket first": (EARLY + BANNERS, LISTED),
    "banners of 2.4, no device": (BANNERS + EARLY + said(NO_DEVICE, pid=2), LISTED),
    # Communicators without an end
    **{
        f"unfinished, then {line[:19]}": SOUND + HUNG + said(line)
        for line in (CONNECTED, CONNECTED.replace("rings", "trees"))
    },
    "unfinished, alone on its node": SOUND + said(init("START", "0x2", nranks=1, shared="0x8")) + LATER,
    "unfinished, never": SOUND + HUNG,
    "unfinished, its address is used again": SOUND + HUNG + LATER,
    "unfinished, on another host": SOUND + (HUNG + LATER).replace("s1:1:1", "s2:2:2"),
    "finished, a second one": SOUND + LATER,
    "unfinished, another rank": SOUND + said(IB, init("START", rank=1), nodes(2, rank=1), channel(), host="s2"),
    "an old release connects": (said(OLD, channel(), CONNECTED), Expectation(complete=True)),
    "an old release connects, after another process": said(OLD) + said(*START, pid=2) + said(OLD, channel(), CONNECTED),
    "an excerpt without starts": said(nodes(2), channel()),
    "one of one rank": SOUND + said(init("START", "0x2", nranks=1, shared="0x8")),
    "one inside the node before": INSIDE + said(*other(1), channel()),
    "the second one finishes": (
        said(init("COMPLETE", "0x9", nranks=1, shared="0x9"), IB, *DONE, channel()),
        Expectation(nodes=2, complete=True),
    ),
    "the second process finishes": (said(*START) + said(IB, *DONE, host="s2"), CHOSEN),
    "a promise": (said(IB), CHOSEN),
    "a promise of a user": (f"user said: NCCL INFO {IB}\n", CHOSEN),
    "a promise without a name": ("".join(f"NCCL INFO {text}\n" for text in (IB, *DONE)), CHOSEN),
    "a promise that was kept": (said(IB, *DONE), CHOSEN),
    "a banner": (said(LIST), LISTED),
    "a banner, finished": (said(LIST, *DONE), LISTED),
    # Ranks
    **{
        f"three ranks named {host!r}, {seen} seen": ranks(seen, 3, host=host)
        for host in ("worker", "")
        for seen in (3, 2, 1)
    },
    "a torn rank of two": ranks(2, 3, host="w").replace(said(nodes(3, nranks=3), host="w"), ""),
    "a rank that has used no channel names its network": SOUND + said(IB, *SECOND, host="s2"),
    "ranks that name no network": SOUND
    + "".join(
        said(*(init(w, "0x9", 1, shared="0x9") for w in ("START", "COMPLETE")), nodes(1, "0x9", 1), *SECOND, host=host)
        for host in ("s2", "s3")
    ),
    "a process that only starts": (said(channel()) + said(*START, pid=2), Expectation(ranks=2)),
    "two ranks": (said(channel()) + said(channel(), host="s2"), Expectation(ranks=2)),
    **{
        f"it says {line[:20]}": said(line)
        for line in (init("START"), channel(), IB, P2P, "NCCL_IB_DISABLE set by environment to 1.")
    },
    "a torn number of ranks": said(init("COMPLETE", nranks=212345678901234)),
    "several GPUs of one process": (
        said(*(init("COMPLETE", f"0x{n}", n, 4, device=n) for n in (0, 1)), IB, *FOUR),
        Expectation(ranks=2),
    ),
    # Inside a node
    "inside a node": (INSIDE, INTRA),
    "inside a node, not expected": INSIDE,
    "inside a node, dropped": (INSIDE + INSIDE, INTRA),
    "inside a node, a torn line": (INSIDE + P2P + "via NET/So\n", INTRA),
    "inside a node, no communicator": (said(P2P), INTRA),
    "inside a node, no process": (f"NCCL INFO {P2P}\n", INTRA),
    "inside a node, unfinished": (INSIDE + HUNG, INTRA),
    "NVLink between nodes": (said(*MNNVL, P2P), INTRA),
    "NVLink between nodes, no path": (said(*MNNVL), INTRA),
    **{
        f"inside a node, {name}": (text, INTRA)
        for second in [said(init("START", rank=1), nodes(1, rank=1), init("COMPLETE", rank=1), P2P, pid=2)]
        for name, text in {
            "paths of one rank": said(*ONE_NODE) + second,
            "another host has begun": said(*START, host="s2") + second,
            "two hosts": said(P2P) + said(P2P, host="s2"),
            "one leaves it": second + said(*other(8), pid=3),
            "a torn path later": said(P2P) + said(P2P, pid=2) + "s1:2:2 [1] NCCL INFO Channel 01/0 : 1[1] -> ",
        }.items()
    },
    "idle, inside a node by its selection": said(IB, IB, init("START"), nodes(1), init("COMPLETE")),
    # Expectations that a log does not meet, or meets
    **{
        f"{expect}: {name}".replace("Expectation", ""): (said(*lines), expect)
        for name, lines in {
            "channels": FOUR,
            "one channel": FOUR[:1],
            "a plugin too": [*FOUR, channel("IBext_v8")],
        }.items()
        for expect in (
            *(Expectation(min_devices=2), Expectation(complete=True), Expectation(gdr=True), Expectation(nodes=2)),
            *(Expectation(ranks=2), Expectation(networks=("IBext*",)), Expectation(networks=("IB",))),
        )
    },
    "devices of a rank": (said(DONE[-1], FOUR[0]), Expectation(min_devices=2)),
    "complete: only nodes": (said(OLD, *FOUR), Expectation(complete=True)),
    "no GPUDirect is expected": (said(GDR), Expectation(gdr=False)),
    "nothing": "",
    "nothing, allowed": ("", Expectation(allow_unknown=True)),
    "UCX by GPUDirect": said("Using network UCX", *DONE, GDR.replace("IB", "UCX")),
    "UCX beside IB": said(*FOUR, channel("UCX")),
    "another device is used, and one is enough": (
        said(*FOUR, "NET/IB: Subnet-aware routing: overriding dev 1 with dev 0"),
        Expectation(min_devices=1),
    ),
    "another device is used": (
        said(*FOUR, "NET/IB: Subnet-aware routing: overriding dev 1 with dev 0"),
        Expectation(min_devices=2),
    ),
    "two networks of a communicator": said(*DONE, channel(), channel("Socket")),
    "two communicators": said(BEGUN.format("0xa"), *FOUR, GDR, GDR, SOCKET, BEGUN.format("0xb")),
    "channels of another thread": said(DONE[-1]) + said(*FOUR).replace("s1:1:1", "s1:1:9"),
    # Errors later
    "later: an error": SOUND + "NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited\n",
    "later: a peer": SOUND + PEER_GONE,
    "later: the watchdog": SOUND + WATCHDOG,
    "later: memory": SOUND
    + "s1:1:9 [0] NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12\n",
    "later: several": SOUND + WATCHDOG + PEER_GONE + PEER_GONE.replace("1:1", "2:2"),
    **{
        f"later: {before!r} before a warning": SOUND + f"{before}s1:1:1 [0] {FAILED}\n"
        for before in ("", "[2026-11-22 10:00:00] ", "2026-11-22T10:00:00.1Z stdout F ")
    },
    **{
        f"last words: {words[-12:]}{end!r}": f"{SOUND}{words}{end}"
        for words in ("Fatal Python error: Segmentation fault", "Caught signal 11 (Segmentation fault)")
        for end in ("", "\nlater\n")
    },
    # Causes, and how much the rest of a log lets them explain
    "cause: the devices are missing, and the names are right": said("NCCL_IB_HCA set to =rocep1s0f0v0", NO_DEVICE),
    "cause: the names are those of interfaces": said("NCCL_IB_HCA set to enp1s0f0np0", NO_DEVICE),
    "cause: a crash after the watchdog": f"{WATCHDOG}{SHOWS['segfault']}\n",
    "cause: a crash": said(BOOTSTRAP) + f"{SHOWS['segfault']}\n",
    "cause: a proxy that failed after memory": f"{SHOWS['reg_mr']}\n{SHOWS['proxy_failed']}\n",
    "cause: prepost alone": said(PREPOST),
    "cause: prepost and inline": said(PREPOST, "NCCL_IB_USE_INLINE set by environment to 1."),
    "cause: at the end of a long log": "\n" * 300_000 + f"{SHOWS['rank_missing']}\n",
    "cause: no device": said(init("START"), nodes(2), NO_DEVICE),
    # RDMA was found nevertheless.
    "cause: no device, and RDMA": SOUND + said(NO_DEVICE),
    "cause: no device, and RDMA was chosen": said(IB, NO_DEVICE),
    "cause: no device, and devices": said(LIST, NO_DEVICE),
    "cause: no provider of libfabric": SOUND + f"s1:1:1 [0] {SHOWS['ofi_no_provider']}\n",
    # A job inside one node needs no network.
    "cause: no device inside a node": said(init("START"), nodes(1), NO_DEVICE),
    "cause: no device inside a node, and TCP": said(init("START"), nodes(1), channel("Socket"), NO_DEVICE),
    # What is used tells more than what was chosen.
    "cause: no device, TCP after RDMA was chosen": said(IB, init("START"), channel("Socket"), NO_DEVICE),
    "cause: at the end, once": SOUND + f"s1:1:1 [0] {CAUSES['verbs_provider']['shows'][1]}\n",
    "cause: a remark": SOUND + said("NET/IB : Using [0]rxe0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"),
    "MTUs": said(QP.format(5), QP.format(3), *FOUR),
    # Starts
    **STARTS,
    **{
        f"silent start after {text!r}": f"{SOUND}{text}{BARE}\n"
        for text in ("\x1b[36m(RayWorker pid=3)\x1b[0m ", "Loading: 100%\r", "INFO ready")
    },
    **{
        f"version {v[:12]}": f"NCCL version {v}\n{SOUND}"
        for v in ("2.28or(", "2.2000]", "2.2ocessGroupNCCL", f"2.{'9' * 5000}")
    },
    "two pods": PODS,
    "silent start of one pod, and one of another": (
        PODS + pod("a", BARE) + pod("b", said(*START, IB, *AGAIN, channel(), host="s2", pid=2))
    ),
    "start of one pod, and silent start of another": (
        PODS + pod("a", OLD_BARE) + pod("a", said(IB, *AGAIN, channel())) + pod("b", BARE)
    ),
    "an error that names the version": f"{SOUND}NCCL error in: x.cpp:77, unhandled system error, NCCL version 2.28.9\n",
    "a user who names the version": f"{SOUND}why does it say NCCL version 2.28.9+cuda13.0 and nothing else?\n",
    "a version line between two lines of a rank": f"{SOUND}{said(IB, pid=2)}{OLD_BARE}\n{said(IB, pid=2)}",
    "a version line after a rank": f"{SOUND}{said(IB, pid=2)}{OLD_BARE}\n",
    "a version line after a rank that came first": f"{said(IB, pid=2)}{SOUND}{OLD_BARE}\n",
    "a later process is unready": said(*START) + SOUND + said(*START, pid=2) + said("Connected all trees"),
    "a later process while another sets up": SOUND + said(*START, pid=2) + SECOND_HOST,
    "one line that a process prints once": SOUND + said("cudaDriverVersion 13000"),
    "two of them": SOUND + said("cudaDriverVersion 13000") * 2,
    # ``docker run --hostname worker``: every container has host worker and process 1.
    "containers with one name": WORKER,
    "nine containers with one name": "".join(
        said(*START, IB, init("START", rank=rank, nranks=9), init("COMPLETE", rank=rank, nranks=9), channel())
        for rank in range(9)
    ),
    "two processes on one GPU": said(SOCKET, *DONE) + said(IB, *AGAIN, channel(), pid=2),
    **{
        f"two processes on one GPU, between them a start of pod {' and one of pod '.join(names)}": (
            pod("b", said(SOCKET, *DONE))
            + "".join(pod(name, BARE) for name in names)
            + pod("b", said(IB, *AGAIN, channel(), pid=2))
        )
        for names in ("a", "ab")
    },
    "two processes on one GPU, the first inside a node": said(SOCKET, *ONE_NODE) + said(IB, *AGAIN, channel(), pid=2),
    **{
        f"restart of process {pid} after {name}": said(*START, *before) + said(*START, IB, *AGAIN, channel(), pid=pid)
        for pid in (1, 2)
        for name, before in {
            "TCP": (*DONE, channel("Socket")),
            "a selection of TCP": (SOCKET, *DONE),
            "a TCP plugin": (*DONE, channel("FastSocket")),
            "RDMA": (*DONE, channel()),
            "paths in a node": (*DONE, P2P),
            "a start": (init("START"),),
        }.items()
    },
    **{
        f"restart of process {pid}, then TCP: {len(again)}": said(*START, IB, *DONE, channel())
        + said(*START, *again, channel("Socket"), pid=pid)
        for pid in (1, 2)
        for again in (AGAIN, AGAIN[1:])
    },
    "restart without a version line": said(IB, *DONE, channel())
    + said(
        init("COMPLETE", shared="0x9"),
        init("START", "0x2", shared="0x8"),
        init("COMPLETE", "0x2", shared="0x8"),
        channel(),
        pid=2,
    ),
    "a process on two GPUs replaces one on each": two_gpus("0x7"),
    "a process on two GPUs replaces one on each, of two groups": two_gpus("0x6"),
}


def told(report: Report) -> list[str]:
    """Return what a log proves, in a line, and then why it does not pass."""
    ranks = [f"{p.host}:{p.pid}" + (f" rank {p.rank}" if p.rank >= 0 else "") for p in report.processes if p.speaks]
    data = report.as_dict()
    notes = {
        "version": report.version[:20],
        "earlier": len(report.earlier),
        "incomplete": not report.complete,
        "gdr": data["gdr_channels"],
        "intra": data["intra"],
        "causes": [f"{each['id']} {each['confidence']} x{each['count']}" for each in report.causes],
        "troubles": report.troubles,
    }
    more = "".join(f"; {name}: {value}" for name, value in notes.items() if value)
    shown = str(report.channels) if report.channels else "no channels"
    head = (
        f"{'pass' if report.satisfied else 'fail'}: {', '.join(report.verdict)}; {shown}; {', '.join(ranks[:3])}{more}"
    )
    return [head, *(f"- {text}" for text in report.failures)]


def pair(case: str | tuple[str, Expectation]) -> tuple[str, Expectation]:
    return (case, ANY) if isinstance(case, str) else case


def test_the_verdict_on_each_log_is_as_stored() -> None:
    found = {name: told(judge(*pair(case))) for name, case in LOGS.items()}
    some = ("sound", "nothing", "later: several", "two networks of a communicator", "cause: no device, and RDMA")
    found["messages"] = [judge(*pair(LOGS[name])).msg for name in some]
    stored.compare("nccl_logs", found)


@pytest.mark.parametrize("form", ["2026-11-22T10:00:00.1Z stdout F {1}", "(RayWorker pid=3) {1}", *COLLECTED])
def test_text_that_a_collector_puts_before_every_line_changes_nothing(form: str) -> None:
    for name, log in {**STARTS, "sound": SOUND, "later: the peer": f"{SOUND}s1:1:1 [0] {FAILED}\n"}.items():
        assert told(judge(collected(form, log))) == told(judge(log)), name


def opened(log: str) -> list[Any]:
    return [nullcontext(io.BytesIO(log.encode()).read)]


def summed(result: dict[str, Any]) -> list[str]:
    """Return the judgement of all sources."""
    head = ", ".join(str(result[key]) for key in ("verdict", "transport_class", "evidence"))
    kept = {key: result[key] for key in ("healthy", "complete", "source") if key in result}
    more = [f"{one['source']}: {one['verdict']}, {one['ranks']} ranks" for one in result["sources"]]
    causes = [f"cause {each['id']} of {each['source']}" for each in result["causes"]]
    ranks = [
        f"rank {one['rank']} of {one['pod']} {one['host']}:{one['pid']}: {one['verdict']}, gdr {one['gdr_channels']}, "
        + "; ".join(
            f"{c['verdict']} {c['evidence']} {c['channels']} gdr {c['gdr_channels']}" for c in one["communicators"]
        )
        for one in result["ranks"]
    ]
    final = "final" if is_final(result) else "not final"
    word = "pass" if result["satisfied"] else "fail"
    head = "; ".join([f"{word}, {final}: {head}", str(kept), *more, *causes])
    return [head, *(f"- {text}" for text in result["failures"]), *ranks[:4], result["msg"]]


def member(rank: int, shared: str = "0xa") -> str:
    return said(init("START", rank=rank, shared=shared), *FOUR, init("COMPLETE", rank=rank, shared=shared))


DEAD = "s1:1:1 [0] net.cc:9 NCCL WARN Error: network IB not found.\n"
GROUPS = {f"pod-{n}": member(n % 2, "0xa" if n < 2 else "0xb") for n in range(4)}
SWAPPED = {"pod-0": member(1), "pod-1": member(0)}
JOBS = {
    f"{job}{rank}": ranks(rank + 1, size, f"{job}{{0}}", job, rank)
    for job, size in (("0x7", 3), ("0x8", 4))
    for rank in (0, 1)
}
CHANNELS = said(*FOUR)
# {case: {source: log}, expectation, places}
SOURCES: dict[str, tuple[Any, ...]] = {
    "no source": ({},),
    **{
        name: ({"a": LOGS[name]},)
        for name in ("two communicators", "two networks of a communicator", "idle, inside a node by its selection")
    },
    "a communicator that has only chosen": ({"a": said(IB, IB, DONE[0], DONE[2])},),
    "other transports": ({"a": CHANNELS, "b": said(SOCKET)},),
    "ranks and nodes": ({"a": CHANNELS}, Expectation(ranks=2, nodes=2)),
    "one source, TCP": ({"a": said(NO_DEVICE, channel("Socket"))},),
    "a silent one": ({"a": "", "b": said(channel())},),
    "a silent one, and TCP": ({"a": "", "b": said(channel("Socket"))},),
    "mixed, and a dead one": ({"a": said(*FOUR, channel("Socket")), "b": DEAD},),
    "mixed": ({"a": said(*FOUR, channel("Socket")), "c": CHANNELS},),
    "one that has begun": ({"a": said(DONE[-1], *FOUR), "b": said(DONE[0], *FOUR, NO_DEVICE)},),
    "final": ({"a": said(IB, DONE[-1], *FOUR)},),
    "final, other devices": ({"a": said(IB, DONE[-1], *FOUR)}, Expectation(min_devices=2, gdr=False, networks=("IB",))),
    "not final": ({"a": said(IB)},),
    "not final, ranks are missing": ({"a": said(IB, DONE[-1], *FOUR)}, Expectation(ranks=2)),
    "dead": ({"a": DEAD},),
    "four ranks of two groups": (GROUPS, Expectation(ranks=4)),
    "two of four ranks": (dict([*GROUPS.items()][:2]), Expectation(ranks=4)),
    "two groups in their places": (GROUPS, ANY, {f"pod-{n}": n for n in range(4)}),
    "in other places": (SWAPPED,),
    "in their places": (SWAPPED, ANY, {"pod-0": 1, "pod-1": 0}),
    "in wrong places": (SWAPPED, ANY, {"pod-0": 0, "pod-1": 1}),
    "troubles of one": ({"a": said(DONE[-1], *FOUR), "b": said(DONE[-1], *FOUR, "Cuda failure 2 'out of memory'")},),
    "MTUs of two": ({name: said(QP.format(mtu), *FOUR) for name, mtu in (("a", 3), ("b", 5))},),
    "one MTU": ({name: said(QP.format(5), *FOUR) for name in "ab"},),
    "MTUs of one": ({"a": said(NO_DEVICE), "b": said(QP.format(5), QP.format(3), *FOUR)},),
    "two of three ranks": ({f"rank{n}": ranks(n + 1, 3, first=n) for n in (0, 1)},),
    "two jobs": (JOBS,),
    "two of three in one source": ({"a": ranks(2, 3)}, Expectation(ranks=2)),
    "two of three, another network": ({"a": ranks(2, 3)}, Expectation(networks=("gIB",))),
    "ranks that have begun": (
        {f"rank{n}": said(init("START", rank=n, nranks=3), host=f"s{n}") for n in (0, 1)},
        Expectation(allow_unknown=True),
    ),
    "an unknown transport is allowed": ({"x": ""}, Expectation(allow_unknown=True)),
}
RESTARTED = said(*DONE, channel("Socket")) + said(IB, *AGAIN, channel(), pid=2)
# {case: the log of a pod, and how its files are read}
FILES: dict[str, tuple[str, dict[str, bool]]] = {
    **{
        f"{name}, {given}": (log, given)
        for name, log in {
            "channels": CHANNELS,
            "sound": SOUND,
            "without a name": SOUND.replace("s1:1:1 ", ""),
            "unfinished": SOUND + HUNG + said(CONNECTED),
            "restarted": RESTARTED,
            "restarted as one process": said(*START, *DONE, channel("Socket"), *START, IB, *AGAIN, channel()),
            "two processes": CHANNELS + said(GDR, GDR, host="s2"),
        }.items()
        for given in ({}, {"own_files": True}, {"one_start": True})
    },
    **{
        f"the end of a TCP line, {end}": (f"{SOUND}{end}\n", {"one_start": True})
        for end in ("ia NET/Socket/0", "NET/Socket/0", "d] via NET/FastSocket/1")
    },
}


def test_the_judgement_of_all_sources_is_as_stored() -> None:
    found = {}
    for name, (logs, *given) in SOURCES.items():
        found[name] = summed(judge_all({source: read(log) for source, log in logs.items()}, *given or [ANY]))
    for name, (log, flags) in FILES.items():
        result, kept = judge_sources({"pod": opened(log)}, Expectation(min_devices=1), {"pod": 0}, **flags)
        assert b"".join(kept["pod"]).decode().rstrip() == log.rstrip() or "Socket/" in log
        assert ("can forge it" in result["remark"]) is (result["source"] == "text")
        found[f"files: {name}"] = summed(result)
    found["one text among files"] = summed(judge_all({"a": NcclLog(own_files=True), "b": read("")}, ANY))
    found["nothing read"] = summed(nothing_read("no file"))
    stored.compare("nccl_sources", found)
