# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.report import format_report, judge
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.rules import RULES, Settings, Subject

PF = {
    "name": "enp1s0f0np0",
    "pci_address": "0000:01:00.0",
    "total_vfs": 4,
    "num_vfs": 0,
    "rdma_device": "rocep1s0f0",
    "max_mtu": 9978,
    "driver": "mlx5_core",
    "driver_version": None,
    "firmware": "28.45.4028",
    "mtu": 9000,
    "carrier": True,
    "speed_mbps": 200000,
    "port_state": "ACTIVE",
    "rate_gbps": 200.0,
    "pcie_gts": 32.0,
    "pcie_width": 4,
    "pcie_max_gts": 32.0,
    "pcie_max_width": 4,
}
GOOD: dict[str, Any] = {
    "os": {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.3 LTS"},
    "arch": "aarch64",
    "kernel": "6.14.0-1013-nvidia",
    "command_line": "quiet",
    "memory_kib": 125000000,
    "swap_kib": 0,
    "cma_kib": 65536,
    "cgroup_version": 2,
    "time_synchronized": True,
    "clock_offset_s": 1.5,
    "disks": [{"path": "/var/lib", "free_gib": 900.0}],
    "iommu": True,
    "runtime_memlock": {"k3s-agent.service": None},
    "gpu_driver": "580.95.05",
    "rdma": {"devices": ["rocep1s0f0"], "device_nodes": 1, "shared_mode": True},
    "pfs": [PF, {**PF, "name": "enP2p1s0f0np0", "rdma_device": "roceP2p1s0f0"}],
    "interfaces": ["enP7s7", "lo", "wlP9s9"],
    "wifi": ["wlP9s9"],
    "default_routes": ["enP7s7", "wlP9s9"],
    "listeners": [{"port": 22, "process": "sshd"}, {"port": 10250, "process": "k3s-agent"}],
    "orphan_namespaces": [{"namespace": "mine", "links": [{"name": "veth0", "alias": "", "mac": "aa:bb:cc:00:00:01"}]}],
}
VFS = {"enp1s0f0v0": "02:95:2a:00:01:00"}
SUBJECT = Subject(
    "spark1", GOOD, pfs=("enp1s0f0np0", "enP2p1s0f0np0"), vfs=VFS, server=True, management_interface="enP7s7"
)


def with_facts(**facts: Any) -> Callable[[Subject], Subject]:
    return lambda subject: replace(subject, facts={**copy.deepcopy(dict(subject.facts or {})), **facts})


def with_pf(**values: Any) -> Callable[[Subject], Subject]:
    def change(subject: Subject) -> Subject:
        facts = copy.deepcopy(dict(subject.facts or {}))
        facts["pfs"][0].update(values)
        return replace(subject, facts=facts)

    return change


def orphan(**link: str) -> Callable[[Subject], Subject]:
    whole = {"name": "net1", "alias": "", "mac": "", **link}
    return with_facts(orphan_namespaces=[{"namespace": "cni-1", "links": [whole]}])


RULE_CASES: list[tuple[str, Callable[[Subject], Subject]]] = [
    ("preflight.cgroup.unknown", with_facts(cgroup_version=None)),
    ("preflight.cgroup.v1", with_facts(cgroup_version=1)),
    ("preflight.cni.stale_namespace", orphan(alias="enp1s0f0v0")),
    ("preflight.cni.stale_namespace", orphan(mac="02:95:2a:00:01:00")),
    ("preflight.driver.no_rdma", with_pf(rdma_device=None)),
    ("preflight.driver.other", with_pf(driver="igb")),
    ("preflight.gpu.no_driver", with_facts(gpu_driver=None)),
    ("preflight.host.unread", lambda subject: replace(subject, facts=None)),
    ("preflight.iommu.off", with_facts(iommu=False)),
    ("preflight.link.down", with_pf(carrier=False)),
    ("preflight.link.not_active", with_pf(port_state="DOWN")),
    ("preflight.link.slow", with_pf(rate_gbps=100.0)),
    ("preflight.memory.cma", with_facts(kernel="7.0.0-1019-nvidia", cma_kib=0)),
    ("preflight.memory.swap", with_facts(swap_kib=1024)),
    ("preflight.mtu.not_yet", with_pf(mtu=1500)),
    ("preflight.network.management_missing", lambda subject: replace(subject, management_interface="eth7")),
    ("preflight.network.wifi", with_facts(default_routes=["wlP9s9", "enP7s7"])),
    ("preflight.os.unsupported", with_facts(os={"id": "arch", "version": "", "name": "Arch Linux"})),
    ("preflight.pcie.narrow", with_pf(pcie_gts=16.0, pcie_width=8, pcie_max_width=8)),
    ("preflight.pcie.slow", with_pf(pcie_width=2, pcie_max_width=2)),
    ("preflight.pcie.unknown", with_pf(pcie_width=None)),
    ("preflight.port.in_use", with_facts(listeners=[{"port": 6443, "process": "haproxy"}])),
    ("preflight.port.in_use", with_facts(listeners=[{"port": 10250, "process": None}])),
    ("preflight.rdma.exclusive", with_facts(rdma={**GOOD["rdma"], "shared_mode": False})),
    ("preflight.rdma.no_device_nodes", with_facts(rdma={**GOOD["rdma"], "device_nodes": 0})),
    ("preflight.runtime.memlock", with_facts(runtime_memlock={"k3s-agent.service": 8388608})),
    ("preflight.storage.space", with_facts(disks=[{"path": "/models", "free_gib": 12.5}])),
    ("preflight.time.unsynchronized", with_facts(time_synchronized=False)),
    ("preflight.time.unsynchronized", with_facts(time_synchronized=None)),
    ("preflight.time.skew", with_facts(clock_offset_s=-86400.0)),
    ("preflight.time.skew", with_facts(clock_offset_s=31.0)),
]
BETWEEN = {"preflight.firmware.differs", "preflight.gpu.driver_differs", "preflight.os.kernel_differs"}


def found(*subjects: Subject, settings: Settings | None = None) -> list[Finding]:
    return judge(subjects, settings or Settings(rdma_mode="restricted"))


def test_a_good_host_has_nothing_against_it() -> None:
    assert found(SUBJECT) == []


@pytest.mark.parametrize(("rule", "change"), RULE_CASES, ids=[f"{n}-{r}" for n, (r, _unused) in enumerate(RULE_CASES)])
def test_a_fault_is_found_by_its_rule_alone(rule: str, change: Callable[[Subject], Subject]) -> None:
    findings = found(change(SUBJECT))
    assert [finding.rule for finding in findings] == [rule]
    assert findings[0].severity == RULES[rule]
    assert findings[0].where == "spark1"
    assert findings[0].remedy.endswith(".")


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _unused in RULE_CASES} | BETWEEN | {"preflight.settings.unknown_rule"} == set(RULES)


def test_faults_of_a_host_come_together() -> None:
    subject = SUBJECT
    changes = [case for case in RULE_CASES if case[0] not in {"preflight.host.unread", "preflight.cgroup.unknown"}]
    picked = [changes[3], changes[6], changes[12]]
    for _unused, change in picked:
        subject = change(subject)
    assert {finding.rule for finding in found(subject)} == {rule for rule, _unused in picked}


def test_what_must_be_equal_is_compared_between_hosts() -> None:
    other = replace(with_pf(firmware="28.43.1014")(SUBJECT), name="spark2")
    other = with_facts(kernel="6.11.0-1016-nvidia", gpu_driver="570.1")(other)
    findings = found(SUBJECT, other)
    assert {finding.rule for finding in findings} == BETWEEN
    assert any("28.43.1014 on spark2 enp1s0f0np0" in str(finding.value) for finding in findings)


def test_a_server_without_gpu_is_judged_as_a_server_only() -> None:
    control = replace(with_facts(gpu_driver=None, swap_kib=9, pfs=[], cgroup_version=1)(SUBJECT), pfs=(), vfs={})
    assert [finding.rule for finding in found(control)] == ["preflight.cgroup.v1"]


def test_a_cable_in_the_other_cage_is_told() -> None:
    facts = copy.deepcopy(GOOD)
    facts["pfs"][0]["carrier"] = False
    facts["pfs"].append({**PF, "name": "enp1s0f1np1", "rdma_device": "rocep1s0f1"})
    (finding,) = found(replace(SUBJECT, facts=facts))
    assert finding.rule == "preflight.link.down"
    assert finding.remedy.startswith("enp1s0f1np1 has a link")


def test_memlock_binds_restricted_pods_only() -> None:
    limited = with_facts(runtime_memlock={"k3s-agent.service": 8388608})(SUBJECT)
    assert [f.severity for f in found(limited, settings=Settings(rdma_mode="restricted"))] == ["warning"]
    assert [f.severity for f in found(limited, settings=Settings(rdma_mode="privileged"))] == ["info"]


def test_the_api_port_matters_on_servers_only() -> None:
    busy = with_facts(listeners=[{"port": 6443, "process": "haproxy"}])(SUBJECT)
    assert found(replace(busy, server=False)) == []


def test_severities_can_be_set_by_rule() -> None:
    broken = with_facts(gpu_driver=None, swap_kib=9)(SUBJECT)
    settings = Settings(severities={"preflight.gpu.no_driver": "info", "preflight.memory.swap": "off"})
    findings = found(broken, settings=settings)
    assert [(finding.rule, finding.severity) for finding in findings] == [("preflight.gpu.no_driver", "info")]
    assert not has_errors(findings)


@pytest.mark.parametrize("severities", [{"preflight.gpu.nodriver": "off"}, {"preflight.gpu.no_driver": "mute"}])
def test_a_mistake_in_the_severities_hides_nothing(severities: dict[str, str]) -> None:
    rules = [
        finding.rule
        for finding in found(with_facts(gpu_driver=None)(SUBJECT), settings=Settings(severities=severities))
    ]
    assert sorted(rules) == ["preflight.gpu.no_driver", "preflight.settings.unknown_rule"]


def test_the_report_has_a_line_for_every_host_and_port_and_joins_what_is_alike() -> None:
    first = with_facts(swap_kib=1024)(SUBJECT)
    lines = format_report(
        [first, replace(first, name="spark2")], found(first, replace(first, name="spark2"))
    ).splitlines()
    assert lines[0] == "spark1: Ubuntu 24.04.3 LTS, kernel 6.14.0-1013-nvidia; 1 warning"
    assert lines[1] == (
        "  enp1s0f0np0 (rocep1s0f0, mlx5_core): 200 Gb/s, PCIe 32 GT/s x4, 4 VFs, MTU 9000, firmware 28.45.4028"
    )
    assert lines[6] == "2 hosts: 0 errors, 2 warnings"
    assert lines[7].startswith("warning: spark1, spark2: swap = '1024 KiB'")
    assert len(lines) == 8


def test_the_report_of_an_unread_host_says_so() -> None:
    subject = replace(SUBJECT, facts=None)
    report = format_report([subject], found(subject))
    assert report.startswith("spark1: not read; 1 error\n1 hosts: 1 error, 0 warnings\n")
