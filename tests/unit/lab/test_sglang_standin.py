# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the simulated SGLang decides as NCCL does and logs lines that the verdict can read."""

import importlib
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.exchange import Shape, Split, Work, predict
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import judge

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "lab" / "sglang"))
fabric = importlib.import_module("sglang._fabric")
nccl = importlib.import_module("sglang._nccl")
cli = importlib.import_module("sglang._cli")
model = importlib.import_module("sglang._model")

LOUD = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
NETS = [fabric.Interface("eth0", "10.42.0.5"), fabric.Interface("net1", "10.100.0.1")]
MAPPED = fabric.Gid(3, "0000:0000:0000:0000:0000:ffff:0a64:0001", "RoCE v2")
LOCAL = fabric.Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2")


def device(name: str, openable: bool = True, active: bool = True, gids: tuple[Any, ...] = (LOCAL, MAPPED)) -> Any:
    return fabric.Device(name, active, openable, 100000, gids)


RAILS = [device("rocep1s0f0v0"), device("roceP2p1s0f0v0")]


def judged(text: str) -> Any:
    log = NcclLog()
    log.read(BytesIO(text.encode()).read)
    return Report(log, "pod")


def run(env: dict[str, str], devices: list[Any], previous: str = "") -> None:
    """Let rank 0 of two select its network, start and connect; ``previous`` is the other rank's network."""
    log = nccl.Log(LOUD)
    net = nccl.select(env, NETS, devices, log)
    comm = nccl.Communicator(log, net, 0, 2, "10.100.0.1:20000")
    comm.start()
    comm.connect([nccl.choose_gid(d, env.get("NCCL_IB_GID_INDEX")) for d in net.devices], previous or net.name)


def test_both_rails_carry_channels(capsys: pytest.CaptureFixture[str]) -> None:
    run({"NCCL_IB_HCA": "=rocep1s0f0v0,roceP2p1s0f0v0", "NCCL_SOCKET_IFNAME": "=net1"}, RAILS)
    report = judged(capsys.readouterr().out)
    assert (report.verdict.verdict, report.verdict.evidence) == ("ib", "channels")
    assert set(report.channels["IB"]) == {"0", "1"}


@pytest.mark.parametrize(("env", "previous"), [({}, "Socket"), ({"NCCL_IB_DISABLE": "1"}, "IB")])
def test_ranks_with_different_networks_fail(
    env: dict[str, str], previous: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(nccl.NcclError, match="internal error"):
        run(env, RAILS, previous)
    report = judged(capsys.readouterr().out)
    assert report.verdict.verdict == ("socket" if env else "ib")
    assert report.troubles == ["wrong_peer_type"]


@pytest.mark.parametrize(
    ("env", "devices"),
    [
        ({}, [device("rocep1s0f0v0", openable=False)]),
        ({}, [device("rocep1s0f0v0", active=False)]),
        ({}, []),
        ({"NCCL_IB_HCA": "=enp1s0f0v0"}, RAILS),
        ({"NCCL_IB_DISABLE": "1"}, RAILS),
        ({"NCCL_NET": "Socket"}, RAILS),
    ],
)
def test_the_silent_fallback(env: dict[str, str], devices: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    run(env, devices)
    assert judged(capsys.readouterr().out).verdict.verdict == "socket"


@pytest.mark.parametrize("forced", ["IB", "", "Nonsense"])
def test_a_forced_network_that_is_absent_ends_the_rank(forced: str) -> None:
    with pytest.raises(nccl.NcclError, match="any NET plugin"):
        run({"NCCL_NET": forced}, [])


def test_a_wrong_interface_ends_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(nccl.NcclError):
        run({"NCCL_SOCKET_IFNAME": "=net9"}, RAILS)
    assert "no socket interface found" in capsys.readouterr().out


@pytest.mark.parametrize(("gids", "index"), [((LOCAL,), None), ((LOCAL, MAPPED), "0"), ((LOCAL,), "")])
def test_no_usable_gid_fails_at_the_first_collective(
    gids: tuple[Any, ...], index: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {} if index is None else {"NCCL_IB_GID_INDEX": index}
    with pytest.raises(nccl.NcclError, match="Network is unreachable"):
        run(env, [device("rocep1s0f0v0", gids=gids)])
    causes = judged(capsys.readouterr().out).causes
    assert any("IPv4" in cause["summary"] + cause["remedy"] for cause in causes)


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        ("rocep1s0f0v0", "", True),
        ("rocep1s0f0v0", "roce", True),
        ("rocep1s0f0v10", "rocep1s0f0v1", True),
        ("rocep1s0f0v10", "=rocep1s0f0v1", False),
        ("rocep1s0f0v1", "=rocep1s0f0v1:1", True),
        ("rocep1s0f0v0", "^roce", False),
        ("mlx5_0", "^roce", True),
        ("rocep1s0f0", "^=rocep1s0f0v0", True),
    ],
)
def test_device_lists(name: str, spec: str, expected: bool) -> None:
    assert nccl.matches(name, spec) is expected


@pytest.mark.parametrize(
    ("release", "flag", "accepted"),
    [
        ("0.5.12", ["--cuda-graph-max-bs", "8"], True),
        ("0.5.23", ["--cuda-graph-max-bs", "8"], False),
        ("0.5.23", ["--cuda-graph-max-bs-decode", "8"], True),
        ("0.5.23", ["--disable-piecewise-cuda-graph"], False),
        ("0.5.12", ["--attention-backend", "nonsense"], False),
    ],
)
def test_the_parser_of_the_release_decides_which_flags_exist(release: str, flag: list[str], accepted: bool) -> None:
    parser = cli.build_parser(release, ROOT / "plugins" / "profiles" / "catalogue")
    words = ["--model-path", "m", *flag]
    if accepted:
        parser.parse_args(words)
    else:
        with pytest.raises(SystemExit):
            parser.parse_args(words)


@pytest.mark.parametrize(
    ("argv", "nodes"),
    [
        (["--tp-size", "2"], 2),
        (["--tp-size", "4"], 4),
        (["--tp-size", "1", "--pp-size", "2"], 2),
        (["--tp-size", "4", "--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"], 4),
    ],
)
@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_moves_as_many_bytes_as_the_ledger_predicts(argv: list[str], nodes: int, rows: int) -> None:
    flags = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(argv[::2], argv[1::2], strict=True)
    }
    sent = 100 * model.step_bytes(flags, nodes, rows)
    predicted = predict(Shape.read(model.CONFIG), Split.read(argv, nodes), Work(0, 0, 100 * rows, 100))
    assert judge(predicted, 2 * sent, 0).verdict == "rdma"
    assert judge(predicted, 0, 2 * sent).verdict == "tcp"
    assert judge(predicted, 2 * sent // 10, 0).verdict == "unexplained"
