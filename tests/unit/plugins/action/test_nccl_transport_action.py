# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the proof of a group of two pods, with a failure in each of its steps."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes
import pytest
from ansible.errors import AnsibleActionFail, AnsiblePluginRemovedError
from ansible.plugins.loader import action_loader, module_loader
from ansible_collections.gb10.cluster.plugins.action import nccl_transport
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import WITHOUT_TERMINAL, held
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import module_document
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import HEIGHT
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.proof import Progress, measure
from kube_samples import FakeApi, Ran, pod
from stored import compare

ROOT = Path(__file__).resolve().parents[4]
REAL = ROOT / "tests" / "unit" / "fixtures" / "nccl" / "real"
NETWORK = {"rdma_device": "rocep1s0f0v0", "interface": "net1"}
PLAN = {
    "instance": "g",
    "transport": "roce",
    "expect": {"networks": ["IB", "IBext*"], "ranks": 2, "nodes": 2, "min_devices": 1},
    "model_path": "org/model",
    "ranks": [
        {"rank": rank, "pod": f"g-{rank}-0", "networks": [NETWORK], "argv": ["--tp-size", "2"]} for rank in (0, 1)
    ],
    "service": {"port": 30000},
    "rendezvous": {"address": "10.100.0.1"},
}
OPTIONS = {
    "plan": PLAN,
    "kubeconfig": "/none",
    "kube_context": "gb10",
    "namespace": "gb10-serving",
    "expect": {},
    "tokens": 64,
    "runs": 2,
    "request_timeout": 300,
    "timeout": 0,
    "counters": True,
    "min_bytes": 1000,
    "sysfs_root": "/sys",
    "environment": True,
    "bandwidth_bytes": 0,
    "bandwidth_port": 20001,
    "min_busbw": {"rdma": 0, "tcp": 0},
    "max_latency": {"rdma": 0, "tcp": 0},
    "remarks": "",
}
IB = "\n".join(
    f"g-{{rank}}-0:40:40 [0] NCCL INFO {line}"
    for line in (
        "NCCL version 2.28.9+cuda13.0",
        "ncclCommInitRankConfig comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x7 - Init START",
        "comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        "ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x7 - Init COMPLETE",
        "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
        "Connected all rings, use ring PXN 0 GDR 0",
    )
)


# A pass over one token exchanges 1.1 to 2.1 MB, so a generation of 64 tokens exchanges about 100 MB.
MODEL = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000}
SILENT = "g-0-0:40:40 [0] NCCL INFO Bootstrap : Using net1:10.0.0.1<0>\n"


SLOW = (0, '{"tokens": 64, "tokens_per_second": 1.0, "first_token_seconds": 1.0}\n', "")
BY_BYTES = {"allow_unknown": True, "ranks": 0, "nodes": 0}


@dataclass
class Pods:
    """Output of commands in the pods. A generation moves bytes; an all-reduce ends when it is read the second time."""

    env: str = "NCCL_DEBUG=INFO"
    rdma: int = 90_000_000
    tcp: int = 0
    config: str = json.dumps(MODEL)
    p50: float = 40.0
    answer: Ran = (0, '{"tokens": 64, "tokens_per_second": 20.5, "first_token_seconds": 0.2}\n', "")
    # The seconds that a generation takes from the start of its command, of which the answer tells a part.
    lasts: float = 0.0
    busbw: float = 20.0
    ends: tuple[str, str] = ("ended 0", "ended 0")
    made: int = 0
    looks: int = 0
    asked: list[str] = field(default_factory=list)

    def counters(self) -> str:
        """Return what the devices moved, half of it in each direction."""
        lines = [
            f"infiniband/rocep1s0f0v0/ports/1/counters/port_{way}_data {self.made * self.rdma // 8}"
            for way in ("xmit", "rcv")
        ]
        lines += [f"net/net1/statistics/{way}_bytes {self.made * self.tcp // 2}" for way in ("tx", "rx")]
        return "\n".join(lines)

    def __call__(self, name: str, command: list[str]) -> Ran:
        text = " ".join(command)
        self.asked.append(text)
        if "config.json" in text:
            return 0, self.config, ""
        if "--get" in text:
            page = f'cuda_graph_passes_total{{mode="decode_cuda_graph"}} {64 * self.made}\n'
            page += f'sglang:realtime_tokens_total{{mode="decode"}} {64 * self.made}\n'
            return 0, f"sglang:{page}" if "/metrics" in text else json.dumps({"cuda_graph_bs": [1, 2, 4, 8]}), ""
        if "generate_probe" in text:
            self.made += 1
            time.sleep(self.lasts)
            return self.answer
        if "port_xmit" in text or "/class/infiniband/*/ports" in text:
            return 0, self.counters(), ""
        if text == "cat /tmp/gb10-all-reduce":
            self.looks += 1
            small = [{"bytes": 4096, "p50": self.p50 - 1, "p99": 98.0}]
            small += [{"bytes": 8192 << power, "p50": self.p50 * (1 + power), "p99": 99.0} for power in range(8)]
            figures = json.dumps({"busbw": self.busbw, "algbw": self.busbw, "correct": True, "latency": small})
            return 0, f"NCCL version\n{figures}\n{self.ends[int(name[2])]}\n" if self.looks > 1 else "", ""
        return 0, f"#env\n{self.env}\n", ""


@pytest.fixture
def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated_clock: None) -> Callable[..., dict[str, Any]]:
    """Run the action on pods with the given logs and answers; the clock only moves when the action waits."""

    def run(
        pods: Pods | None = None,
        logs: dict[str, Any] | None = None,
        names: tuple[str, ...] = ("g-0-0", "g-1-0"),
        check_mode: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        listed = [pod(name, {"gb10.cluster/rank": name.split("-")[1]}) for name in names]
        texts = logs or {f"g-{rank}-0": [IB.format(rank=rank)] for rank in (0, 1)}
        FakeApi(pods=listed, files=texts, command=pods or Pods()).install(monkeypatch)
        action = nccl_transport.ActionModule.__new__(nccl_transport.ActionModule)
        action._task = SimpleNamespace(check_mode=check_mode)
        kept = tmp_path / "transport-g-roce" / "proof.json"
        action._templar = SimpleNamespace(template=str)
        result = action.act(OPTIONS | {"results_dir": str(tmp_path)} | options, {"hostvars": {}})
        if result.get("failed"):
            proof = json.loads(kept.read_text())
            result |= {"title": result["msg"], "msg": proof["msg"], "screen": held(result), "proof": proof}
        else:
            result["failed"] = False
            if not check_mode:
                assert result["proof"] == json.loads(kept.read_text())
        kept.unlink(missing_ok=True)
        return result

    return run


class Dead(Pods):
    """A group whose server is gone when it is asked."""

    def __call__(self, name: str, command: list[str]) -> Ran:
        if "generate_probe" in " ".join(command):
            raise kubernetes.client.ApiException(status=500, reason="container not found")
        return super().__call__(name, command)


class Idle(Pods):
    """A group with a second device that moves nothing."""

    def counters(self) -> str:
        path = "infiniband/roceP2p1s0f0v0/ports/1/counters/port_{}_data 0"
        return "\n".join([super().counters(), *(path.format(way) for way in ("xmit", "rcv"))])


@dataclass
class Asked(Pods):
    """A group whose sidecars tell which device has the address of the network."""

    device: str = "rocep1s0f0v0"

    def __call__(self, name: str, command: list[str]) -> Ran:
        if "_pod.evidence" in " ".join(command):
            assert command[-2:] == ["/sys", "net1"]
            return 0, json.dumps([{"device": self.device, "interface": "net1", "address": "10.9.0.1"}]), ""
        return super().__call__(name, command)


def second_rank_over_tcp(rdma: int, config: str = json.dumps(MODEL)) -> Callable[[str, list[str]], Ran]:
    """Return a group whose second rank exchanges its bytes by TCP and ``rdma`` bytes by RDMA."""
    group = Pods(config=config)

    def answer(name: str, command: list[str]) -> Ran:
        return (replace(group, rdma=rdma, tcp=90_000_000) if name == "g-1-0" else group)(name, command)

    return answer


def planned(**rank: Any) -> dict[str, Any]:
    """Return the plan with other values of each rank."""
    return {**PLAN, "ranks": [{**each, **rank} for each in PLAN["ranks"]]}


BOTH = planned(networks=[NETWORK, {"rdma_device": "roceP2p1s0f0v0", "interface": "net2"}])
THEIRS = planned(networks=[NETWORK | {"rdma_device": ""}])
PIPELINE = planned(argv=["--tp-size", "1", "--pp-size", "2"])
MUTE = {"g-0-0": [SILENT], "g-1-0": [SILENT]}
FORCED = [(REAL / "twohosts-netib-forced.rank0.log").read_text()]
USED = {"rank": 0, "peer": 1, "devices": ["rocep1s0f0v0"]}
UNUSED = {"rank": 1, "peer": 0, "devices": ["rocep1s0f1v0", "roceP2p1s0f1v0"]}
FAST, SMALL = (
    {"bandwidth_bytes": 1000, "min_busbw": {"rdma": 12}},
    {"bandwidth_bytes": 1000, "max_latency": {"rdma": 50}},
)
CASES: dict[str, dict[str, Any]] = {
    "healthy": FAST,
    "an environment without IB": {"pods": Pods(env="NCCL_DEBUG=INFO\nNCCL_IB_DISABLE=1")},
    "an environment that nobody judges": {"pods": Pods(env="NCCL_IB_DISABLE=1"), "environment": False},
    "no answer": {"pods": Pods(answer=(1, "", "not ready: HTTP 503\n"))},
    "a dead group": {"pods": Dead(), "logs": {"g-0-0": FORCED, "g-1-0": FORCED}},
    "a log of TCP": {
        "logs": {"g-0-0": [IB.format(rank=0)], "g-1-0": [(REAL / "twohosts-socket.rank1.log").read_text()]}
    },
    "bytes of TCP": {"pods": Pods(rdma=2_000_000, tcp=90_000_000)},
    "a rank over TCP, nothing predicted": {"pods": second_rank_over_tcp(0, config="")},
    "bytes of TCP while the server waits": {"pods": Pods(tcp=20_000_000, answer=SLOW, lasts=74)},
    "a silent log": {"logs": MUTE},
    "a silent log that may be": {"logs": MUTE, "expect": BY_BYTES},
    "a silent log that may be, bytes of TCP": {"logs": MUTE, "pods": Pods(rdma=0, tcp=90_000_000), "expect": BY_BYTES},
    "a silent log that may be, nothing predicted": {"logs": MUTE, "pods": Pods(config=""), "expect": BY_BYTES},
    "a silent log that may be, nothing counted": {"logs": MUTE, "counters": False, "expect": BY_BYTES},
    "a silent log that may be, slow": {"logs": MUTE, "expect": BY_BYTES, "pods": Pods(busbw=2.8), **FAST},
    "late": {"pods": Pods(p50=80.0), **SMALL},
    "late for another transport": {"pods": Pods(p50=80.0), **SMALL, "max_latency": {"tcp": 50}},
    "no figure": {"pods": Pods(busbw=float("nan")), **FAST},
    "no figure of latency": {"pods": Pods(p50=float("nan")), **SMALL},
    "slow": {"pods": Pods(busbw=2.8), **FAST},
    "no PyTorch": {"pods": Pods(ends=("ended 0", "the image has no PyTorch\nended 3")), "bandwidth_bytes": 1000},
    "counters of TCP": {"pods": Pods(rdma=0, tcp=50_000_000)},
    "too little": {"pods": Pods(rdma=4)},
    "no counters of a rail": {"plan": BOTH},
    "a rail that moves nothing": {"plan": BOTH, "pods": Idle()},
    "networks of others": {"plan": THEIRS, "pods": Asked()},
    "networks of others, another device": {"plan": THEIRS, "pods": Asked(device="rocep1s0f1v0")},
    "networks of others, no device": {"plan": THEIRS, "pods": Asked(device="")},
    "a ring": {"plan": {**PLAN, "cables": [USED]}},
    "a ring with a silent cable": {"plan": {**PLAN, "cables": [USED, UNUSED]}},
    **{
        f"config.json {config or 'missing'}": {"pods": Pods(config=config)}
        for config in ("", '{"architectures": ["X"]}', '{"architectures": ["X"]')
    },
    "a quiet pipeline": {"plan": PIPELINE, "pods": Pods(rdma=2_000_000)},
    "a slow pipeline": {"plan": PIPELINE, "pods": Pods(rdma=2_000_000, tcp=2_000_000, answer=SLOW, lasts=66)},
    "a slow pipeline over TCP": {
        "plan": PIPELINE,
        "pods": Pods(rdma=2_000_000, tcp=20_000_000, answer=SLOW, lasts=66),
    },
    "one rank of two": {"names": ("g-0-0",)},
    "no rank": {"names": ()},
    "no plan": {"plan": {}},
    "one GPU": {"plan": {**PLAN, "expect": {"ranks": 1, "nodes": 1}}},
    **{
        f"{limit} {given}": {limit: given, **size}
        for limit in ("min_busbw", "max_latency")
        for given, size in (({"rdma": 12}, {}), ({"rmda": 12}, {"bandwidth_bytes": 1000}))
    },
    "a large buffer": {"bandwidth_bytes": 16 * 10**9},
}


def test_proofs_are_those_that_are_stored(prove: Any, tmp_path: Path) -> None:
    found, keys = {}, set(prove()["proof"])
    for name, case in CASES.items():
        try:
            result = prove(**case, remarks="net1 has MTU 1500")
        except AnsibleActionFail as error:
            found[name] = [f"refused: {error}"]
            continue
        proof = result["proof"]
        assert set(proof) == keys
        counters, ledger, decode = proof["counters"], proof["ledger"], (proof["bandwidth"] or {}).get("decode") or {}
        lines = [f"{proof['verdict']}, {'' if proof['satisfied'] else 'not '}satisfied", *result["msg"].splitlines()]
        lines += [
            f"counters: {counters['rdma_bytes']} {counters['tcp_bytes']} {counters['agrees']} {counters['cables']}"
        ]
        lines += [f"ledger: {ledger['verdict']} {ledger['msg']}" if ledger["msg"] not in result["msg"] else "ledger"]
        lines += [f"decode: {key} {value:.4g}" for key, value in decode.items() if isinstance(value, float)]
        if result["failed"]:
            screen = result["screen"].splitlines()
            # The name of a file cannot be broken.
            assert max(len(line) for line in screen if str(tmp_path) not in line) <= WITHOUT_TERMINAL
            said = " ".join(result["screen"].split())
            assert len(screen) <= HEIGHT and said.startswith(result["title"]) and said.count("net1 has MTU 1500") == 1
            assert proof["failures"] or proof["findings"] or proof["reason"][:60] in said
            lines.insert(1, result["title"])
        found[name] = [line.replace(str(tmp_path), "") for line in lines]
    compare("transport_proofs", found)


def test_the_evidence_is_kept_and_the_second_rank_joins_the_all_reduce(prove: Any, tmp_path: Path) -> None:
    pods = Pods()
    proved = prove(pods, bandwidth_bytes=1000)["proof"]
    assert proved["ledger"]["ranks"]["g-1-0"]["rdma_bytes"] == 2 * pods.rdma
    assert sum("--bytes 1000;" in text and "--rank 1" in text for text in pods.asked) == 1
    assert (tmp_path / "transport-g-roce" / "transport.json").exists()
    assert proved["evidence_files"][-1] == str(tmp_path / "transport-g-roce" / "proof.json")


def test_check_mode_sends_nothing_and_keeps_nothing(prove: Any, tmp_path: Path) -> None:
    pods = Pods()
    result = prove(pods, check_mode=True)
    assert (result["failed"], result["proof"]["counters"]["agrees"], pods.made) == (False, None, 0)
    assert list(tmp_path.iterdir()) == []
    assert prove(names=(), check_mode=True)["skipped"] is True


def test_long_work_shows_a_line_every_half_minute() -> None:
    now, shown = [0.0], list[str]()
    progress = Progress(shown.append, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    progress.begin("Send a generation")
    for _second in range(14):
        progress.pause(5)
    assert shown == ["Send a generation", "Send a generation: 30 s so far", "Send a generation: 60 s so far"]


def test_an_all_reduce_that_does_not_end_is_no_measurement() -> None:
    now = [0.0]
    progress = Progress(lambda _text: None, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    pod_of_rank: Any = SimpleNamespace(pod="g-0-0", run=lambda _command: SimpleNamespace(stdout="connecting"))
    plan = {"ranks": [{"rank": 0, "pod": "g-0-0"}], "rendezvous": {"address": "10.100.0.1"}}
    with pytest.raises(ValueError, match="could not be measured: connecting"):
        measure([pod_of_rank], plan, 8, 20000, 60, progress)
    # The program ends itself after its limit; its shell needs a moment more.
    assert 60 < now[0] < 70


def task(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    """Return the action for a task with these arguments; the module returns its options as ``given``."""
    action = nccl_transport.ActionModule.__new__(nccl_transport.ActionModule)
    action._task = SimpleNamespace(args=arguments, action="gb10.cluster.nccl_transport", check_mode=False)
    monkeypatch.setattr(nccl_transport.ActionBase, "run", lambda *_given: {})
    monkeypatch.setattr(action, "_execute_module", lambda module_args, task_vars: {"given": module_args})
    return action


def test_logs_are_judged_by_the_module_with_the_expectation_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert task(monkeypatch, files=["rank0.log"]).run()["given"] == {"files": ["rank0.log"]}
    given = task(monkeypatch, files=["x"], plan=OPTIONS["plan"], expect={"min_devices": 2}).run()["given"]
    assert "plan" not in given
    assert given["expect"] == {**OPTIONS["plan"]["expect"], "complete": True, "allow_intra": False, "gdr": None} | {
        "min_devices": 2
    }
    with pytest.raises(AnsibleActionFail, match="the value of plan is no serving plan"):
        task(monkeypatch, text="x", plan={}).run()


def test_the_proof_of_a_group_refuses_options_that_it_would_ignore(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleActionFail, match="timeout: with a plan and without files, pods or text"):
        task(monkeypatch, plan=OPTIONS["plan"], timeout=5).run()


def test_the_names_before_lead_to_this_module_or_say_what_to_use() -> None:
    for loader in (action_loader, module_loader):
        found = loader.find_plugin_with_context("gb10.cluster.nccl_proof")
        assert found.resolved_fqcn == "gb10.cluster.nccl_transport"
    for name in ("nccl_env_info", "rdma_counters_info"):
        with pytest.raises(AnsiblePluginRemovedError, match="nccl_transport in role nccl_verify"):
            module_loader.find_plugin_with_context(f"gb10.cluster.{name}")


def test_documentation_names_every_key_of_the_result(prove: Any) -> None:
    documented = module_document("nccl_transport", "RETURN")
    assert set(documented["proof"]["contains"]) == set(prove()["proof"])


def test_the_page_of_interfaces_names_every_key_of_the_proof(prove: Any) -> None:
    page = (ROOT / "docs/interfaces.md").read_text()
    text = page[page.index("If the proof succeeds, role `nccl_verify` sets") :].partition("## Lab")[0]
    proof = prove(bandwidth_bytes=1000)["proof"]
    keys = {*proof, *proof["ledger"], *next(iter(proof["ledger"]["ranks"].values())), *proof["bandwidth"]["decode"]}
    assert {key for key in keys if not re.search(rf"\b{key}\b", text)} == set()
