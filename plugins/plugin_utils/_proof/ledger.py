# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect what the ledger needs of a running group around a window of work. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import (
    Counters,
    bytes_by_path,
    missing,
    moved_bytes,
    payload,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import PodContainer

from .._sglang.metrics import Scrape, parse_metrics
from .exchange import Bytes, Choices, Scope, Shape, Split, Work, fabric_seconds, predict

# Decide from bytes alone by which path the ranks exchanged what the model needs.

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


# The model is in a directory of the pod, or in the directory to which Hugging Face's library downloaded it.
_CONFIG = (
    'cat -- "$1/config.json" 2>/dev/null || '
    'cat -- "${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}/$2"/snapshots/*/config.json'
)


# One token of a model with a hidden size of 4096.
_TOKEN_BYTES = 8192


def at_one_token(latency: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the all-reduce of 8 KiB among those that were measured, smallest first."""
    return next((each for each in latency if each["bytes"] >= _TOKEN_BYTES), latency[-1])


def captured_sizes(info: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the batch sizes of the CUDA graphs in the answer of ``/server_info``, which a server may leave out."""
    if info.get("disable_cuda_graph") is True or info.get("disable_cuda_graph_padding") is True:
        return ()
    # SGLang 0.5.16 and later have a list per phase.
    sizes = info.get("cuda_graph_bs_decode") or info.get("cuda_graph_bs")
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    return tuple(sizes) or None


ALL_RANKS = "all ranks"


class Window:
    """Predicts what the ranks of a group exchange between ``open`` and ``close``, and compares it with counters.

    ``why_not`` says why nothing can be predicted; ``entries`` has one entry per pod otherwise, and one of all pods
    together, whose bytes do not depend on a rank's place in a ring or tree.
    """

    def __init__(self, head: PodContainer, plan: Mapping[str, Any], now: Callable[[], float]) -> None:
        self._head, self._plan, self._now = head, plan, now
        self._before = Scrape()
        self._opened = 0.0
        self._shape: tuple[Shape, Split] | None = None
        self._tokens_per_pass = 1.0
        self._work: Work | None = None
        self._scheduler = 0.0
        self._moved: Mapping[str, Mapping[str, Counters]] = {}
        self._choices = Choices(0)
        self.why_not = "the traffic of the group was not counted"
        self.entries: dict[str, Entry] = {}

    def open(self) -> None:
        """Read the model's shape and the server's counters before the work."""
        try:
            split = Split.read(self._plan["ranks"][0]["argv"], int(self._plan["expect"]["nodes"]))
            if split.crossing < 2 and split.pp < 2:
                raise ValueError("no group of ranks spans nodes")
            self._shape = Shape.read(self._config()), split
            self._choices = Choices(split.crossing)
            self._before = self._metrics()
            self._opened = self._now()
        except ValueError as error:
            self.why_not = str(error)

    def close(self, moved: Mapping[str, Mapping[str, Counters]], runs: Iterable[Mapping[str, float]]) -> None:
        """Compare the bytes that every pod moved during the work of the runs with the bytes that the work needs."""
        if self._shape is None:
            return
        try:
            after = self._metrics()
            work = replace(work_between(self._before, after), captured=self._captured())
        except ValueError as error:
            self.why_not = str(error)
            return
        then, now = (page.counters.get("generation_tokens_total", 0.0) for page in (self._before, after))
        self._tokens_per_pass = max(1.0, (now - then) / work.rows)
        busy = sum(run["tokens"] / run["tokens_per_second"] for run in runs if run["tokens_per_second"])
        self._scheduler = scheduler_bytes(self._now() - self._opened - busy, work)
        self._work, self._moved = work, moved
        self._judge()

    def listen(self, lines: Mapping[str, Iterable[str]]) -> None:
        """Compare again, with what NCCL says in its lines of each pod about algorithms, protocols and trees."""
        for pod, said in lines.items():
            self._choices.read(pod, said)
        self._judge()

    def _judge(self) -> None:
        self.entries = {}
        if self._shape is None or self._work is None:
            return
        try:
            needed = {
                pod: predict(*self._shape, self._work, Scope(pod, self._choices))
                for pod in (*(rank["pod"] for rank in self._plan["ranks"]), None)
            }
        except ValueError as error:
            self.why_not = str(error)
            return
        for rank in self._plan["ranks"]:
            pod, planned = (
                rank["pod"],
                {network["rdma_device"] for network in rank["networks"] if network.get("rdma_device")},
            )
            if lacking := missing(self._moved[pod], planned):
                self.entries = {}
                self.why_not = f"{pod} has no counters of {', '.join(lacking)}, and a missing counter is not zero"
                return
            self.entries[pod] = self._entry(self._moved[pod], planned, needed[pod])
        if self._shape[1].pp < 2:
            self._add_total(needed[None])
        elif self._shape[1].crossing < 2 and any(entry.unclear for entry in self.entries.values()):
            # Stages exchange some KiB per token, so no generation of a usual length exceeds the scheduler's bytes.
            usual = needed[self._plan["ranks"][0]["pod"]].usual
            self.entries = {}
            self.why_not = (
                f"the stages of the pipeline exchange {usual / 1e6:.1f} MB, and the scheduler may have sent "
                f"{self._scheduler / 1e6:.1f} MB by TCP. Raise nccl_verify_tokens to compare them"
            )

    def _entry(self, own: Mapping[str, Counters], planned: set[str], needed: Bytes) -> Entry:
        """Return the entry of one pod; stages of a pipeline send in one direction, all other ranks exchange."""
        both_ways = self._shape is not None and self._shape[1].pp < 2
        by_device = {device: moved_bytes(own["rdma"], [device]) for device in sorted(own["rdma"])}
        used = any(by_device[device] for device in planned)
        silent = tuple(device for device in sorted(planned) if used and not by_device[device])
        interfaces = {
            name: count
            for name in sorted(own["net"].keys() - {"lo"})
            if (count := payload(own["net"], [name], both_ways))
        }
        elsewhere = {device: count for device, count in by_device.items() if count and device not in planned}
        by_path = bytes_by_path(own, planned, both_ways)
        return judge(needed, *by_path, self._scheduler, silent, interfaces, elsewhere)

    def _add_total(self, needed: Bytes) -> None:
        """Add the entry of all pods if every pod agrees, which bounds more than the range of a rank in a tree."""
        pods = list(self.entries.values())
        if len({entry.verdict for entry in pods}) == 1 and pods[0].verdict in ("rdma", "tcp"):
            rdma, tcp = (sum(getattr(entry, f"{path}_bytes") for entry in pods) for path in ("rdma", "tcp"))
            self.entries[ALL_RANKS] = judge(needed, rdma, tcp, self._scheduler * len(pods))

    def doubt(self, transport_class: str, source: Literal["log", "plan"] = "log") -> str:
        """Return why the bytes contradict the verdict of logs or plan; empty if they agree or nothing was predicted."""
        return doubt(transport_class, self.entries, source)

    def decode(
        self, latency: Iterable[Mapping[str, float]], runs: Iterable[Mapping[str, float]]
    ) -> dict[str, Any] | None:
        """Return the milliseconds that collectives take per token of one stream, and their share of the fastest run."""
        measured = list(latency)
        times = {int(each["bytes"]): each["p50"] / 1e6 for each in measured}
        fastest = max(runs, key=lambda run: run["tokens_per_second"], default=None)
        if self._shape is None or not times or fastest is None:
            return None
        fabric = 1000 * fabric_seconds(*self._shape, 1, times) / self._tokens_per_pass
        decoding = fastest["tokens"] / fastest["tokens_per_second"] - fastest["first_token_seconds"]
        between = max(0.001, 1000 * decoding / max(1, fastest["tokens"] - 1))
        one = at_one_token(measured)
        return {
            "fabric_ms": round(fabric, 2),
            "itl_ms": round(between, 2),
            "share": round(fabric / between, 3),
            "msg": f"the fabric takes {fabric:.2f} of {between:.2f} ms between tokens ({fabric / between:.0%}), an "
            f"all-reduce of {one['bytes']} bytes {one['p50']} microseconds (p99 {one['p99']})",
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the ledger as plain data: one verdict of all pods, or none and the reason."""
        verdicts = sorted({entry.verdict for entry in self.entries.values()})
        # Ranks that used different paths are mixed; "unexplained" is the last in the alphabet.
        one = verdicts[-1] if len(verdicts) == 1 or "unexplained" in verdicts else "mixed"
        return {
            "verdict": one if verdicts else None,
            "msg": "; ".join(f"{pod} {entry.msg}" for pod, entry in self.entries.items())
            or f"not predicted: {self.why_not}",
            "ranks": {pod: entry.as_dict() for pod, entry in self.entries.items() if pod != ALL_RANKS},
            "group": self.entries[ALL_RANKS].as_dict() if ALL_RANKS in self.entries else None,
            "algorithms": {
                f"{kind} of {size} bytes": " ".join(choice[:2])
                for kind, sizes in self._choices.sizes.items()
                for size, choice in sorted(sizes.items())
            },
        }

    def _config(self) -> Any:
        path = str(self._plan["model_path"])
        hub = "models--" + path.replace("/", "--")
        text = self._head.run(["/bin/sh", "-c", _CONFIG, "sh", path, hub]).stdout.lstrip()
        if not text.startswith("{"):
            raise ValueError(f"the pod has no config.json of {path}")
        # Several snapshots may follow each other.
        try:
            return json.JSONDecoder().raw_decode(text)[0]
        except ValueError as error:
            raise ValueError(f"config.json of {path} is not JSON: {error}") from None

    def _get(self, path: str) -> str:
        port = str(self._plan["service"]["port"])
        return self._head.run(["python3", "/opt/gb10/generate_probe.py", "--port", port, "--get", path]).stdout

    def _metrics(self) -> Scrape:
        return parse_metrics(self._get("/metrics"))

    def _captured(self) -> tuple[int, ...] | None:
        """Return the batch sizes of the server's CUDA graphs, none without graphs; None if the server does not say."""
        for path in ("/server_info", "/get_server_info"):
            with suppress(ValueError):
                info = json.loads(self._get(path))
                if isinstance(info, dict):
                    return captured_sizes(info)
        return None
