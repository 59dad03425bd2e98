# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.gpu_rules import GPU_NODE_RULES
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, Needs, Settings
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.node_rules import (
    NODE_RULES,
    PORT_RULES,
    PRIVILEGES,
    SHAPE,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import (
    ARGUMENTS,
    COMPARED,
    FIRMWARE,
    MEMORY,
    RULES,
    check_hosts,
    check_node,
    format_report,
    severities_for,
)
from preflight_cases import (
    ADDRESS,
    HOST,
    MODEL,
    NEEDS,
    RULE_CASES,
    Change,
    both,
    disk,
    gpu,
    host_with,
    listens,
    swap,
    ufw,
    with_facts,
    with_pf,
)
from preflight_samples import GOOD, PF

RATE_RULES = {"preflight.link.unequal", "preflight.link.below"}
VERSION_RULES = {*COMPARED, ARGUMENTS, FIRMWARE, MEMORY}
BETWEEN = RATE_RULES | VERSION_RULES


def found(*hosts: Host, severities: dict[str, str] | None = None) -> list[Finding]:
    return check_hosts(hosts, severities or {})


def test_a_good_host_has_no_finding() -> None:
    assert found(HOST) == []


@pytest.mark.parametrize(("rule", "fault", "near"), RULE_CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(RULE_CASES)])
def test_a_fault_is_found_by_its_rule_alone(rule: str, fault: Change, near: Change) -> None:
    findings = found(fault(HOST))
    assert [finding.rule for finding in findings] == [rule]
    usual = RULES.all[rule].severity
    assert findings[0].severity == usual
    assert findings[0].where == "spark1"
    assert findings[0].remedy.endswith(".")
    assert "{" not in str(findings[0])
    assert rule not in {finding.rule for finding in found(near(HOST)) if finding.severity == RULES.all[rule].severity}


def with_harmless(host: Host) -> Host:
    """Put something without a fault in front of each thing of the host, and what it does not use behind its ports."""
    facts = copy.deepcopy(cast(dict[str, Any], host.known))
    for name in ("gpus", "disks", "orphan_namespaces", "listeners"):
        facts[name] = facts[name] and [copy.deepcopy(GOOD[name][0]), *facts[name]]
    for space in facts["orphan_namespaces"]:
        space["links"].insert(0, GOOD["orphan_namespaces"][0]["links"][0])
    for file in facts["netplan"]["files"]:
        file["interfaces"].insert(0, "eth9")
    facts["netplan"]["files"].insert(0, {"path": "/etc/netplan/50-site.yaml", "interfaces": ["eth9"]})
    facts["written"] = {"/usr": {"read_only": False, "free_mib": 900}, **facts["written"]}
    facts["runtime_memlock"] = {"docker.service": None, **facts["runtime_memlock"]}
    facts["addresses"] = facts["addresses"] and {"eth9": ["192.168.200.1"], **facts["addresses"]}
    facts["pfs"] = [*reversed(facts["pfs"]), {**PF, "name": "other", "rate_gbps": 100.0, "firmware": "1", "mtu": 1500}]
    return replace(host, facts=cast(Facts, facts), vfs={"other": "02:95:2a:00:09:00", **host.vfs})


ALONE = {"preflight.host.unread", "preflight.memory.swap"}


@pytest.mark.parametrize(("rule", "fault"), [case[:2] for case in RULE_CASES if case[0] not in ALONE])
def test_a_fault_is_found_beside_what_has_none(rule: str, fault: Change) -> None:
    host = fault(HOST)
    if host.known["runtime_memlock"] is not None:
        assert [finding.rule for finding in found(with_harmless(host))] == [rule]


@pytest.mark.parametrize(
    ("change", "rule", "values"),
    [
        (
            with_facts(swap=[{"name": f"/dev/sd{x}", "kind": "file", "kib": 2**20} for x in "ab"]),
            "preflight.memory.swap",
            ["/dev/sda, 1.0 GiB", "/dev/sdb, 1.0 GiB"],
        ),
        (
            with_facts(listeners=[{"port": port, "process": "x"} for port in (6443, 10250)]),
            "preflight.port.in_use",
            [10250, 6443],
        ),
        (
            with_facts(kubernetes=GOOD["kubernetes"] | {"others": ["RKE2", "MicroK8s"]}),
            "preflight.kubernetes.other_distribution",
            ["MicroK8s", "RKE2"],
        ),
        (
            with_facts(written={name: {"read_only": True, "free_mib": 900} for name in ("/etc", "/usr")}),
            "preflight.storage.read_only",
            ["/etc", "/usr"],
        ),
        (
            with_facts(written={name: {"read_only": None, "free_mib": 900} for name in ("/etc", "/usr")}),
            "preflight.storage.no_answer",
            ["/etc", "/usr"],
        ),
        (
            with_facts(written={name: {"read_only": False, "free_mib": 6} for name in ("/etc", "/usr")}),
            "preflight.storage.full",
            ["6 MiB free"] * 2,
        ),
        (gpu(slowdown=0x8, clock_mhz=None), "preflight.gpu.slow_clock", ["unknown"]),
        (gpu(slowdown=0x8, max_clock_mhz=None), "preflight.gpu.slow_clock", ["unknown"]),
        (gpu(slowdown=0x8), "preflight.gpu.slow_clock", ["208 of 3003 MHz"]),
        (gpu(power_limit_w=30.0), "preflight.gpu.power_limit", ["30 W"]),
        (
            with_pf(addresses=[ADDRESS | {"address": f"10.0.0.{x}/24", "dynamic": x > 1} for x in (1, 2, 3)]),
            "preflight.netplan.dhcp_lease",
            ["10.0.0.2/24, 10.0.0.3/24"],
        ),
        (disk(None), "preflight.storage.space", ["no answer"]),
        (
            with_facts(runtime_memlock={"a.service": 1, "b.service": 2}),
            "preflight.runtime.memlock",
            [1, 2],
        ),
        (with_facts(default_routes=["wlP9s9"]), "preflight.network.wifi", ["wlP9s9"]),
        (with_facts(os={"id": "arch", "version": "", "name": ""}), "preflight.os.unsupported", [None]),
        (with_facts(clock_offset_s=-61.0), "preflight.time.skew", ["-61 s"]),
    ],
)
def test_each_fault_has_its_value(change: Change, rule: str, values: list[Any]) -> None:
    findings = found(change(HOST))
    assert [(one.rule, one.value) for one in findings] == [(rule, value) for value in values]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (gpu(slowdown=0xCC), ("power cap", "hardware slowdown", "heat", "power brake")),
        (gpu(utilization=96.0, clock_mhz=850.0), ("at 96 % load",)),
        (host_with(management_interface="eth7"), ("enP7s7",)),
    ],
    ids=["slow for four reasons", "slow without a reason", "no such interface"],
)
def test_what_was_found_is_named(change: Change, words: tuple[str, ...]) -> None:
    (finding,) = found(change(HOST))
    assert all(word in f"{finding.reason} {finding.remedy}" for word in words)


def test_who_used_no_sudo_is_told_otherwise_than_who_became_another_user() -> None:
    found_by = [
        found(with_facts(user={"uid": 5, "name": "a", "sudo_from": sudo})(HOST))[0] for sudo in (None, "nvidia")
    ]
    assert ["no sudo was used" in f"{one.reason} {one.remedy}" for one in found_by] == [True, False]
    assert ["from nvidia" in f"{one.reason} {one.remedy}" for one in found_by] == [False, True]


@pytest.mark.parametrize(("wanted", "slow"), [(126.5, True), (125.5, False)])
def test_the_rate_of_a_slot_is_less_the_encoding_of_pcie(wanted: float, slow: bool) -> None:
    """Four lanes of 32 GT/s with 128 of 130 bits."""
    rules = {one.rule for one in found(replace(HOST, settings=Settings(min_pcie_gbps=wanted)))}
    assert rules == ({"preflight.pcie.slow"} if slow else set())


@pytest.mark.parametrize(("kib", "differs"), [(112_500_000, False), (112_499_000, True)])
def test_nine_tenths_of_the_memory_are_enough(kib: int, differs: bool) -> None:
    rules = [one.rule for one in found(HOST, with_facts(memory_kib=kib)(replace(HOST, name="spark2")))]
    assert rules == ([MEMORY] if differs else [])


def test_hosts_without_ports_and_ports_that_are_not_planned_are_not_compared() -> None:
    other = with_facts(kernel="6.11.0", bios="1")(HOST)
    control = replace(other, name="control", pfs=(), vfs={})
    assert found(HOST, control) == []
    facts = copy.deepcopy(GOOD)
    facts["pfs"].append({**PF, "name": "other", "firmware": "1"})
    assert found(HOST, replace(HOST, name="spark2", facts=cast(Facts, facts))) == []
    unread = replace(HOST, facts=None)
    rules = [one.rule for one in found(HOST, unread, replace(unread, name="spark3"))]
    assert rules == ["preflight.host.unread"] * 2


def test_all_areas_of_swap_and_all_gpus_count_in_a_comparison() -> None:
    areas = [{"name": f"/dev/sd{x}", "kind": "file", "kib": 2**20} for x in "ab"]
    gpus = [{**GOOD["gpus"][0], "max_clock_mhz": clock} for clock in (3003.0, None, 2418.0)]
    second = with_facts(swap=areas, gpus=gpus)(replace(HOST, name="spark2"))
    values = {one.rule: one.value for one in found(HOST, second)}
    assert values["preflight.memory.swap_differs"] == "0 GiB on spark1; 2 GiB on spark2"
    assert values["preflight.gpu.clock_differs"] == "2418 MHz, 3003 MHz on spark2; 3003 MHz on spark1"


def test_a_rail_without_a_name_has_that_of_its_port() -> None:
    facts = [{**pf, "rate_gbps": 100.0, "carrier": number == 0} for number, pf in enumerate(GOOD["pfs"])]
    findings = found(with_facts(pfs=facts)(HOST))
    assert [(one.rule, one.key) for one in findings if one.rule in RATE_RULES] == [("preflight.link.below", PF["name"])]


def test_every_rule_has_a_case() -> None:
    cases = {case[0] for case in RULE_CASES}
    # Hosts that could not be read are in test_preflight_contact.py, the controller beside the action.
    others = ("preflight.login.", "preflight.host.", "preflight.controller.")
    unread = {name for name in RULES.all if name.startswith(others)}
    assert cases | BETWEEN | unread | {"preflight.settings.unknown_rule"} == {
        name for name in RULES.all if name.startswith("preflight.")
    }
    assert cases - {"preflight.host.unread"} == {*SHAPE, *PRIVILEGES, *NODE_RULES, *GPU_NODE_RULES, *PORT_RULES}


def test_faults_of_a_host_come_together() -> None:
    names = {"preflight.driver.no_rdma", "preflight.memory.swap", "preflight.storage.space"}
    changes = [fault for rule, fault, _near in RULE_CASES if rule in names]
    assert {finding.rule for finding in found(both(*changes)(HOST))} == names


def test_without_privileges_nothing_else_is_judged_and_it_comes_first() -> None:
    user = {"uid": 1000, "name": "nvidia", "sudo_from": None}
    ordinary = replace(with_facts(user=user, cgroup_version=1)(HOST), name="spark2")
    findings = found(with_facts(cgroup_version=1)(HOST), ordinary)
    assert [(finding.rule, finding.where) for finding in findings] == [
        ("preflight.user.not_root", "spark2"),
        ("preflight.cgroup.v1", "spark1"),
    ]
    lines = format_report([ordinary], findings, 100).splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert errors[0] == 4
    assert "ansible_become" in " ".join(lines[errors[0] : errors[1]])


def test_the_file_that_dgx_os_ships_is_only_information() -> None:
    (finding,) = found(swap("/swap.img", 16)(HOST))
    assert (finding.rule, finding.severity, finding.value) == ("preflight.memory.swap", "info", "/swap.img, 16.0 GiB")


ONE_DISK, TWO_DISKS = (1, 1), (1, 2)
HELD = [f"docker.io/lmsysorg/sglang@sha256:{'a' * 64}", "docker.io/rancher/mirrored-pause:3.6"]


@pytest.mark.parametrize(
    ("devices", "needs", "facts", "wanted"),
    [
        (ONE_DISK, NEEDS, {}, {"/var/lib, /srv/models": "188 GiB are needed here: 119 for the weights and 21 for the"}),
        (TWO_DISKS, NEEDS, {}, {"/var/lib": "69 GiB", "/srv/models": "167 GiB"}),
        ((None, None), NEEDS, {}, {"/var/lib": "69 GiB", "/srv/models": "167 GiB"}),
        (TWO_DISKS, NEEDS, {"staged": {MODEL: 58.6}}, {"/var/lib": "69 GiB", "/srv/models": "108 GiB"}),
        # Published sizes are rounded. Another model and another image do not count.
        (TWO_DISKS, NEEDS, {"staged": {MODEL: 115.1}}, {"/var/lib": "69 GiB", "/srv/models": "16 GiB"}),
        (ONE_DISK, NEEDS, {"staged": {"other": 500.0}, "images": HELD[1:]}, {"/var/lib, /srv/models": "188 GiB"}),
        (TWO_DISKS, NEEDS, {"images": HELD}, {"/var/lib": "16 GiB", "/srv/models": "167 GiB"}),
        (ONE_DISK, NEEDS, {"images": HELD, "staged": {MODEL: 118.6}}, {"/var/lib, /srv/models": "16 GiB"}),
        (ONE_DISK, replace(NEEDS, nodes=("spark2",)), {}, {"/var/lib, /srv/models": "16 GiB"}),
        # Without a directory for the models, each pod downloads them beside the images.
        (TWO_DISKS, replace(NEEDS, models_dir=""), {}, {"/var/lib": "188 GiB", "/srv/models": "16 GiB"}),
        (TWO_DISKS, replace(NEEDS, images={"own/x:1": 9.0}), {"images": ["docker.io/own/x:1"]}, {"/var/lib": "16 GiB"}),
        (ONE_DISK, None, {}, {"/var/lib, /srv/models": "100 GiB"}),
    ],
)
def test_a_disk_needs_what_comes_onto_it_and_what_must_stay_free(
    devices: tuple[int | None, ...], needs: Needs | None, facts: dict[str, Any], wanted: dict[str, str]
) -> None:
    def at(free: float) -> dict[str, str]:
        disks = [
            {"path": path, "device": device, "total_gib": 3700.0, "free_gib": free}
            for path, device in zip(("/var/lib", "/srv/models"), devices, strict=True)
        ]
        host = replace(with_facts(disks=disks, swap=None, **facts)(HOST), needs=needs)
        return {one.key: one.reason for one in found(host) if one.rule == "preflight.storage.space"}

    full = at(1.0)
    assert {path: text for path, text in wanted.items() if not full[path].startswith(text)} == {}
    assert at(188.1) == {}
    set_by_owner = replace(with_facts(swap=[])(HOST), needs=needs, settings=Settings(min_free_gib=901))
    assert "901 by preflight_min_free_gib" in next(one.reason for one in found(set_by_owner) if one.key == "/var/lib")


def test_a_small_disk_keeps_a_part_of_its_size() -> None:
    host = replace(with_facts(disks=[{**GOOD["disks"][0], "total_gib": 400.0, "free_gib": 1.0}])(HOST), needs=NEEDS)
    (reason,) = [one.reason for one in found(host) if one.rule == "preflight.storage.space"]
    assert reason == "45 GiB are needed here: 21 for the image and 24 that must stay free"


def test_rules_for_every_cluster_assume_no_k3s() -> None:
    kept = {name: rule for name, rule in RULES.all.items() if name not in severities_for("existing", {})}
    said = {name for name, rule in kept.items() if "k3s" in f"{rule.key} {rule.reason} {rule.remedy}".lower()}
    # This remedy says that it is about K3s.
    assert said == {"preflight.runtime.memlock"}
    closed = both(ufw(), with_facts(cgroup_version=1))(HOST)
    findings = found(closed, severities=severities_for("existing", {}))
    assert [(f.rule, "8472" in f.reason) for f in findings] == [("preflight.firewall.fabric", False)]


def test_what_must_be_equal_is_compared_between_hosts() -> None:
    others: dict[str, Any] = {
        "kernel": "6.11.0-1016-nvidia",
        "command_line": "root=UUID=2 quiet kho=off",
        "memory_kib": 66_000_000,
        "dgx_os": "7.2.3",
        "bios": "5.35",
        "gpu_driver": "570.1",
        "gpu_module": "proprietary",
        "swap": [{"name": "/swap.img", "kind": "file", "kib": 2**24}],
        "gpus": [{**GOOD["gpus"][0], "max_clock_mhz": 2418.0, "power_limit_w": 150.0}],
        "packages": {"nvidia-container-toolkit": "1.17.8-1"},
    }
    other = with_facts(**others)(replace(with_pf(firmware="28.43.1014")(HOST), name="spark2"))
    findings = [one for one in found(with_facts(command_line="root=UUID=1 quiet")(HOST), other) if not one.where]
    assert {finding.rule for finding in findings} == VERSION_RULES
    values = {one.rule: one.value for one in findings}
    assert values[ARGUMENTS] == "kho=off on spark2; none of these on spark1"
    assert values[MEMORY] == "63 GiB on spark2; 119 GiB on spark1"
    assert found(HOST, with_facts(memory_kib=115_000_000)(replace(HOST, name="spark2"))) == []
    assert values["preflight.memory.swap_differs"] == "0 GiB on spark1; 16 GiB on spark2"
    # What a host does not tell is not compared.
    silent = with_facts(**dict.fromkeys(others) | {"packages": {}})(replace(HOST, name="spark2"))
    assert not VERSION_RULES & {one.rule for one in found(HOST, silent)}
    assert any("28.43.1014 on spark2 enp1s0f0np0" in str(finding.value) for finding in findings)


RATES = [
    ((200.0, 200.0), (200.0, 200.0), []),
    ((100.0, 100.0), (100.0, 100.0), [("below", "rail0"), ("below", "rail1")]),
    ((100.0, 200.0), (100.0, 200.0), [("below", "rail0")]),
    ((200.0, 200.0), (100.0, 200.0), [("unequal", "rail0")]),
    # The ports that came up degraded or tell no rate have findings of their own.
    ((13.0, None), (200.0, 200.0), [("slow", "enp1s0f0np0"), ("no_rate", "enP2p1s0f0np0")]),
    ((13.0, 13.0), (13.0, 13.0), [("slow", name) for _host in "12" for name in ("enp1s0f0np0", "enP2p1s0f0np0")]),
    ((25.0, 200.0), (25.0, 200.0), [("below", "rail0")]),
]


@pytest.mark.parametrize(("first", "second", "expected"), RATES)
def test_rates_of_a_rail(
    first: Sequence[float | None], second: Sequence[float | None], expected: list[tuple[str, str]]
) -> None:
    rails = {"enp1s0f0np0": "rail0", "enP2p1s0f0np0": "rail1"}
    hosts = []
    for number, rates in enumerate((first, second), start=1):
        pfs = [{**pf, "rate_gbps": rate} for pf, rate in zip(GOOD["pfs"], rates, strict=True)]
        hosts.append(replace(with_facts(pfs=pfs)(HOST), name=f"spark{number}", rails=rails))
    findings = found(*hosts)
    assert sorted((one.rule.rpartition(".")[2], one.key) for one in findings) == sorted(expected)
    assert all(one.severity == ("info" if one.rule.endswith("below") else "warning") for one in findings)
    # Who meant it says so.
    asked = [replace(host, settings=Settings(min_rate_gbps=25)) for host in hosts]
    assert not [one for one in found(*asked) if one.rule.endswith("below")]


def test_two_names_of_one_machine_are_refused() -> None:
    one = with_facts(boot_id="4f1c")(HOST)
    (finding,) = found(one, replace(one, name="spark2"))
    assert (finding.rule, finding.where, finding.severity) == ("preflight.host.twins", "spark1, spark2", "error")
    # Containers on one machine have its boot id; machines behind NAT may have equal addresses.
    assert found(one, with_facts(addresses={"eth0": ["192.168.10.12"]})(replace(one, name="spark2"))) == []
    assert found(one, with_facts(boot_id="77aa")(replace(one, name="spark2"))) == []


def test_a_server_without_gpu_is_judged_as_a_server_only() -> None:
    changes = both(swap("/dev/sda2", 9), with_facts(gpu_driver=None, pfs=[], cgroup_version=1, disks=[]))
    control = replace(changes(HOST), pfs=(), vfs={})
    assert [finding.rule for finding in found(control)] == ["preflight.cgroup.v1"]


def test_a_cable_in_the_other_cage_is_told() -> None:
    facts = copy.deepcopy(GOOD)
    facts["pfs"][0]["carrier"] = False
    facts["pfs"].append({**PF, "name": "enp1s0f1np1", "rdma_device": "rocep1s0f1"})
    (finding,) = found(replace(HOST, facts=cast(Facts, facts)))
    assert finding.rule == "preflight.link.down"
    assert finding.remedy.startswith("enp1s0f1np1 has a link")
    facts["pfs"].append({**PF, "name": "enP2p1s0f1np1", "rdma_device": "roceP2p1s0f1"})
    (finding,) = found(replace(HOST, facts=cast(Facts, facts)))
    assert finding.remedy.startswith("enp1s0f1np1 and enP2p1s0f1np1 has a link")
    for port in facts["pfs"][2:]:
        port["carrier"] = False
    (finding,) = found(replace(HOST, facts=cast(Facts, facts)))
    assert finding.remedy.startswith("Check cable")


def test_memlock_binds_restricted_pods_only() -> None:
    limited = with_facts(runtime_memlock={"k3s-agent.service": 8388608})(HOST)
    assert [f.severity for f in found(limited)] == ["warning"]
    assert [f.severity for f in found(replace(limited, settings=Settings(rdma_mode="privileged")))] == ["info"]


def test_severities_can_be_set_by_rule() -> None:
    broken = both(with_facts(gpu_driver=None), swap("/dev/sda2", 9))(HOST)
    findings = found(broken, severities={"preflight.gpu.no_driver": "info", "preflight.memory.swap": "off"})
    assert [(finding.rule, finding.severity) for finding in findings] == [("preflight.gpu.no_driver", "info")]
    assert not has_errors(findings)


@pytest.mark.parametrize(
    "severities",
    [
        {"preflight.gpu.nodriver": "off"},
        {"preflight.gpu.no_driver": "mute"},
        {"preflight.gpu.no_driver": "error", "preflight.gpu.nodriver": "off"},
    ],
)
def test_a_mistake_in_the_severities_hides_nothing(severities: dict[str, str]) -> None:
    rules = [finding.rule for finding in found(with_facts(gpu_driver=None)(HOST), severities=severities)]
    assert sorted(rules) == ["preflight.gpu.no_driver", "preflight.settings.unknown_rule"]


def test_the_report_has_a_line_for_every_host_and_port_and_joins_what_is_alike() -> None:
    first = swap("/dev/sda2", 2)(HOST)
    hosts = [first, replace(first, name="spark2")]
    lines = format_report(hosts, found(*hosts), 100).splitlines()
    assert lines[0] == "spark1: Ubuntu 24.04.3 LTS, kernel 6.14.0-1013-nvidia; 1 warning"
    assert lines[1] == (
        "  enp1s0f0np0 (rocep1s0f0, mlx5_core): 200 Gb/s, PCIe 32 GT/s x4, 4 VFs, MTU 9000, firmware 28.45.4028"
    )
    assert lines[6] == "2 hosts: 0 errors, 2 warnings"
    assert lines[7].startswith("warning: spark1, spark2: swap = '/dev/sda2, 2.0 GiB'")
    assert [line[:4] for line in lines[8:]] == ["    "] * len(lines[8:])


def test_role_k3s_judges_a_node_by_the_same_rules() -> None:
    taken = both(listens(10250, "nginx"), with_facts(clock_offset_s=61.0, gpu_driver=None))(HOST)
    assert [finding.rule for finding in check_node(taken)] == ["preflight.time.skew", "preflight.port.in_use"]
