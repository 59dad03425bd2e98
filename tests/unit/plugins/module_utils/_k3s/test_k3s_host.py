# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import host

ROUTE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
mgmt0\t00000000\t01006309\t0003\t0\t0\t0\t00000000\t0\t0\t0
mgmt0\t0000630A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
LISTENING = """  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:192B 00000000:0000 0A 00000000:00000000 00:00000000
   1: 0100007F:1F90 0100007F:A001 01 00000000:00000000 00:00000000
"""
NO_IPV6_DEFAULT = (
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 " + "0" * 32 + " ffffffff 1 0 0 lo\n"
)


def judged(state: host.HostState, **options: Any) -> list[str]:
    defaults: dict[str, Any] = {
        "role": "agent",
        "version": "v1.36.4+k3s1",
        "kubelet_args": [],
        "embedded_etcd": False,
        "reference_epoch": 0.0,
        "clock_skew": 60.0,
    }
    return [f"{finding.severity} {finding.rule}" for finding in host.judge(state, **(defaults | options))]


def test_versions() -> None:
    assert host.parse_k3s_version("1.36.10").release == (1, 36, 10)
    for text in ("latest", "v1.36"):
        with pytest.raises(ValueError, match=f"'{text}'.*write it like v1.36.4"):
            host.parse_k3s_version(text)
    assert host.parse_k3s_version_output("k3s version v1.36.4+k3s1 (abc)\ngo version go1.26") == "v1.36.4+k3s1"
    assert host.parse_k3s_version_output("") == ""


def test_tables_of_proc() -> None:
    assert host.listening_ports([LISTENING]) == {6443}
    assert host.swap_devices("Filename Type Size Used Priority\n/swap.img file 8 0 -2\n") == ("/swap.img",)
    assert host.has_default_route(ROUTE, "")
    assert not host.has_default_route(ROUTE.splitlines()[0], NO_IPV6_DEFAULT)
    assert host.has_default_route("", NO_IPV6_DEFAULT.replace(" lo", " eth0"))


def test_a_fit_host_has_no_findings() -> None:
    assert judged(host.HostState(cgroup_v2=True, epoch=100.0), reference_epoch=130.0) == []


def test_cgroup_v1_is_refused_from_1_35_unless_the_kubelet_is_told() -> None:
    old = host.HostState(cgroup_v2=False)
    assert judged(old) == ["error k3s.cgroup.v1"]
    assert judged(old, kubelet_args=["fail-cgroupv1=false"]) == []
    assert judged(old, version="v1.34.9+k3s1") == []


def test_all_findings_come_at_once() -> None:
    state = host.HostState(
        cgroup_v2=False,
        swap_devices=("/swap.img",),
        listening=frozenset({6443, 2379, 22}),
        default_route=False,
        foreign=("kubeadm",),
        epoch=1000.0,
    )
    assert judged(state, role="server", embedded_etcd=True, reference_epoch=100.0) == [
        "error k3s.cgroup.v1",
        "warning k3s.swap.on",
        "error k3s.route.default",
        "error k3s.installation.foreign",
        "error k3s.port.taken",
        "error k3s.port.taken",
        "error k3s.clock.skew",
    ]


def test_what_runs_already() -> None:
    ours = {"k3s-agent.service": True}
    running = host.HostState(True, units=ours, listening=frozenset({10250}), installed_version="v1.36.4+k3s1")
    assert judged(running) == []
    assert judged(running, role="server") == ["error k3s.installation.role"]
    assert judged(running, version="v1.36.5+k3s1") == ["error k3s.version.differs"]
    assert judged(running, version="v1.36.5+k3s1", upgrading=True) == []
    assert judged(host.HostState(True, units={"k3s-agent.service": False})) == ["error k3s.installation.other"]


def test_a_host_is_read_below_a_root(tmp_path: Path) -> None:
    for name, text in {
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "proc/net/route": ROUTE,
        "proc/net/tcp": LISTENING,
        "etc/systemd/system/k3s.service": f"Description=K3s server, {host.MARKER}\n",
        "etc/kubernetes/kubelet.conf": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    state = host.read_host(tmp_path, "v1.36.4+k3s1", 5.0)
    assert state == host.HostState(
        cgroup_v2=True,
        listening=frozenset({6443}),
        units={"k3s.service": True},
        foreign=("kubeadm",),
        installed_version="v1.36.4+k3s1",
        epoch=5.0,
    )


@pytest.mark.parametrize(
    ("state", "changed", "stale"),
    [
        ("active", 1700000001.0, True),
        ("active", 1700000000.9, False),
        ("activating", 1700000005.0, True),
        ("inactive", 1700000005.0, False),
        ("failed", 1700000005.0, False),
    ],
)
def test_a_service_older_than_its_files(state: str, changed: float, stale: bool) -> None:
    properties = host.parse_properties(f"ActiveState={state}\nExecMainStartTimestamp=@1700000000\n")
    assert host.is_stale(properties, [1.0, changed]) is stale


def test_a_service_that_never_started_is_not_stale() -> None:
    assert not host.is_stale({"ActiveState": "activating", "ExecMainStartTimestamp": ""}, [5.0])
