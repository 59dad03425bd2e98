# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when a rank counts as proven, and what its condition, the pods of other ranks and its metrics say."""

from typing import Any

import stored
from ansible_collections.gb10.cluster.plugins.module_utils._pod import gate
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import (
    Condition,
    History,
    Rail,
    Seen,
    decide,
    unproven,
)
from gate_rank import SIDECAR, STARTED

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
    "msg": "RDMA",
}
NO_DEVICE = {"id": "no_rdma_device", "confidence": 0.3}
MISMATCH = {"id": "wrong_peer_type", "confidence": 0.6}
UNLIKELY = [MISMATCH | {"confidence": 0.2}, NO_DEVICE | {"confidence": 0.29}]
OTHER = GOOD | {"satisfied": False}
TCP = OTHER | {"verdict": "socket", "transport_class": "tcp", "causes": [UNLIKELY[0], NO_DEVICE], "msg": "TCP"}
NONE = {"complete": False, "verdict": "unknown", "transport_class": "unknown", "evidence": "none", "msg": "nothing"}
DEAD = OTHER | NONE | {"verdict": "error", "evidence": "failure", "msg": "failed"}
ADDRESSES = frozenset(rail.address for rail in RAILS)
# What differs from a healthy rank, by the word of a look.
STATES: dict[str, dict[str, Any]] = {
    "idle": {"start": ""},
    "early": {"judged": OTHER | NONE},
    "tcp": {"judged": TCP},
    "planned-tcp": {"judged": TCP | {"satisfied": True}},
    "unexplained-tcp": {"judged": TCP | {"causes": UNLIKELY}},
    "dead": {"judged": DEAD},
    "mismatch": {"judged": OTHER | {"causes": [MISMATCH], "msg": "wrong type"}},
    "unfinished": {"judged": OTHER | {"complete": False, "msg": "1 of 3 communicators never finished"}},
    "selected": {"judged": OTHER | {"evidence": "selection", "msg": "not connected"}},
    "unfinished-selected": {"judged": OTHER | {"complete": False, "evidence": "selection", "msg": "not connected"}},
    "fewer": {"judged": OTHER | {"msg": "rank 0 uses 1 of 2 devices"}},
    "changed": {"changed": "a line vanished"},
    "blind": {"blinder": "NCCL_X=1"},
    "no-gids": {"gids": frozenset()},
    "no-gid-1": {"gids": ADDRESSES - {"10.100.0.1"}},
    "no-gid-2": {"gids": ADDRESSES - {"10.101.0.1"}},
    "low-mtu": {"mtus": {"net1": 9000, "net2": 1500}},
    "high-mtu": {"mtus": {"net1": 9216, "net2": 9000}},
    "no-mtus": {"mtus": {}},
    "down": {"down": ("net2 has no carrier",)},
    "others": {"others": {"g-1-0": "", "g-2-0": "TCP"}},
    "no-rdma": {},
}
NUMBERS = {"start": ("start", str), "tokens": ("tokens", float), "bytes": ("rdma_bytes", int)}
SOUND = {"start": "1", "judged": GOOD, "gids": ADDRESSES, "mtus": {"net1": 9000, "net2": 9000}}
# Each course begins with a new history: looks with their second, the words of STATES, and numbers.
COURSES = {
    "one look": [
        *("0", "0 idle", "0 early", "0 tcp", "0 unexplained-tcp", "0 dead", "0 changed", "0 tcp changed"),
        *("0 no-gid-1", "0 no-gid-2", "0 low-mtu", "0 high-mtu", "0 no-mtus", "0 others", "0 fewer"),
        *("0 mismatch", "0 mismatch blind", "0 early blind", "0 tcp blind", "0 mismatch others", "0 dead others"),
        *("0 no-rdma no-gids planned-tcp", "0 no-rdma tcp", "0 down", "0 down tcp", "0 down dead", "0 down idle"),
        "0 down no-rdma tcp",
    ],
    "a communicator that is made while serving is given time, and TCP is not": [
        "0; 3 unfinished; 6; 15 unfinished; 905 unfinished; 906 unfinished; 907; 908 tcp; 925 unfinished start=2",
        *("0; 20 unfinished changed", "0; 20 fewer", "0; 20 unfinished-selected"),
    ],
    "a look between two writes takes no proof away": ["1; 15.9 early; 16 early", "1; 15.9 changed; 16 changed"],
    "a rank that fails at every start keeps its cause until NCCL says more": [
        "0 tcp; 0 tcp; 0 early idle; 0 early start=2; 0 tcp start=2; 0 early start=3; 0 selected start=3;"
        "0 early start=4",
        "0 tcp; 0 start=2; 0 early start=3; 0 idle",
        "0 tcp; 0 dead start=2; 0 early start=3",
    ],
    "a link that is back counts after bytes were sent": [
        "0 bytes=1000; 0 down bytes=1000; 0 down bytes=7000; 0 bytes=7000; 0 bytes=9047; 0 bytes=9048",
        "0 bytes=1000; 0 down bytes=9500; 0 bytes=9500; 0 bytes=9600; 0 bytes=90000",
        # The driver was loaded again.
        "0 down bytes=7000; 0 bytes=0; 0 bytes=5000; 0 bytes=5000",
        # A device without counters can prove nothing more.
        *("0 down; 0; 0", "0 down bytes=7000; 0; 0 bytes=7000; 0 bytes=9048"),
        # Over TCP, the connections themselves notice the loss.
        "0 down no-rdma bytes=5; 0 no-rdma bytes=5",
        "0 down bytes=5; 0 bytes=5; 0 start=2 bytes=5",
    ],
    "counters that stand still while tokens flow": [
        "0 tokens=0 bytes=0; 21 tokens=100 bytes=10000000; 42 tokens=200 bytes=10000000; 63 tokens=300 bytes=10000010;"
        "84 tokens=400 bytes=20000000",
        "0 tokens=0 bytes=0; 21 tokens=100 bytes=0; 42 tokens=200 bytes=10000000; 63 tokens=300 bytes=10000000",
        # Two windows of the smallest size, with one byte less than the tokens need, and with all.
        "0 tokens=0 bytes=0; 20 tokens=32 bytes=2047; 40 tokens=64 bytes=4094; 60 tokens=96 bytes=6141",
        "0 tokens=0 bytes=0; 20 tokens=32 bytes=2048; 40 tokens=64 bytes=4096; 60 tokens=96 bytes=6144",
        # A window that is too small goes on.
        "0 tokens=0 bytes=0; 20 tokens=31 bytes=0; 40 tokens=62 bytes=0; 60 tokens=93 bytes=0; 80 tokens=124 bytes=0",
        "0 tokens=0 bytes=0; 19.5 tokens=32 bytes=0; 39 tokens=64 bytes=0; 58.5 tokens=96 bytes=0;"
        "78 tokens=128 bytes=0",
        # An idle moment does not begin a window anew, and a start does.
        "0 tokens=0 bytes=0; 10 tokens=0 bytes=0; 20 tokens=64 bytes=0; 30 tokens=64 bytes=0; 40 tokens=128 bytes=0;"
        "60 start=2 tokens=240 bytes=0; 80 start=2 tokens=320 bytes=0; 100 start=2 tokens=400 bytes=0",
    ],
    "an idle, unmeasured or restarted server": [
        *("0 tokens=5 bytes=7; 20 tokens=5 bytes=7; 40 tokens=5 bytes=7; 60 tokens=5 bytes=7", "0 bytes=7; 40 bytes=7"),
        *(
            "0 tokens=0; 20 tokens=100; 40 tokens=200",
            "0 tokens=900 bytes=9; 21 tokens=0 bytes=9; 42 tokens=20 bytes=9",
        ),
        "0 tokens=900 bytes=9; 20 tokens=0 bytes=9; 40 tokens=100 bytes=9; 60 tokens=200 bytes=9",
        # The driver was loaded again while tokens flow.
        "0 tokens=0 bytes=9000000; 20 tokens=100 bytes=0; 40 tokens=200 bytes=10",
        # Tokens that are counted only when a long request ends.
        "0 tokens=0 bytes=0; 60 tokens=0 bytes=60000000; 61 tokens=4000 bytes=60000100;"
        "120 tokens=4000 bytes=120000000; 121 tokens=8000 bytes=120000100",
    ],
}


def course(text: str, shown: stored.Once) -> list[str]:
    """Return a line for each look of a course; its message only if it differs from the one before."""
    history, before, lines = History(), "", []
    for look in text.split(";"):
        now, *words = look.split()
        changes: dict[str, Any] = {}
        for word in words:
            name, given, value = word.partition("=")
            changes |= {NUMBERS[name][0]: NUMBERS[name][1](value)} if given else STATES[name]
        found = decide(Seen(**SOUND | changes), history, RAILS, "no-rdma" not in words, float(now))
        assert found.proven is (found.reason == "Proven")
        said = f": {shown(found.message)}" if found.message != before else ""
        lines.append(
            f"{' ' if lines else '-'} {look.strip()} → {found.reason}{found.cause and f' ({found.cause})'}{said}"
        )
        before = found.message
    return lines


SERVER = {"name": "sglang", "state": {"running": {"startedAt": STARTED}}}
SAID = {"type": "gb10.cluster/transport", "status": "True", "lastTransitionTime": "2026-11-22T12:00:30Z"}
TOLD = {"containerStatuses": [SERVER, SIDECAR], "conditions": [{"type": "Ready"}, SAID]}
WAITS = [SERVER | {"state": {"waiting": {}}}, SIDECAR]
WRONG = [SAID | {"status": "False", "message": "TCP"}]
# What differs in the status of a pod that has proven its transport.
PODS: dict[str, dict[str, Any]] = {
    "a proof": {},
    "other order": {"containerStatuses": [SIDECAR, SERVER]},
    "no time of its start": {"containerStatuses": [SERVER | {"state": {"running": {}}}, SIDECAR]},
    "no time of its proof": {"conditions": [SAID | {"lastTransitionTime": None}]},
    "a proof in the second of its start": {"conditions": [SAID | {"lastTransitionTime": STARTED}]},
    "a proof before its start": {"conditions": [SAID | {"lastTransitionTime": "2026-11-22T11:59:59Z"}]},
    "no container": {"containerStatuses": None, "conditions": None},
    # Its sidecar still knows what the last start did.
    "a server that waits": {"containerStatuses": WAITS},
    "a server that waits after TCP": {"containerStatuses": WAITS, "conditions": WRONG},
    "a sidecar that waits": {"containerStatuses": [SERVER, {"name": "transport", "state": {"waiting": {}}}]},
    "a sidecar that is not ready": {"containerStatuses": [SERVER, SIDECAR | {"ready": False}]},
    "no condition": {"conditions": None},
    "TCP": {"conditions": WRONG},
    "unknown": {"conditions": [SAID | {"status": "Unknown", "message": "TCP"}]},
    "no message": {"conditions": [SAID | {"status": "False"}]},
}


def test_what_the_gate_says_is_as_stored() -> None:
    shown = stored.Once()
    found = {title: [line for text in texts for line in course(text, shown)] for title, texts in COURSES.items()}
    pods = {name: {"metadata": {}, "status": TOLD | status} for name, status in PODS.items()}
    pods |= {"deleted": pods["a proof"] | {"metadata": {"deletionTimestamp": "x"}}, "no status": {"metadata": {}}}
    found["the pods of other ranks"] = [f"{name}: {unproven(pod) or 'proven'}" for name, pod in pods.items()]
    stored.compare("gate_conditions", found)


def test_the_metrics_are_as_stored() -> None:
    """Packets are neither bytes nor errors, other devices are no rails, and labels cannot add lines."""
    counted = {
        "rdma": {
            "rocep1s0f0v0": {"xmit_bytes": 7, "rcv_bytes": 8, "port_xmit_discards": 1, "sent_pkts": 4},
            "other": {"xmit_bytes": 9},
        },
        "net": {"net1": {"tx_bytes": 5, "rx_bytes": 6, "tx_packets": 2}, "eth0": {"tx_bytes": 3}},
    }
    links = {"net1": {"carrier_changes": 3, "speed": 200000}, "net2": {"carrier_changes": 4, "speed": -1}}
    links["net3"] = {"carrier_changes": 0, "speed": None}
    condition = Condition(False, "WrongTransport", "text", "no_rdma_device")
    judged = {"transport_class": 'x"} 1\nup{a="', "evidence": "back\\slash"}
    seen = Seen("", judged, gids=frozenset([RAILS[0].address]), mtus={"net1": 9000})
    rails = (*RAILS, Rail("", "net3", "10.102.0.1", 9000))
    labels = {"instance": 'g"\n', "rank": "1"}
    text = gate.render(labels, condition, seen, 12.345, rails, counted, links)
    proven = gate.render(labels, Condition(True, "Proven", ""), seen, 1, (), counted, links)
    stored.compare("gate_metrics", {"three rails": text.splitlines(), "no rail": proven.splitlines()})
