# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge hosts with one fault each by all rules, and compare what is said about many hosts with a stored text."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import stored
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

BETWEEN = {"preflight.link.unequal", "preflight.link.below", *COMPARED, ARGUMENTS, FIRMWARE, MEMORY}


def found(*hosts: Host, severities: dict[str, str] | None = None) -> list[Finding]:
    return check_hosts(hosts, severities or {})


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


@pytest.mark.parametrize(("rule", "fault", "near"), RULE_CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(RULE_CASES)])
def test_a_fault_is_found_by_its_rule_alone_also_beside_what_has_none(rule: str, fault: Change, near: Change) -> None:
    host, usual = fault(HOST), RULES.all[rule].severity
    (finding,) = found(host)
    assert (finding.rule, finding.severity, finding.where) == (rule, usual, "spark1")
    assert finding.remedy.endswith(".")
    assert "{" not in str(finding)
    assert rule not in {one.rule for one in found(near(HOST)) if one.severity == usual}
    alone = rule in ("preflight.host.unread", "preflight.memory.swap") or host.known["runtime_memlock"] is None
    assert alone or [one.rule for one in found(with_harmless(host))] == [rule]


def test_every_rule_has_a_case() -> None:
    cases = {case[0] for case in RULE_CASES}
    # Hosts that could not be read are in test_preflight_contact.py, the controller beside the action.
    others = ("preflight.login.", "preflight.host.", "preflight.controller.")
    unread = {name for name in RULES.all if name.startswith(others)}
    assert cases | BETWEEN | unread | {"preflight.settings.unknown_rule"} == {
        name for name in RULES.all if name.startswith("preflight.")
    }
    assert cases - {"preflight.host.unread"} == {*SHAPE, *PRIVILEGES, *NODE_RULES, *GPU_NODE_RULES, *PORT_RULES}


def ports(*rates: float | None, names: Sequence[str] = ("rail0", "rail1"), **more: Any) -> Change:
    """Return a host whose planned ports have these rates."""
    pfs = [{**pf, "rate_gbps": rate, **more} for pf, rate in zip(GOOD["pfs"], rates, strict=True)]
    rails = dict(zip((pf["name"] for pf in GOOD["pfs"]), names, strict=False))
    return both(with_facts(pfs=pfs), host_with(rails=rails))


def unplanned(*names: str, carrier: bool = True) -> Change:
    """Return a host whose first port has no link, with further ports that are not planned."""
    more = [{**PF, "name": name, "firmware": "1", "carrier": carrier} for name in names]
    return with_facts(pfs=[{**GOOD["pfs"][0], "carrier": not names}, GOOD["pfs"][1], *more])


def directories(**state: Any) -> Change:
    return with_facts(written={name: {"read_only": False, "free_mib": 900, **state} for name in ("/etc", "/usr")})


AREAS = [{"name": f"/dev/sd{letter}", "kind": "file", "kib": 2**20} for letter in "ab"]
FEWER = {
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
CLOCKS = [{**GOOD["gpus"][0], "max_clock_mhz": clock} for clock in (3003.0, None, 2418.0)]
ORDINARY = with_facts(user={"uid": 1000, "name": "nvidia", "sudo_from": None}, cgroup_version=1)
CONTROL = host_with(name="control", pfs=(), vfs={})
LIMITED = with_facts(runtime_memlock={"k3s-agent.service": 8388608})
KIND = GOOD["kubernetes"]
ADDRESSES = [ADDRESS | {"address": f"10.0.0.{number}/24", "dynamic": number > 1} for number in (1, 2, 3)]
# {case: a change for each of the hosts}
HOSTS: dict[str, tuple[Change, ...]] = {
    "a good host": (with_facts(),),
    "two areas of swap": (with_facts(swap=AREAS),),
    "the swap that DGX OS ships": (swap("/swap.img", 16),),
    "two ports in use": (with_facts(listeners=[{"port": port, "process": "x"} for port in (6443, 10250)]),),
    "two distributions": (with_facts(kubernetes=KIND | {"others": ["RKE2", "MicroK8s"]}),),
    "read-only directories": (directories(read_only=True),),
    "silent directories": (directories(read_only=None),),
    "full directories": (directories(free_mib=6),),
    "a slow GPU": (gpu(slowdown=0x8),),
    "a slow GPU, clock unknown": (gpu(slowdown=0x8, clock_mhz=None),),
    "a slow GPU, largest clock unknown": (gpu(slowdown=0x8, max_clock_mhz=None),),
    "a slow GPU for four reasons": (gpu(slowdown=0xCC),),
    "a slow GPU without a reason": (gpu(utilization=96.0, clock_mhz=850.0),),
    "a low power limit": (gpu(power_limit_w=30.0),),
    "two leases": (with_pf(addresses=ADDRESSES),),
    "a disk that does not answer": (disk(None),),
    "two limits of memlock": (with_facts(runtime_memlock={"a.service": 1, "b.service": 2}),),
    "memlock, privileged pods": (both(LIMITED, host_with(settings=Settings(rdma_mode="privileged"))),),
    "no such management interface": (host_with(management_interface="eth7"),),
    "Wi-Fi": (with_facts(default_routes=["wlP9s9"]),),
    "an unknown system": (with_facts(os={"id": "arch", "version": "", "name": ""}),),
    "a clock that is behind": (with_facts(clock_offset_s=-61.0),),
    "no sudo": (with_facts(user={"uid": 5, "name": "a", "sudo_from": None}),),
    "sudo to another user": (with_facts(user={"uid": 5, "name": "a", "sudo_from": "nvidia"}),),
    # Four lanes of 32 GT/s with 128 of 130 bits.
    "a slot below the wanted rate": (host_with(settings=Settings(min_pcie_gbps=126.5)),),
    "a slot with the wanted rate": (host_with(settings=Settings(min_pcie_gbps=125.5)),),
    "three faults": (both(with_pf(rdma_device=None), swap("/dev/nvme0n1p3", 8), disk(None)),),
    "a server without GPU": (
        both(swap("/dev/sda2", 9), with_facts(gpu_driver=None, pfs=[], cgroup_version=1, disks=[]), CONTROL),
    ),
    "a cable in the other cage": (unplanned("enp1s0f1np1"),),
    "cables in the other cages": (unplanned("enp1s0f1np1", "enP2p1s0f1np1"),),
    "no cable": (unplanned("enp1s0f1np1", "enP2p1s0f1np1", carrier=False),),
    "without privileges, beside another host": (with_facts(cgroup_version=1), both(ORDINARY, host_with(name="spark2"))),
    "a host that differs in everything": (
        with_facts(command_line="root=UUID=1 quiet"),
        both(with_pf(firmware="28.43.1014"), with_facts(**FEWER)),
    ),
    "a host that tells nothing": (
        with_facts(),
        with_facts(**dict.fromkeys(FEWER) | {"packages": {}}),
    ),
    "nine tenths of the memory": (with_facts(), with_facts(memory_kib=112_500_000)),
    "less than that": (with_facts(), with_facts(memory_kib=112_499_000)),
    "other areas and GPUs": (with_facts(), with_facts(swap=AREAS, gpus=CLOCKS)),
    "a host without ports": (with_facts(), both(with_facts(kernel="6.11.0", bios="1"), CONTROL)),
    "a port that is not planned": (with_facts(), with_facts(pfs=[*GOOD["pfs"], {**PF, "name": "x", "firmware": "1"}])),
    "hosts that were not read": (with_facts(), host_with(facts=None), host_with(facts=None)),
    "one machine": (with_facts(boot_id="4f1c"), with_facts(boot_id="4f1c")),
    # Containers on one machine have its boot id; machines behind NAT may have equal addresses.
    "containers": (with_facts(boot_id="4f1c"), with_facts(boot_id="4f1c", addresses={"eth0": ["192.168.10.12"]})),
    "machines behind NAT": (with_facts(boot_id="4f1c"), with_facts(boot_id="77aa")),
    "rates: as wanted": (ports(200.0, 200.0), ports(200.0, 200.0)),
    "rates: half of it": (ports(100.0, 100.0), ports(100.0, 100.0)),
    "rates: one rail": (ports(100.0, 200.0), ports(100.0, 200.0)),
    "rates: unequal": (ports(200.0, 200.0), ports(100.0, 200.0)),
    # The ports that came up degraded or tell no rate have findings of their own.
    "rates: degraded and unknown": (ports(13.0, None), ports(200.0, 200.0)),
    "rates: all degraded": (ports(13.0, 13.0), ports(13.0, 13.0)),
    "rates: the least": (ports(25.0, 200.0), ports(25.0, 200.0)),
    "rates: a rail without a name": (ports(100.0, 200.0, names=()),),
    "rates: as the owner wants": (both(ports(25.0, 25.0), host_with(settings=Settings(min_rate_gbps=25))),),
}
DRIVER, SWAP = "preflight.gpu.no_driver", "preflight.memory.swap"
# {case: severities that the owner set}
SEVERITIES = {
    "set": {DRIVER: "info", SWAP: "off"},
    "an unknown rule": {"preflight.gpu.nodriver": "off", SWAP: "off"},
    "an unknown severity": {DRIVER: "mute", SWAP: "off"},
    "a rule and an unknown one": {DRIVER: "error", "preflight.gpu.nodriver": "off", SWAP: "off"},
    "of clusters of others": severities_for("existing", {SWAP: "off"}),
}


def test_what_is_said_about_hosts_is_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored.say_words(monkeypatch, RULES)
    told = {}
    for name, changes in HOSTS.items():
        hosts = [change(replace(HOST, name=f"spark{number}")) for number, change in enumerate(changes, start=1)]
        told[name] = stored.said(found(*hosts))
    broken = both(with_facts(gpu_driver=None, cgroup_version=1), swap("/dev/sda2", 9), ufw())(HOST)
    for name, severities in SEVERITIES.items():
        told[f"severities: {name}"] = stored.said(found(broken, severities=severities))
    stored.compare("preflight_found", told)


def test_rules_for_every_cluster_assume_no_k3s() -> None:
    kept = {name: rule for name, rule in RULES.all.items() if name not in severities_for("existing", {})}
    said = {name for name, rule in kept.items() if "k3s" in f"{rule.key} {rule.reason} {rule.remedy}".lower()}
    # This remedy says that it is about K3s.
    assert said == {"preflight.runtime.memlock"}
    quiet = found(with_facts(gpu_driver=None)(HOST), severities={DRIVER: "info"})
    assert not has_errors(quiet)


ONE_DISK, TWO_DISKS = (1, 1), (1, 2)
HELD = [f"docker.io/lmsysorg/sglang@sha256:{'a' * 64}", "docker.io/rancher/mirrored-pause:3.6"]
OWN = replace(NEEDS, images={"own/x:1": 9.0})
# {case: the devices of /var/lib and /srv/models, what the group needs, what is there}
DISKS: dict[str, tuple[tuple[int | None, ...], Needs | None, dict[str, Any]]] = {
    "one disk": (ONE_DISK, NEEDS, {}),
    "two disks": (TWO_DISKS, NEEDS, {}),
    "unknown disks": ((None, None), NEEDS, {}),
    "a part of the weights": (TWO_DISKS, NEEDS, {"staged": {MODEL: 58.6}}),
    # Published sizes are rounded. Another model and another image do not count.
    "the weights": (TWO_DISKS, NEEDS, {"staged": {MODEL: 115.1}}),
    "the weights under two names": (
        TWO_DISKS,
        replace(NEEDS, models={("other", MODEL): 118.6}),
        {"staged": {MODEL: 58.6}},
    ),
    "another model and image": (ONE_DISK, NEEDS, {"staged": {"other": 500.0}, "images": HELD[1:]}),
    "the image": (TWO_DISKS, NEEDS, {"images": HELD}),
    "image and weights": (ONE_DISK, NEEDS, {"images": HELD, "staged": {MODEL: 118.6}}),
    "another node": (ONE_DISK, replace(NEEDS, nodes=("spark2",)), {}),
    # Without a directory for the models, each pod downloads them beside the images.
    "downloads": (TWO_DISKS, replace(NEEDS, models_dir=""), {}),
    "an image of the owner": (TWO_DISKS, OWN, {"images": ["docker.io/own/x:1"]}),
    "no profile": (ONE_DISK, None, {}),
}


def test_a_disk_needs_what_comes_onto_it_and_what_must_stay_free() -> None:
    def space(host: Host) -> list[str]:
        rule = "preflight.storage.space"
        return [f"{one.key} = {one.value}: {one.reason}" for one in found(host) if one.rule == rule]

    told = {}
    for name, (devices, needs, facts) in DISKS.items():
        for free in (1.0, 188.1):
            disks = [
                {"path": path, "device": device, "total_gib": 3700.0, "free_gib": free}
                for path, device in zip(("/var/lib", "/srv/models"), devices, strict=True)
            ]
            host = replace(with_facts(disks=disks, swap=None, **facts)(HOST), needs=needs)
            told[f"{name}, {free} GiB free"] = space(host)
    told["set by the owner"] = space(replace(HOST, needs=NEEDS, settings=Settings(min_free_gib=901)))
    small = with_facts(disks=[{**GOOD["disks"][0], "total_gib": 400.0, "free_gib": 1.0}])
    told["a small disk keeps a part of its size"] = space(replace(small(HOST), needs=NEEDS))
    stored.compare("preflight_disks", told)


def test_the_report_has_a_line_for_every_host_and_port_and_joins_what_is_alike() -> None:
    first = swap("/dev/sda2", 2)(HOST)
    hosts = [first, replace(first, name="spark2"), both(ORDINARY, host_with(name="spark3"))(HOST)]
    lines = format_report(hosts, found(*hosts), 100).splitlines()
    alone = format_report([replace(HOST, pfs=HOST.pfs[:1])], [], 100).splitlines()
    stored.compare("preflight_report", {"three hosts": lines, "one planned port": alone})


def test_role_k3s_judges_a_node_by_the_same_rules() -> None:
    taken = both(listens(10250, "nginx"), with_facts(clock_offset_s=61.0, gpu_driver=None))(HOST)
    assert [finding.rule for finding in check_node(taken)] == ["preflight.time.skew", "preflight.port.in_use"]
