# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the results and failures of the K3s modules that only read."""

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts as preflight_facts
from ansible_collections.gb10.cluster.plugins.module_utils._node.commands import Answer
from ansible_collections.gb10.cluster.plugins.modules import (
    k3s_airgap_info,
    k3s_service_info,
    k3s_upgrade_plan,
    preflight_info,
)
from module_runs import run_module

Capture = pytest.CaptureFixture[str]
OLD = "v1.36.4+k3s1"


def commands_answer(monkeypatch: pytest.MonkeyPatch, *answer: Any) -> list[list[str]]:
    """Make all commands of a module return the same answer; return the list of called commands."""
    called: list[list[str]] = []

    def run(_module: AnsibleModule, command: list[str], **_options: object) -> tuple[Any, ...]:
        called.append(command)
        return answer

    monkeypatch.setattr(AnsibleModule, "run_command", run)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, *_rest: f"/usr/bin/{name}")
    return called


def test_airgap_files_with_their_checksums(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "k3s-arm64").write_bytes(b"k3s")
    digest = hashlib.sha256(b"k3s").hexdigest()
    (tmp_path / "sha256sum-arm64.txt").write_text(f"{digest}  k3s-arm64\n")
    status, result = run_module(k3s_airgap_info, capsys, path=str(tmp_path), arch="arm64")
    assert (status, result["binary"], result["images"]) == (0, str(tmp_path / "k3s-arm64"), [])
    assert result["sums"] == {"k3s-arm64": digest}


def test_an_airgap_directory_without_its_binary_fails(tmp_path: Path, capsys: Capture) -> None:
    status, result = run_module(k3s_airgap_info, capsys, path=str(tmp_path), arch="arm64")
    assert (status, [finding["rule"] for finding in result["findings"]]) == (1, ["k3s.airgap.binary"])


def test_an_airgap_directory_that_cannot_be_read_is_a_finding(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k3s").write_bytes(b"k3s")
    (tmp_path / "sha256sum.txt").mkdir()
    status, result = run_module(k3s_airgap_info, capsys, path=str(tmp_path), arch="amd64")
    assert status == 1
    assert "Is a directory" in result["msg"]
    assert "Make it readable" in result["msg"]


@pytest.mark.parametrize(("started", "stale"), [(0, True), (4_000_000_000, False)])
def test_a_service_that_runs_with_older_files(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, started: int, stale: bool
) -> None:
    (tmp_path / "config.yaml").write_text("")
    commands_answer(monkeypatch, 0, f"ActiveState=active\nExecMainStartTimestamp=@{started}\n", "")
    files = [str(tmp_path / "config.yaml"), str(tmp_path / "missing")]
    status, result = run_module(k3s_service_info, capsys, name="k3s", files=files)
    assert (status, result["active"], result["stale"]) == (0, True, stale)


@pytest.mark.parametrize(
    ("state", "unit", "found"),
    [
        ("active", "enabled", (True, True, True)),
        ("active", "disabled", (True, True, False)),
        ("activating", "enabled", (False, True, True)),
        ("failed", "enabled", (False, False, True)),
        ("inactive", "", (False, False, False)),
    ],
)
def test_the_states_of_the_service(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, state: str, unit: str, found: tuple[bool, bool, bool]
) -> None:
    commands_answer(monkeypatch, 0, f"ActiveState={state}\nUnitFileState={unit}\nExecMainStartTimestamp=\n", "")
    result = run_module(k3s_service_info, capsys, name="k3s", files=[])[1]
    assert (result["active"], result["running"], result["enabled"]) == found


def test_files_that_the_host_has_already(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    commands_answer(monkeypatch, 0, "ActiveState=inactive\n", "")
    (tmp_path / "same").write_bytes(b"k3s")
    (tmp_path / "other").write_bytes(b"older")
    sums = {str(tmp_path / name): hashlib.sha256(b"k3s").hexdigest() for name in ("same", "other", "missing")}
    assert run_module(k3s_service_info, capsys, name="k3s", files=[], sums=sums)[1]["held"] == [str(tmp_path / "same")]


def test_a_host_without_systemd_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    commands_answer(monkeypatch, 1, "", "System has not been booted with systemd\n")
    status, result = run_module(k3s_service_info, capsys, name="k3s", files=[])
    assert status == 1
    assert "not been booted" in result["msg"]


class Cluster:
    """One node, and a model group that an interrupted upgrade has stopped."""

    def __init__(self, _kubeconfig: str, context: str) -> None:
        if context != "gb10":
            raise ClusterError(f"can't use context {context}")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"metadata": {"name": "control"}}]

    def pods(self, _namespace: str, _selector: str) -> list[dict[str, Any]]:
        return []

    def objects(self, _resource: str, name: str) -> list[dict[str, Any]]:
        return [{"metadata": {"name": name, "annotations": {"gb10.cluster/upgrade": "v1.36.5+k3s1"}}}]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k3s_upgrade_plan, "Cluster", Cluster)


def plan(capsys: Capture, version: str, installed: str = OLD, context: str = "gb10") -> tuple[int, dict[str, Any]]:
    node = {"host": "control", "node": "control", "server": True, "installed": installed}
    where = {"kubeconfig": "/k", "context": context, "namespace": "gb10-serving"}
    return run_module(k3s_upgrade_plan, capsys, version=version, nodes=[node], **where)


@pytest.mark.usefixtures("cluster")
def test_an_upgrade_is_planned(capsys: Capture) -> None:
    status, result = plan(capsys, "v1.36.5+k3s1")
    assert (status, result["hosts"], result["instances"]) == (0, ["control"], [])
    assert [step["action"] for step in result["steps"]] == ["upgrade", "start-group", "verify"]


@pytest.mark.usefixtures("cluster")
def test_an_upgrade_without_the_cluster_fails(capsys: Capture) -> None:
    status, result = plan(capsys, OLD, context="nosuch")
    assert (status, result["msg"], result["steps"]) == (1, "can't use context nosuch", [])


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("version", "installed", "said"),
    [("latest", OLD, "write it like"), ("v1.38.0+k3s1", OLD, "upgrade.skips_minor"), (OLD, "", "not_installed")],
)
def test_an_impossible_upgrade_fails(capsys: Capture, version: str, installed: str, said: str) -> None:
    status, result = plan(capsys, version, installed)
    assert (status, result["steps"]) == (1, [])
    assert said in result["msg"]


def test_preflight_reads_a_host_below_its_roots(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_info, "runner", lambda _module: lambda _command: Answer(1, "", "no"))
    monkeypatch.setattr(preflight_facts.os, "geteuid", lambda: 1000)
    roots = {name: str(tmp_path / name) for name in ("proc", "etc", "dev", "netns", "cgroup")}
    monkeypatch.setattr(preflight_info, "Roots", partial(preflight_facts.Roots, **roots))
    status, result = run_module(
        preflight_info, capsys, paths=[str(tmp_path)], controller_time=time.time() - 100, sysfs_root=str(tmp_path)
    )
    facts = result["ansible_facts"]["gb10_preflight"]
    assert (status, result["changed"], facts["user"]["uid"], facts["pfs"]) == (0, False, 1000, [])
    assert 99 < facts["clock_offset_s"] < 160
    assert facts["netplan"]["error"] == "no"
