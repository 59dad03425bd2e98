# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove step by step which transport the ranks of a serving group use. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    format_findings,
    has_errors,
    sort_findings,
)
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import rdma
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import SIDECAR
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import PodContainer, run_in_each
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import kernel_refuses_pins
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import LOG_FILES, judge_until_final, pod_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import (
    judge_sources,
    keep_evidence,
    write_private,
)
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.statements import is_tcp
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import expectation, nothing_read

from .._serving.nccl_env import lint_env
from .ledger import Window, at_one_token

# Read NCCL's environment, conf files and devices in a running container.

# Only these variables are read, so other variables (such as tokens) never leave the container.
_NAMES = "^(NCCL_[A-Z0-9_]*|GLOO_SOCKET_IFNAME|CUDA_LAUNCH_BLOCKING)="
# Process 1 has the container's initial environment; NCCL reads NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf. The
# first value of a variable counts.
SCRIPT = (
    "echo '#env'; tr '\\0' '\\n' < /proc/1/environ 2>/dev/null | grep -E '" + _NAMES + "'; "
    "echo '#conf'; cat \"${NCCL_CONF_FILE:-$HOME/.nccl.conf}\" 2>/dev/null; echo; "
    "cat /etc/nccl.conf 2>/dev/null; echo; "
    "echo '#hcas'; ls \"$1/class/infiniband\" 2>/dev/null; echo '#netdevs'; ls /sys/class/net 2>/dev/null; "
    "echo '#memory'; grep -hE '^(Cma|Max locked memory|CapEff)' /proc/meminfo /proc/self/limits /proc/self/status; true"
)


@dataclass(frozen=True)
class PodEnv:
    """The result of SCRIPT; ``variables`` are those that NCCL uses."""

    variables: dict[str, str]
    hcas: list[str]
    netdevs: list[str]
    memory: list[str]

    @property
    def pins(self) -> str:
        """Return why memory can't be pinned: ``kernel``, ``memlock``, or empty if nothing shows it."""
        if kernel_refuses_pins("\n".join(self.memory)):
            return "kernel"
        told = dict(line.split(None, 1) for line in self.memory if len(line.split()) > 1)
        # Columns: Max locked memory, soft limit, hard limit, unit. CAP_IPC_LOCK is bit 14.
        limit = told.get("Max", "locked memory unlimited").split()[2]
        capable = int(told.get("CapEff:", "0").strip() or "0", 16) >> 14 & 1
        return "" if limit == "unlimited" or capable else "memlock"


def parse_environment(text: str) -> PodEnv:
    """Return the result from SCRIPT's output; unknown lines are ignored.

    A line is ``NAME=value``, and in a conf file ``#`` begins a comment only in column one.
    """
    parts: dict[str, list[str]] = {"env": [], "conf": [], "hcas": [], "netdevs": [], "memory": []}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            current = parts.get(line[1:], current)
        elif line:
            current.append(line)
    variables: dict[str, str] = {}
    for line in parts["env"] + parts["conf"]:
        name, sign, value = line.rstrip("\r").partition("=")
        if sign:
            variables.setdefault(name, value)
    return PodEnv(variables, parts["hcas"], parts["netdevs"], parts["memory"])


def read_environments(containers: Iterable[PodContainer], sysfs_root: str) -> dict[str, PodEnv]:
    """Return NCCL's environment in every container, by pod; raise ClusterError."""
    command = ["/bin/sh", "-c", SCRIPT, "sh", sysfs_root]
    return {pod: parse_environment(ran.stdout) for pod, ran in run_in_each(containers, command).items()}


def lint_environments(environments: Mapping[str, PodEnv], expect_rdma: bool) -> list[Finding]:
    """Return all findings about these environments, worst first."""
    return sort_findings(
        finding
        for name, seen in environments.items()
        for finding in lint_env(
            seen.variables, expect_rdma=expect_rdma, hcas=seen.hcas, netdevs=seen.netdevs, where=name
        )
    )


# Show the steps of a proof while they run.

_QUIET_SECONDS = 30


@dataclass
class Progress:
    """Shows each step, and a line every half minute during a step."""

    show: Callable[[str], None]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    _step: str = ""
    _begun: float = 0.0
    _shown: float = 0.0

    def begin(self, step: str) -> None:
        self._step, self._begun = step, self.now()
        self._shown = self._begun
        self.show(step)

    def alive(self) -> None:
        """Show that the step is still running, if nothing was shown for a while."""
        if self.now() - self._shown >= _QUIET_SECONDS:
            self._shown = self.now()
            self.show(f"{self._step}: {self._shown - self._begun:.0f} s so far")

    def pause(self, seconds: float) -> None:
        """Wait, and show that the step is still running."""
        self.sleep(seconds)
        self.alive()


# Measure all-reduces between the pods of a group.

# The ranks of an all-reduce run at the same time in the background of their pods; each writes its output here.
_OUTPUT = "/tmp/gb10-all-reduce"


def measure(
    containers: Iterable[PodContainer], plan: Mapping[str, Any], size: int, port: int, limit: int, progress: Progress
) -> dict[str, Any]:
    """Return what all_reduce_bandwidth.py prints on rank 0; raise ValueError if a rank fails or exceeds ``limit``."""
    by_pod, ranks = {each.pod: each for each in containers}, plan["ranks"]
    place = f"--address {plan['rendezvous']['address']} --port {port}"
    for rank in ranks:
        command = (
            f"rm -f {_OUTPUT}; {{ timeout {limit} python3 /opt/gb10/all_reduce_bandwidth.py"
            f" --rank {rank['rank']} --ranks {len(ranks)} {place} --bytes {size}; echo ended $?; }}"
            f" > {_OUTPUT} 2>&1 < /dev/null &"
        )
        by_pod[rank["pod"]].run(["sh", "-c", command])
    outputs = [_output(by_pod[rank["pod"]], limit, progress) for rank in ranks]
    bad = sorted({text.strip()[-400:] for text in outputs if text.rstrip().split("\n")[-1] != "ended 0"})
    if bad:
        raise ValueError(f"the all-reduce could not be measured: {'; '.join(bad)}")
    # NCCL may print lines before the figures of rank 0.
    figures = [line for line in outputs[0].splitlines() if line.startswith("{")]
    return dict(json.loads(figures[-1]))


def _output(container: PodContainer, limit: int, progress: Progress) -> str:
    """Return the output of a rank after it ended or its time limit passed."""
    deadline = progress.now() + limit + 5
    while True:
        text = container.run(["cat", _OUTPUT]).stdout
        if "\nended " in f"\n{text}" or progress.now() >= deadline:
            return text
        progress.pause(1)


LARGEST_BUFFER = 4 * 10**9
INTERVAL_S = 3  # between two readings of the logs
Json = dict[str, Any]


class NotProved(Exception):
    """The proof failed; the message says why and what to do."""


@dataclass(frozen=True)
class Settings:
    """The options of role nccl_verify that the proof needs, and ``evidence``, the directory for the evidence."""

    evidence: Path
    expect: Json
    tokens: int
    runs: int
    request_timeout: int
    timeout: int
    counters: bool
    min_bytes: int
    sysfs_root: str
    environment: bool
    bandwidth_bytes: int
    bandwidth_port: int
    min_busbw: Json
    max_latency: Json
    remarks: str = ""


def full_expectation(plan: Mapping[str, Any], wished: Mapping[str, Any]) -> Json:
    """Return what the logs must show: the plan's expectation and the additional conditions of the role."""
    own = {
        "complete": True,
        # One node needs no network. The plan's gdr only says that GDR must be on, never that it must be off.
        "allow_intra": int(plan["expect"]["nodes"]) < 2,
        "gdr": True if plan["expect"].get("gdr") else None,
    }
    return {**plan["expect"], **own, **wished}


# In the sidecar: the rails that it found in its own pod
_ASK_RAILS = (
    "import json, sys; from gb10._pod.evidence import completed; from gb10._pod.gate import Rail; "
    "rails = completed([Rail('', name, '', 0) for name in sys.argv[2:]], sys.argv[1]); "
    "print(json.dumps([vars(rail) for rail in rails]))"
)


def _devices(rank: Mapping[str, Any]) -> list[str]:
    return sorted({network["rdma_device"] for network in rank["networks"] if network.get("rdma_device")})


@dataclass
class Proof:
    """One proof of one group with everything that it finds step by step."""

    containers: Sequence[PodContainer]
    plan: Mapping[str, Any]
    settings: Settings
    progress: Progress
    active: bool = True
    judged: Json = field(default_factory=lambda: nothing_read("the logs were not judged"))
    measured: list[Json] = field(default_factory=list)
    bandwidth: Json | None = None
    counted: Json = field(
        default_factory=lambda: {"agrees": None, "rdma_bytes": 0, "tcp_bytes": 0, "cables": {}, "msg": ""}
    )
    findings: list[Json] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    _before: Json = field(default_factory=dict)
    _difference: rdma.Moved | None = None
    _steps: set[str] = field(default_factory=set)
    _pins: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._head = next((c for c in self.containers if c.pod == self.plan["ranks"][0]["pod"]), self.containers[0])
        self._ledger = Window(self._head, self.plan, self.progress.now)
        self._planned = "rdma" if self.plan["transport"] == "roce" else "tcp"

    def prove(self) -> Json:
        """Run all steps and return all results; the keys are the same whether the proof succeeds or fails."""
        why = reason = ""
        try:
            self._judge_environment()
            self._read_counters_before()
            self._generate()
            self._moved()
            self._judge_logs()
            self._compare_counters()
            self._measure_bandwidth()
        except (NotProved, ClusterError) as error:
            reason, why = str(error), self._explained(str(error))
        decode = (self.bandwidth or {}).get("decode")
        kind = self._ledger.as_dict()["verdict"]
        by_bytes = [f"their bytes prove {kind}"] if kind and self.judged["verdict"] == "unknown" else []
        if self.active:
            self.kept.append(str(self.settings.evidence / "proof.json"))
        proof = {
            "satisfied": not why,
            "msg": why or "; ".join([self.judged["msg"], *by_bytes, *([decode["msg"]] if decode else [])]),
            **{key: self.judged[key] for key in ("verdict", "transport_class", "evidence", "nccl_versions", "ranks")},
            "causes": self.judged["causes"],
            "waived": dict(self.plan.get("waived") or {}),
            "image_verdict": dict(self.plan.get("image_verdict") or {}),
            "failures": self.judged["failures"],
            "reason": reason,
            "measured": sorted(self.measured, key=lambda run: run["tokens_per_second"]),
            "bandwidth": self.bandwidth,
            "counters": self.counted,
            "ledger": self._ledger.as_dict(),
            "findings": self.findings,
            "evidence_files": self.kept,
        }
        if self.active:
            write_private(Path(self.kept[-1]), (json.dumps(proof, indent=2, sort_keys=True) + "\n").encode())
        return proof

    def _judge_environment(self) -> None:
        if not self.settings.environment:
            return
        self.progress.begin("Judge the NCCL environment of every rank")
        expect = full_expectation(self.plan, self.settings.expect)
        over_rdma = not any(map(is_tcp, expect.get("networks", ()))) and int(expect["nodes"]) > 1
        environments = read_environments(self.containers, self.settings.sysfs_root)
        self._pins = {pod: seen.pins for pod, seen in environments.items()}
        found = lint_environments(environments, over_rdma)
        self.findings = [finding.as_dict() for finding in found]
        if has_errors(found):
            raise NotProved(format_findings(found))

    def _read_counters_before(self) -> None:
        if self.settings.counters and self.active:
            self._learn_devices()
            self._ledger.open()
            self._before = self._counters()

    def _learn_devices(self) -> None:
        """Learn from the sidecars which devices the networks of others gave; the plan does not know them."""
        ranks = self.plan["ranks"]
        if self._planned == "tcp" or all(len(_devices(rank)) == len(rank["networks"]) for rank in ranks):
            return
        interfaces = [network["interface"] for network in ranks[0]["networks"]]
        command = ["python3", "-c", _ASK_RAILS, self.settings.sysfs_root, *interfaces]
        found = run_in_each([replace(each, container=SIDECAR) for each in self.containers], command)
        rails = {pod: json.loads(ran.stdout) if not ran.status else [] for pod, ran in found.items()}
        lacking = sorted(pod for pod, own in rails.items() if not own or not all(rail["device"] for rail in own))
        if lacking:
            raise NotProved(
                f"not each of {', '.join(interfaces)} has an RDMA device with its address in {', '.join(lacking)}, so "
                "no bytes of the group can be counted. Ask the owner of the networks in gb10_networks for VFs with RDMA"
            )
        learned = [
            {
                **rank,
                "networks": [
                    {**network, "rdma_device": rail["device"]}
                    for network, rail in zip(rank["networks"], rails[rank["pod"]], strict=True)
                ],
            }
            for rank in ranks
        ]
        self.plan = {**self.plan, "ranks": learned}
        self._ledger = Window(self._head, self.plan, self.progress.now)

    def _counters(self) -> Json:
        command = ["/bin/sh", "-c", rdma.SCRIPT, "sh", self.settings.sysfs_root, "/sys"]
        return {pod: rdma.parse_counters(ran.stdout) for pod, ran in run_in_each(self.containers, command).items()}

    def _generate(self) -> None:
        """Generate text to cause traffic, because NCCL 2.22 and later open connections only when they are used."""
        wanted, port = self.settings, str(self.plan["service"]["port"])
        command = ["python3", "/opt/gb10/generate_probe.py", "--port", port, "--measure", str(wanted.tokens)]
        command += ["--timeout", str(wanted.request_timeout)]
        for number in range(wanted.runs if self.active else 0):
            self.progress.begin(f"Send generation {number + 1} of {wanted.runs} through pod {self._head.pod}")
            ran = self._head.run(command, self.progress.alive)
            if ran.status:
                why = (ran.stderr or ran.stdout).strip()[-400:]
                raise NotProved(f"the group did not answer a generation of {wanted.tokens} tokens: {why}")
            self.measured.append(json.loads(ran.stdout.strip().splitlines()[-1]))

    def _judge_logs(self) -> None:
        self.progress.begin("Judge every rank by the files that NCCL wrote")
        self._steps.add("logs")
        expect = expectation(full_expectation(self.plan, self.settings.expect))
        readers = [replace(each, container=SIDECAR) for each in self.containers]
        places = {each.pod: each.place for each in readers}
        self.judged, lines = judge_until_final(
            lambda: judge_sources(pod_sources(readers, LOG_FILES), expect, places, one_start=True, pins=self._pins),
            self.settings.timeout,
            self.progress.now,
            lambda: self.progress.pause(INTERVAL_S),
        )
        self._ledger.listen({pod: [line.decode(errors="replace") for line in own] for pod, own in lines.items()})
        if self.active:
            self.kept = keep_evidence(self.settings.evidence, self.judged, lines)
        if not self.judged["satisfied"]:
            raise NotProved(self.judged["msg"])

    def _compare_counters(self) -> None:
        verdict, kind = self.judged["verdict"], self.judged["transport_class"]
        moved = self._moved()
        # If the expectation allows logs without evidence, only the bytes can prove the planned transport.
        if verdict == "unknown" and self.active and not self._ledger.entries:
            raise NotProved(
                f"no log names a transport, and the bytes can't prove one: {self._ledger.as_dict()['msg']}. Leave "
                "nccl_verify_counters on, and remove allow_unknown from nccl_verify_expect where NCCL writes logs"
            )
        if not self._before:
            return
        self.progress.begin("Compare the counters with the verdict")
        if kind == "unknown" and (against := self._ledger.doubt(self._planned, "plan")):
            raise NotProved(against)
        if moved is None or kind not in ("rdma", "tcp"):
            return
        agrees, against = rdma.agreement(kind, moved, self.settings.min_bytes)
        self.counted |= {"agrees": agrees, "msg": against or moved.msg}
        if agrees is None:
            raise NotProved(
                f"the log says {verdict}, and the counters can't confirm it: {against}. Raise nccl_verify_tokens, or "
                "set nccl_verify_counters to false where the pods see no counters"
            )
        if not agrees:
            raise NotProved(f"{against}. Trust the counters: the bytes used another path than the log says")
        self._require_cables(moved)
        if against := self._ledger.doubt(kind):
            raise NotProved(against)

    def _require_cables(self, moved: rdma.Moved) -> None:
        """Require traffic on every cable of a group without common rails, where channel lines don't name the device."""
        pods = [rank["pod"] for rank in self.plan["ranks"]]
        by_cable = {
            f"{pods[cable['rank']]} to {pods[cable['peer']]} ({', '.join(cable['devices'])})": rdma.moved_bytes(
                moved.sources[pods[cable["rank"]]]["rdma"], cable["devices"]
            )
            for cable in self.plan.get("cables", ())
        }
        self.counted["cables"] = by_cable
        silent = [cable for cable, count in by_cable.items() if not count]
        if silent:
            raise NotProved(
                f"no bytes moved on the cable {'; '.join(silent)}: {moved.msg}. NCCL used another path for this pair."
                " Run playbook fabric with --tags fabric_check, and compare the cables with gb10_fabric_rails"
            )

    def _moved(self) -> rdma.Moved | None:
        """Return what moved since the first reading of the counters, if there was one; the first call reads them."""
        if self._difference is not None or not self._before:
            return self._difference
        devices = {rank["pod"]: _devices(rank) for rank in self.plan["ranks"]}
        interfaces = sorted({network["interface"] for rank in self.plan["ranks"] for network in rank["networks"]})
        moved = rdma.moved_since(self._before, self._counters(), devices, interfaces)
        self.counted |= {"rdma_bytes": moved.rdma_bytes, "tcp_bytes": moved.tcp_bytes, "msg": moved.msg}
        self._difference = moved
        self._ledger.close(moved.sources, self.measured)
        return moved

    def _measure_bandwidth(self) -> None:
        size, ranks = self.settings.bandwidth_bytes, self.plan["ranks"]
        if not size or len(ranks) < 2 or not self.active:
            return
        self.progress.begin(f"Measure an all-reduce of {size} bytes between the pods")
        port, limit = self.settings.bandwidth_port, self.settings.request_timeout
        try:
            self.bandwidth = measure(self.containers, self.plan, size, port, limit, self.progress)
        except ValueError as error:
            raise NotProved(str(error)) from error
        name, kind = self._measured_transport()
        floor = float(self.settings.min_busbw.get(kind, 0))
        busbw, correct = float(self.bandwidth["busbw"]), self.bandwidth["correct"]
        if not (busbw >= floor and correct):
            raise NotProved(
                f"an all-reduce of {size} bytes over {name} reached {busbw} GB/s on the bus, "
                f"{floor} or more was expected, and its sums are {'right' if correct else 'WRONG'}. The transport is "
                "proved, so look at its speed: playbook fabric with --tags fabric_check, firmware after a replug, MTU "
                "at both ends"
            )
        self._judge_latency()

    def _judge_latency(self) -> None:
        """Compare the time of small all-reduces with the limit, and with the measured time between tokens."""
        if not self.bandwidth:
            return
        smallest = at_one_token(self.bandwidth["latency"])
        self.bandwidth["decode"] = self._ledger.decode(self.bandwidth["latency"], self.measured)
        name, kind = self._measured_transport()
        limit = float(self.settings.max_latency.get(kind, 0))
        if limit and not smallest["p50"] <= limit:
            raise NotProved(
                f"an all-reduce of {smallest['bytes']} bytes over {name} takes {smallest['p50']} "
                f"microseconds (p99 {smallest['p99']}), {limit} or less was expected. Decoding waits for them in "
                "every layer. Look for other load on the nodes and for a busy switch; compare playbook fabric with "
                "--tags fabric_check"
            )

    def _measured_transport(self) -> tuple[str, str]:
        """Return the name and the class of the transport; where no log names it, the plan's, which the bytes proved."""
        if self.judged["transport_class"] == "unknown":
            return self._planned, self._planned
        return self.judged["verdict"], self.judged["transport_class"]

    def _explained(self, why: str) -> str:
        """Return why the proof failed, with the verdicts of logs and counters, which often show the actual cause."""
        try:
            self._moved()
        except ClusterError as error:
            self.counted["msg"] = str(error)
        if "logs" not in self._steps:
            try:
                self._judge_logs()
            except (NotProved, ClusterError) as error:
                why = f"{error}. Before that: {why}"
        remarks = f" Fabric, from inside the pods: {self.settings.remarks}." if self.settings.remarks else ""
        seen = self.counted["msg"] or "not read"
        needed = f" Byte ledger: {self._ledger.as_dict()['msg']}." if self._ledger.entries else ""
        return f"{why}. Counters: {seen}.{needed}{remarks} Evidence: {self.settings.evidence}"
