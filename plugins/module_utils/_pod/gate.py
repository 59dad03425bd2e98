# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether a rank, or with its head the whole group, has proven its transport.

NCCL's files decide. What NCCL cannot see afterwards is watched beside them: the links, GIDs and MTUs of the planned
rails, and on the head whether RDMA counters move while tokens are generated.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Any

from .._fabric.rdma import CONGESTION, ERRORS
from .._kube.labels import SIDECAR, TRANSPORT
from .._nccl.verdict import is_final
from .api import HTTP

# A window of the counters must have this many tokens and seconds. A server may count the tokens of a long request at
# its end, after the bytes that they took, so one silent window is not enough.
_TOKENS, _SECONDS, _WINDOWS = 32, 20.0, 2
# A pipeline of two ranks sends one hidden state per token, several KB, and tensor parallelism far more.
_BYTES_PER_TOKEN = 64
# A look may fall between two writes, or into a start that deletes the files of the one before.
_DOUBT_SECONDS = 15.0
# NCCL makes communicators while it serves. Setting one up ends within SGLang's dist timeout, which some profiles set to
# 900 s. Only TCP or an error counts at once.
_SETUP_SECONDS = 900.0
_SETS_UP = (
    "; NCCL is setting up another communicator since then, which leaves this proof as it is for at most "
    f"{_SETUP_SECONDS / 60:.0f} minutes"
)
# What is known of another rank before the API server has answered about it.
UNANSWERED = "the API server has not answered yet"


@dataclass(frozen=True)
class Rail:
    """One planned rail of a rank: RDMA device, interface in the pod, IPv4 address, MTU in bytes."""

    device: str
    interface: str
    address: str
    mtu: int


@dataclass(frozen=True)
class Seen:
    """What the sidecar of a rank sees at one moment.

    ``start`` names the server's current start; empty if there was none. ``judged`` is the judgement of NCCL's files.
    ``changed`` says what happened to these files that NCCL does not do, empty if nothing. ``blinder`` is the variable
    of the server's environment, with its value, that hides lines of NCCL, empty if none does.
    ``gids`` are the addresses with a RoCE v2 GID on their planned device, ``mtus`` the MTU of each interface.
    ``down`` says what is wrong with each rail that has no link. ``rdma_bytes`` and ``tokens`` are counters, None where
    they are unknown. ``others`` maps each other rank's pod, as the head sees it, to the reason why it has not proven
    its transport, empty if it has.
    """

    start: str
    judged: Mapping[str, Any]
    changed: str = ""
    blinder: str = ""
    gids: frozenset[str] = frozenset()
    mtus: Mapping[str, int] = field(default_factory=dict)
    down: tuple[str, ...] = ()
    rdma_bytes: int | None = None
    tokens: float | None = None
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """The condition of a pod; ``cause`` is the identifier of a cause in NCCL's files, if there is one."""

    proven: bool
    reason: str
    message: str
    cause: str = ""


@dataclass
class History:
    """What the sidecar remembers between two observations.

    ``last_failure`` is the start that failed last, with its message and its cause; empty after a proof.
    """

    start: str = ""
    last_failure: tuple[str, str, str] = ("", "", "")
    window: tuple[float, float, int] | None = None
    silent: int = 0
    proven_at: float | None = None
    msg: str = ""
    # The bytes that had been sent when a rail was last seen without a link.
    sent_before: int | None = None


def decide(seen: Seen, history: History, rails: tuple[Rail, ...], rdma: bool, now: float) -> Condition:
    """Return the condition of a rank; update ``history``. ``rdma`` tells whether the plan wants RDMA."""
    own = _decide_own(seen, history, rails, rdma, now)
    others = "; ".join(f"{pod}: {why}" for pod, why in seen.others.items() if why)
    if not others:
        return own
    if own.proven:
        return Condition(False, "OtherRanks", f"this rank has proven its transport, others have not: {others}")
    # Ranks that can't connect fail together, and often only another rank has seen the cause.
    return replace(own, message=f"{own.message}. Other ranks: {others}")


def _decide_own(seen: Seen, history: History, rails: tuple[Rail, ...], rdma: bool, now: float) -> Condition:
    """Return the condition of a rank, regardless of the others."""
    if seen.start != history.start:
        history.start, history.window, history.silent, history.proven_at = seen.start, None, 0, None
        history.sent_before = None
    _count(seen, history, now)
    # A server that starts again has no directory for a moment.
    if not seen.start and not history.last_failure[0]:
        return Condition(False, "NotStarted", "the server has not started yet, so NCCL has written nothing")
    # NCCL also fails or falls back to TCP because of the link, so the link is named first.
    if seen.down:
        history.sent_before = seen.rdma_bytes
        return Condition(
            False,
            "LinkDown",
            f"{'; '.join(seen.down)}. NCCL can send nothing over such a rail, and it does not move connections to "
            "another one by itself. Plug in or replace the cable, and check the switch port and `ip link` on the host",
        )
    since = None if history.proven_at is None else now - history.proven_at
    doubted = since is not None and since < (_SETUP_SECONDS if _sets_up(seen) else _DOUBT_SECONDS)
    if seen.changed and not is_wrong(seen.judged):
        if not doubted:
            said = f"NCCL's files of this start were changed by somebody else: {seen.changed}"
            return Condition(
                False, "EvidenceChanged", f"{said}. Restart the group: only files that NCCL alone wrote prove"
            )
    elif seen.judged["satisfied"]:
        history.proven_at, history.msg, history.last_failure = now, str(seen.judged["msg"]), ("", "", "")
    elif is_wrong(seen.judged) or not doubted:
        return _unsatisfied(seen, history)
    found = _fell(seen, rails) or (rdma and (_vanished(seen, rails) or _unused(seen, history) or _silent(history)))
    more = _SETS_UP if doubted and _sets_up(seen) else ""
    return found or Condition(True, "Proven", f"{history.msg}{more}")


def is_wrong(judged: Mapping[str, Any]) -> bool:
    """Tell whether the files prove another transport than the planned one, or an error."""
    return is_final(judged) and not judged["satisfied"]


def _sets_up(seen: Seen) -> bool:
    """Tell whether the files show RDMA, and all that is missing is the end of a communicator's setup."""
    judged = seen.judged
    shown = (judged["transport_class"], judged["evidence"]) == ("rdma", "channels")
    return shown and not judged["complete"] and not seen.changed


def _unsatisfied(seen: Seen, history: History) -> Condition:
    """Return the condition of a rank whose files do not prove the planned transport."""
    judged, final = seen.judged, is_final(seen.judged)
    cause = next((cause["id"] for cause in judged["causes"] if cause["confidence"] >= 0.3), "")
    if final or cause:
        history.last_failure = seen.start, judged["msg"], cause
    elif judged["evidence"] != "none":
        history.last_failure = "", "", ""
    reason, more = "NotProven", ""
    if final:
        # A restart of the server may repair a failure, but not a wrong transport.
        reason = "Failed" if judged["verdict"] == "error" else "WrongTransport"
        more = "" if cause else ". Run playbook verify, and restart the group"
    elif seen.blinder and not cause:
        cause = "blinded"
        more = (
            f". The server's environment has {seen.blinder}, which hides NCCL's transport from its files. Remove the "
            "variable from the profile, serving_plan_env and the image, and run playbook serve"
        )
    elif history.last_failure[0] not in ("", seen.start):
        # A server that fails at every start says nothing for a while after each of them.
        _start, before, cause = history.last_failure
        more = f". The start before this one: {before}"
    elif judged["evidence"] == "channels" and not cause:
        # For example a start while one of two rails had no link.
        more = ". If this stays, restart the group: NCCL chooses its devices when it starts"
    return Condition(False, reason, f"{judged['msg']}{more}", cause)


def _vanished(seen: Seen, rails: tuple[Rail, ...]) -> Condition | None:
    for rail in rails:
        if rail.address not in seen.gids:
            return Condition(
                False,
                "GidMissing",
                f"{rail.device or rail.interface} has no RoCE v2 GID for {rail.address}, so RDMA with other ranks "
                f"fails. Give {rail.interface} this address again: playbook fabric, then restart the group",
                "gid_changed",
            )
    return None


def _fell(seen: Seen, rails: tuple[Rail, ...]) -> Condition | None:
    for rail in rails:
        mtu = seen.mtus.get(rail.interface, rail.mtu)
        if mtu < rail.mtu:
            return Condition(
                False,
                "MtuFell",
                f"{rail.interface} has MTU {mtu}, planned {rail.mtu}, so large messages are cut or lost. "
                "Playbook fabric changes no VF in a pod: run serve_stop, fabric and serve",
                "mtu_differs",
            )
    return None


def _unused(seen: Seen, history: History) -> Condition | None:
    """Return a condition if RDMA has not been used since a link came back.

    Connections survive a short loss of the link, and NCCL notices a longer one only when it sends. A small all-reduce
    uses one rail only, so any rail of the rank counts.
    """
    if history.sent_before is None or seen.rdma_bytes is None:
        return None
    # A driver that was loaded again counts from zero.
    history.sent_before = min(history.sent_before, seen.rdma_bytes)
    if seen.rdma_bytes - history.sent_before >= _TOKENS * _BYTES_PER_TOKEN:
        history.sent_before = None
        return None
    said = "a rail had no link. It is back, but this rank has sent nothing by RDMA since. Wait for the next generation"
    return Condition(False, "NotProven", said)


def _count(seen: Seen, history: History, now: float) -> None:
    """Close the window of the counters when it is long enough."""
    if seen.tokens is None or seen.rdma_bytes is None:
        return
    if history.window is None or seen.tokens < history.window[1] or seen.rdma_bytes < history.window[2]:
        history.window = (now, seen.tokens, seen.rdma_bytes)
        return
    begun, tokens, moved = history.window
    made = seen.tokens - tokens
    if made < _TOKENS or now - begun < _SECONDS:
        return
    history.silent = history.silent + 1 if seen.rdma_bytes - moved < made * _BYTES_PER_TOKEN else 0
    history.window = (now, seen.tokens, seen.rdma_bytes)


def _silent(history: History) -> Condition | None:
    if history.silent < _WINDOWS:
        return None
    return Condition(
        False,
        "CountersSilent",
        "tokens are generated, but the RDMA counters of the rails do not move: the bytes use another path than NCCL "
        "named. Restart the group, and run playbook verify",
    )


def server_started(pod: Mapping[str, Any]) -> str:
    """Return when the server of a pod (an API object) started, empty if it does not run."""
    containers = pod.get("status", {}).get("containerStatuses") or []
    states = [each.get("state", {}) for each in containers if each["name"] == "sglang"]
    return next((str(state["running"].get("startedAt") or "") for state in states if state.get("running")), "")


def unproven(pod: Mapping[str, Any]) -> str:
    """Return why a pod (an API object) has not proven its transport since the last start of its server, or nothing."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    containers = {each["name"]: each for each in status.get("containerStatuses") or []}
    running = server_started(pod)
    nothing = {"message": "its sidecar has said nothing yet"}
    condition: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c["type"] == TRANSPORT), nothing)
    said = str(condition.get("message") or "no reason is known") if condition.get("status") != "True" else ""
    if not containers.get(SIDECAR, {}).get("ready"):
        # Its condition may be old.
        return f"its container {SIDECAR if running else 'sglang'} does not run or does not answer"
    if not running:
        return "its container sglang does not run" + (f". {said}" if said else "")
    if said:
        return said
    # Both times are of the clock of that pod's node, in UTC and in the same format.
    if (condition.get("lastTransitionTime") or "") < running:
        return "it has proven nothing since its last start"
    return ""


# Make the server of a rank generate tokens, and read how many it has generated.

_PROBE = "/opt/gb10/generate_probe.py"
_PROBE_TOKENS = 64
# Seconds between two generations while the group is not proven.
_PROBE_EVERY = 10


class Prober:
    """Makes the server generate a few tokens, because NCCL connects only when it is used."""

    def __init__(self, port: int) -> None:
        options = {"--port": port, "--measure": _PROBE_TOKENS, "--timeout": 20}
        self._command = [sys.executable, _PROBE, *(str(word) for option in options.items() for word in option)]
        self._running: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    def run(self, now: float) -> None:
        """Start a generation, unless one still runs or the last one began a moment ago."""
        if now >= self._not_before and (self._running is None or self._running.poll() is not None):
            self._not_before = now + _PROBE_EVERY
            # Before the server listens, the probe fails at once.
            quiet = subprocess.DEVNULL
            # pylint: disable-next=ansible-bad-function
            self._running = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)


def tokens(port: int) -> float | None:
    """Return the number of tokens that the server has generated; None without --enable-metrics."""
    try:
        with HTTP.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode(errors="replace").splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith("sglang:generation_tokens_total")]
        total = sum(map(float, values))
        # A sum of NaN would be larger than no other, and the counters would never count as silent.
        return total if values and math.isfinite(total) else None
    except (OSError, HTTPException, ValueError):
        return None


# Write the metrics of a rank in Prometheus' text format.

_EVENTS = frozenset((*ERRORS, *CONGESTION))
_DIRECTIONS = {"xmit_bytes": "sent", "rcv_bytes": "received", "tx_bytes": "sent", "rx_bytes": "received"}
_HELP = {
    "proven": (
        "gauge",
        "1 if this rank, or for rank 0 the whole group, has proven its transport since its last start.",
    ),
    "info": ("gauge", "What NCCL's files prove, and the reason of the condition; always 1."),
    "verdict_age_seconds": ("gauge", "Seconds since the condition changed."),
    "rdma_bytes_total": ("counter", "Bytes that a rail moved by RDMA."),
    "tcp_bytes_total": ("counter", "Bytes that a rail's interface moved without RDMA."),
    "rdma_events_total": (
        "counter",
        "Errors, discards, retransmissions and congestion marks that a rail's device counted.",
    ),
    "gid_present": ("gauge", "1 if a rail's device has a RoCE v2 GID of the planned address."),
    "mtu_bytes": ("gauge", "MTU of a rail's interface."),
    "link_changes_total": ("counter", "How often the link of a rail's interface came up or went down."),
    "link_speed_bits_per_second": ("gauge", "Speed of the link of a rail's interface; 0 if it is down or unknown."),
}


def render(
    labels: Mapping[str, str],
    condition: Condition,
    seen: Seen,
    age: float,
    rails: Sequence[Rail],
    counted: Mapping[str, Mapping[str, Mapping[str, int]]],
    links: Mapping[str, Mapping[str, int | None]],
) -> str:
    """Return all metrics of a rank.

    ``counted`` is the result of ``_rdma.counters.parse_counters``, ``links`` that of ``read_link`` by interface.
    """
    judged = seen.judged
    said: dict[str, object] = {"class": judged["transport_class"], "evidence": judged["evidence"]}
    samples: dict[str, list[tuple[Mapping[str, object], float]]] = {name: [] for name in _HELP}
    samples["proven"].append(({}, int(condition.proven)))
    samples["info"].append((said | {"reason": condition.reason, "cause": condition.cause}, 1))
    samples["verdict_age_seconds"].append(({}, round(age, 1)))
    for number, rail in enumerate(rails):
        where: dict[str, object] = {"rail": number, "device": rail.device, "interface": rail.interface}
        for name, value in sorted(counted.get("net", {}).get(rail.interface, {}).items()):
            # The other counters are numbers of packets.
            if name in _DIRECTIONS:
                samples["tcp_bytes_total"].append((where | {"direction": _DIRECTIONS[name]}, value))
        for name, value in sorted(counted.get("rdma", {}).get(rail.device, {}).items()):
            if name in _DIRECTIONS:
                samples["rdma_bytes_total"].append((where | {"direction": _DIRECTIONS[name]}, value))
            elif name in _EVENTS:
                samples["rdma_events_total"].append((where | {"event": name}, value))
        samples["gid_present"].append((where | {"address": rail.address}, int(rail.address in seen.gids)))
        if rail.interface in seen.mtus:
            samples["mtu_bytes"].append((where, seen.mtus[rail.interface]))
        link = links.get(rail.interface, {})
        if (changes := link.get("carrier_changes")) is not None:
            samples["link_changes_total"].append((where, changes))
            # The kernel reports -1 Mb/s, or no value, for a link that is down.
            samples["link_speed_bits_per_second"].append((where, max(link["speed"] or 0, 0) * 1_000_000))
    return "".join(
        metric(f"gb10_transport_{name}", *_HELP[name], labels, values) for name, values in samples.items() if values
    )


def metric(
    name: str, kind: str, text: str, labels: Mapping[str, str], samples: Sequence[tuple[Mapping[str, object], float]]
) -> str:
    """Return one metric with its samples, each of which adds its own labels to the common ones."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for own, value in samples:
        pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in {**labels, **own}.items())
        lines.append(f"{name}{{{pairs}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
