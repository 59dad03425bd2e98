# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide from bytes alone by which path the ranks exchanged what the model needs. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .._sglang.metrics import Scrape
from .exchange import Bytes, Work

# The ends of the prediction were within 3 % of the bytes of NCCL 2.28.9 from 8 KiB on, and the usual value within 1.2 %
# of those of SGLang 0.5.16 (tests/gpu/byte_ledger.py, with the same limit). The rest is for models not measured yet.
TOLERANCE = 0.10
# A path takes part if it carried a tenth of the least prediction, less the tolerance of that prediction.
_TAKES_PART = 0.1 * (1 - TOLERANCE)
# SGLang's scheduler broadcasts over Gloo, on the fabric's interface, in every round of its loop. While it waits for
# requests, that is 1.5 MB per second between two ranks of SGLang 0.5.16. Twice that is allowed. While it computes,
# there is one round per pass, which broadcasts a number of eight bytes.
_IDLE_SECOND, _PASS = 3e6, 4096

Path = Literal["rdma", "tcp", "mixed", "unexplained"]


@dataclass(frozen=True)
class Entry:
    """One rank or all: the bytes that the model needs, those that moved by each path, and the path that explains them.

    ``scheduler`` are the TCP bytes that the server's scheduler may have sent. If they could hide a second path,
    ``unclear`` is true. ``silent`` are the RDMA devices of the plan that moved nothing while another one did. NCCL may
    use one device for small messages, so this is no failure. ``interfaces`` has the bytes of every interface that moved
    some, and ``elsewhere`` those of RDMA devices that the plan does not name.
    """

    verdict: Path
    predicted: Bytes
    rdma_bytes: int
    tcp_bytes: int
    scheduler: float = 0.0
    silent: tuple[str, ...] = ()
    unclear: bool = False
    interfaces: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, int] = field(default_factory=dict)

    @property
    def msg(self) -> str:
        """Return both figures in one line."""
        low, usual, high = (f"{each / 1e6:.1f}" for each in self.predicted)
        return (
            f"{self.verdict}: {low} to {high} MB predicted (usually {usual}, tolerance {TOLERANCE:.0%}), "
            f"{self.rdma_bytes / 1e6:.1f} MB by RDMA and {self.tcp_bytes / 1e6:.1f} MB by TCP counted"
            + (f" ({megabytes(self.interfaces)})" if self.interfaces and self.verdict != "rdma" else "")
            + (f", of which the scheduler may have sent {self.scheduler / 1e6:.1f}" if self.unclear else "")
            + (f", none of them by {', '.join(self.silent)}" if self.silent else "")
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "predicted_bytes": {name: round(each) for name, each in self.predicted._asdict().items()},
            "rdma_bytes": self.rdma_bytes,
            "tcp_bytes": self.tcp_bytes,
            "interfaces": dict(self.interfaces),
            "other_devices": dict(self.elsewhere),
            "silent_rails": list(self.silent),
            "msg": self.msg,
        }


def megabytes(counted: Mapping[str, int]) -> str:
    """Return the bytes of each device in one line, largest first."""
    return ", ".join(f"{name} {count / 1e6:.1f} MB" for name, count in sorted(counted.items(), key=lambda e: -e[1]))


def work_between(before: Scrape, after: Scrape) -> Work:
    """Return what the server computed between two readings; raise ValueError if it does not count that."""

    def more(mode: str, of: str) -> float:
        now, then = getattr(after, of), getattr(before, of)
        return float(sum(value - then.get(name, 0.0) for name, value in now.items() if name.startswith(mode)))

    decode_passes, tokens = more("decode", "passes"), more("decode", "tokens")
    verified = after.counters.get("spec_verify_calls_total", 0.0) - before.counters.get("spec_verify_calls_total", 0.0)
    work = Work(more("prefill_compute", "tokens"), more("prefill", "passes"), verified or tokens, decode_passes)
    if work.rows <= 0 or work.decode_passes <= 0:
        raise ValueError(
            "the server's /metrics count no decode passes. Serve with --enable-metrics, SGLang 0.5.10 or newer"
        )
    return work


def scheduler_bytes(idle_seconds: float, work: Work) -> float:
    """Return the most TCP bytes that a rank's scheduler exchanges in a window with this work and waiting time."""
    return _IDLE_SECOND * max(0.0, idle_seconds) + _PASS * (work.prefill_passes + work.decode_passes)


def judge(
    predicted: Bytes,
    rdma: int,
    tcp: int,
    scheduler: float = 0.0,
    silent: tuple[str, ...] = (),
    interfaces: Mapping[str, int] | None = None,
    elsewhere: Mapping[str, int] | None = None,
) -> Entry:
    """Return by which path one rank exchanged the predicted bytes; ``scheduler`` of the TCP bytes may be others."""
    least, most = predicted.low * (1 - TOLERANCE), predicted.high * (1 + TOLERANCE)
    part = predicted.low * _TAKES_PART
    # If the scheduler cannot have sent enough for a path of its own, its bytes need no allowance.
    second = part + (scheduler if scheduler > part else 0)
    verdict: Path = "unexplained"
    unclear = False
    if rdma >= part:
        if tcp >= second and rdma + tcp >= least:
            verdict = "mixed"
        elif tcp < part and least <= rdma <= most:
            verdict = "rdma"
        else:
            unclear = part <= tcp < second and rdma <= most and rdma + tcp >= least
    elif tcp >= least:
        verdict = "tcp"
    return Entry(verdict, predicted, rdma, tcp, scheduler, silent, unclear, interfaces or {}, elsewhere or {})


def doubt(transport_class: str, entries: Mapping[str, Entry], source: Literal["log", "plan"] = "log") -> str:
    """Return why the bytes contradict what the source says, and what to do; empty if they agree.

    The ledger counts bytes, not senders: it names the devices that moved them, and no program.
    """
    for rank, entry in entries.items():
        if entry.verdict == transport_class:
            continue
        seen = f"the {source} says {transport_class}, the bytes of {rank} say {entry.msg}"
        if entry.verdict == "mixed" and entry.rdma_bytes >= entry.predicted.low and transport_class == "rdma":
            return (
                f"{seen}. RDMA alone carried enough, and the ledger does not see which program sent the bytes by TCP. "
                f"Doubt the {source} if they stay when you repeat it while nothing else uses these interfaces"
            )
        if entry.verdict != "unexplained":
            return (
                f"{seen}. Doubt the {source}: a library without a log line, or a second communicator, used another path"
            )
        if entry.unclear:
            return (
                f"{seen}. Doubt neither yet: the bytes by TCP may be those of the scheduler, or of a second path. "
                "Raise nccl_verify_tokens, so that the model needs more bytes than the scheduler sends"
            )
        if entry.rdma_bytes + entry.tcp_bytes < entry.predicted.low:
            where = (
                f"devices that the plan does not name moved bytes: {megabytes(entry.elsewhere)}"
                if sum(entry.elsewhere.values()) >= entry.predicted.low * _TAKES_PART
                else "the others moved where the pod counts nothing"
            )
            return (
                f"{seen}. Doubt the {source}: fewer bytes moved than the model needs, and {where}. Compare `rdma link` "
                "and `ip -s link` in the pod"
            )
        return (
            f"{seen}. Doubt the prediction: more bytes moved than the model needs, and the ledger does not see which "
            "program sent them. Repeat it while nothing else uses these devices, and compare the model with the profile"
        )
    return ""
