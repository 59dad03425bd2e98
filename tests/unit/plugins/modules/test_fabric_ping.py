# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.modules import fabric_ping
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.check_matrix import ping_verdict
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import fabric
from module_runs import become_nobody, run_module

PLAN = plan_fabric(fabric(2, gb10_fabric_vf_count=1))[0].as_dict()
OWN = PLAN["hosts"]["spark1"]["vfs"]
PEER = {vf["address"]: vf["mac"] for vf in PLAN["hosts"]["spark2"]["vfs"]}


def link(vf: dict[str, Any]) -> dict[str, Any]:
    return {"ifname": vf["netdev"], "mtu": 9000, "operstate": "UP", "addr_info": [{"local": vf["address"]}]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A host whose pings are answered; the MAC that answers for each address can be changed."""
    neighbours = dict(PEER)

    def run(argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms", "")

    monkeypatch.setattr(system, "links", lambda: {vf["netdev"]: link(vf) for vf in OWN})
    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda argv: [{"lladdr": neighbours[argv[argv.index("to") + 1]]}])
    return neighbours


def test_both_rails_pass(host: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert (status, result["msg"], result["changed"]) == (0, "2 of 2 directions pass", False)
    assert [one["rtt_ms"] for one in result["results"]] == [0.25, 0.25]
    assert ping_verdict({"spark1": result["results"], "spark2": []}, ["spark1", "spark2"])["ok"] is True


def test_a_peer_that_answers_on_the_wrong_rail_is_named(
    host: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = PEER
    host[second] = PEER[first]
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert (status, result["msg"]) == (0, "1 of 2 directions pass")
    (bad,) = (one for one in result["results"] if not one["ok"])
    assert (bad["layer"], bad["address"]) == ("ethernet", second)
    assert "answers with the MAC of enp1s0f0v0 of spark2 (rail0, VF 0)" in bad["reason"]
    verdict = ping_verdict({"spark1": result["results"], "spark2": []}, ["spark1", "spark2"])
    assert "1/2 ethernet" in verdict["msg"]


def test_a_host_outside_the_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark9")
    assert (status, result["results"]) == (1, [])
    assert "spark9 is not in the fabric plan" in result["msg"]


def test_a_missing_program_is_named(
    host: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nonexistent")
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert status == 1
    assert "ip: command not found on this host" in result["msg"]


def test_a_user_who_cannot_look_into_pods_is_told_so(
    host: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, a VF in a pod would be reported as missing."""
    become_nobody(monkeypatch)
    monkeypatch.setattr(system, "links", dict)
    monkeypatch.setattr(netns, "_pids", lambda _root: [1])

    def stat(path: Path, **_options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", stat)
    status, result = run_module(fabric_ping, capsys, plan=PLAN, host="spark1")
    assert status == 1
    assert "become: true" in result["msg"]
