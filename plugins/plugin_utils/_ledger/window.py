# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect what the ledger needs of a running group around a window of work. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import PodContainer
from ansible_collections.gb10.cluster.plugins.module_utils._rdma.counters import (
    Counters,
    bytes_by_path,
    missing,
    moved_bytes,
    payload,
)

from .._sglang.metrics import Scrape, parse_metrics
from .choices import Choices
from .exchange import Bytes, Scope, Shape, Split, Work, fabric_seconds, predict
from .judge import Entry, doubt, judge, scheduler_bytes, work_between

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
        return json.JSONDecoder().raw_decode(text)[0]

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
