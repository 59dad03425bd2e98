# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import nccl_env_info, rdma_counters_info
from kube_samples import FakeApi, pod


def run(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[int, dict[str, Any]]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as stop:
        module.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def write(root: Path, sent: int, received: int, net: int) -> None:
    port = root / "class/infiniband/rocep1s0f0v0/ports/1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    (port / "hw_counters").mkdir(exist_ok=True)
    (port / "counters/port_xmit_data").write_text(f"{sent // 4}\n")
    (port / "counters/port_rcv_data").write_text(f"{received // 4}\n")
    (port / "hw_counters/out_of_sequence").write_text("7\n")
    statistics = root / "class/net/net1/statistics"
    statistics.mkdir(parents=True, exist_ok=True)
    (statistics / "tx_bytes").write_text(f"{net}\n")
    (statistics / "rx_bytes").write_text("0\n")


def look(root: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> tuple[int, dict[str, Any]]:
    return run(rdma_counters_info, capsys, sysfs_root=str(root), net_root=str(root), **more)


def test_what_moved_agrees_with_a_verdict_or_contradicts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 4000, 8000, 100)
    _unused, before = look(tmp_path, capsys)
    assert before["sources"]["host"]["rdma"]["rocep1s0f0v0"] == {
        "xmit_bytes": 4000,
        "rcv_bytes": 8000,
        "out_of_sequence": 7,
    }
    write(tmp_path, 391_004_000, 381_008_000, 5100)
    status, after = look(tmp_path, capsys, before=before["sources"], agree_with="rdma")
    assert (status, after["agrees"], after["rdma_bytes"], after["tcp_bytes"]) == (0, True, 772_000_000, 5000)
    assert after["msg"] == "host: rocep1s0f0v0 sent 391.0 MB, received 381.0 MB"
    status, against = look(tmp_path, capsys, before=before["sources"], agree_with="tcp")
    assert (status, against["agrees"]) == (1, False)
    assert against["msg"] == "the log says TCP, but the RDMA devices moved 772000000 bytes"
    assert set(after) == set(against) - {"failed"}


def test_rdma_in_the_log_and_tcp_on_the_wire_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 0, 0, 0)
    _unused, before = look(tmp_path, capsys)
    write(tmp_path, 0, 0, 50_000_000)
    status, after = look(tmp_path, capsys, before=before["sources"], agree_with="rdma")
    assert (status, after["agrees"]) == (1, False)
    status, quiet = look(tmp_path, capsys, before=after["sources"], agree_with="rdma")
    assert (status, quiet["agrees"]) == (0, None)
    assert "too little moved" in quiet["msg"]


def test_environment_is_judged_without_a_pod(capsys: pytest.CaptureFixture[str]) -> None:
    good = {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB"}
    status, result = run(nccl_env_info, capsys, env=good)
    assert (status, result["findings"]) == (0, [])
    status, result = run(nccl_env_info, capsys, env={**good, "NCCL_IB_DISABLE": 1})
    assert status == 1
    assert {finding["rule"] for finding in result["findings"]} == {"nccl.env.contradiction", "nccl.env.disabled"}


def documentation(module: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(Path(module.__file__).with_suffix(".yml").read_text(encoding="utf-8")))


def examples(module: Any) -> list[dict[str, Any]]:
    tasks = yaml.safe_load(documentation(module)["EXAMPLES"])
    return [next(value or {} for key, value in task.items() if "." in key) for task in tasks]


def test_the_examples_of_the_counters_run_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = examples(rdma_counters_info)
    status, before = run(rdma_counters_info, capsys, **first)
    assert (status, before["moved"]) == (0, {})
    assert second == {"before": "{{ before.sources }}"}
    status, after = run(rdma_counters_info, capsys, before=before["sources"])
    assert (status, set(after["moved"])) == (0, {"host"})


def test_the_examples_of_the_environment_run_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, in_pods = examples(nccl_env_info)
    status, result = run(nccl_env_info, capsys, **alone)
    assert (status, result["findings"]) == (0, [])
    shown = "#env\nNCCL_DEBUG=INFO\n#etc\nNCCL_IB_DISABLE=1\n#hcas\nrocep1s0f0v0\n"
    api = FakeApi(pods=[pod("gemma-0-0")], command=lambda _pod, _command: (0, shown, "")).install(monkeypatch)
    status, result = run(nccl_env_info, capsys, **in_pods)
    assert (status, api.asked[0]["label_selector"]) == (1, "gb10.cluster/instance=gemma-4-31b-it,gb10.cluster/rank")
    assert [(f["rule"], f["where"]) for f in result["findings"]] == [("nccl.env.disabled", "gemma-0-0")]


def test_pods_are_sources_of_their_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    moved = {"a": 100, "b": 300}
    line = "infiniband/rocep1s0f0v0/ports/1/counters/port_xmit_data {}\n"
    FakeApi(pods=[pod("b"), pod("a")], command=lambda name, _command: (0, line.format(moved[name]), "")).install(
        monkeypatch
    )
    pods = {"namespace": "gb10-serving", "label_selector": "x=y"}
    status, before = run(rdma_counters_info, capsys, pods=pods)
    assert (status, before["msg"]) == (0, "2 sources read")
    assert {name: own["rdma"]["rocep1s0f0v0"]["xmit_bytes"] for name, own in before["sources"].items()} == {
        "a": 400,
        "b": 1200,
    }
    moved["a"] = 600
    _status, after = run(rdma_counters_info, capsys, pods=pods, before=before["sources"])
    assert after["rdma_bytes"] == 2000


@pytest.mark.parametrize("module", [nccl_env_info, rdma_counters_info])
def test_pods_that_cannot_be_read_fail_with_the_usual_keys(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeApi().install(monkeypatch)
    status, result = run(module, capsys, pods={"namespace": "gb10-serving", "label_selector": "x=y"})
    assert status == 1
    assert result["msg"].startswith("no pod of namespace gb10-serving matches x=y")
    assert set(documentation(module)["RETURN"]) <= set(result)
