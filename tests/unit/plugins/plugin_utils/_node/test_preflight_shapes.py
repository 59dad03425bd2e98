# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge odd hosts: everything that a host may leave out or send in another form, in every combination of two."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, Settings, shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import check_hosts, format_report
from preflight_samples import GOOD, PF

Damage = Callable[[dict[str, Any]], None]
PFS = ("enp1s0f0np0", "enP2p1s0f0np0")
RAILS = {PFS[0]: "rail0", PFS[1]: "rail1"}


def sets(**facts: Any) -> Damage:
    return lambda raw: raw.update(copy.deepcopy(facts))


def drops(*names: str) -> Damage:
    return lambda raw: [raw.pop(name, None) for name in names] and None


def no_systemd(raw: dict[str, Any]) -> None:
    raw.update(network_services=None, runtime_memlock=None, time_synchronized=None)


def no_sysfs(raw: dict[str, Any]) -> None:
    raw.update(pfs=[], wifi=[], cgroup_version=None)
    raw["rdma"] = {"devices": [], "device_nodes": 0, "shared_mode": None}


def within(*path: Any, value: Any) -> Damage:
    """Return a damage that replaces a part of the facts, if an earlier damage left it there."""

    def damage(raw: dict[str, Any]) -> None:
        place: Any = raw
        for step in path[:-1]:
            try:
                place = place[step]
            except (KeyError, IndexError, TypeError):
                return
        if isinstance(place, (dict, list)) and place:
            place[path[-1]] = value

    return damage


# What a host may lack or send
ODD: dict[str, Damage] = {
    "no systemd": no_systemd,
    "systemd knows one unit": within("network_services", value={"NetworkManager.service": {"ActiveState": "active"}}),
    "no services": sets(network_services={}),
    "no driver": sets(gpu_driver=None, gpus=None, gpu_runtime=None),
    "no GPU": sets(gpus=[]),
    "no sysfs": no_sysfs,
    "no time": sets(time_synchronized=None, clock_offset_s=None),
    "one half": drops(*sorted(GOOD)[::2]),
    "the other half": drops(*sorted(GOOD)[1::2]),
    "first half": drops(*sorted(GOOD)[: len(GOOD) // 2]),
    "second half": drops(*sorted(GOOD)[len(GOOD) // 2 :]),
    "everything is text": lambda raw: raw.update(dict.fromkeys(raw, "x")),
    "everything is a list": lambda raw: raw.update({name: [1] for name in raw}),
    "everything is empty": lambda raw: raw.update(dict.fromkeys(raw)),
    "a port without details": sets(pfs=[{"name": PFS[0]}]),
    "ports in words": sets(pfs=["enp1s0f0np0", {}]),
    "a rate in words": within("pfs", 0, "rate_gbps", value="fast"),
    "a GPU in words": sets(gpus=["NVIDIA GB10"]),
    "no disk answers": sets(disks=[{"path": "/srv", "device": None, "total_gib": None, "free_gib": None}]),
    "a release without an end": sets(kernel="7" * 100_000),
    "an endless sum": within("gpus", 0, "clock_mhz", value=10**400),
    "an infinite slowdown": sets(gpus=[{**GOOD["gpus"][0], "slowdown": float("inf"), "max_clock_mhz": float("nan")}]),
    "a cluster with half of its settings": sets(
        kubernetes={**GOOD["kubernetes"], "settings": {"data-dir": "/srv/k3s"}}
    ),
    "no addresses": sets(addresses={}, interfaces=[]),
}


FULL = shape_facts(GOOD | {"disks": [{"path": "/srv", "device": 1, "total_gib": 100.0, "free_gib": 1.0}]})[0]


def judged(raw: Any) -> tuple[list[str], list[str], str]:
    """Return the rules about an odd host, those about another host with a full disk, and the report."""
    settings = Settings(rdma_mode="restricted")
    facts, misread = shape_facts(raw)
    odd = Host("spark1", facts, server=True, pfs=PFS, rails=RAILS, settings=settings, misread=misread)
    other = replace(odd, name="spark2", facts=FULL, misread=())
    findings = check_hosts([odd, other], {})
    rules = {name: [one.rule for one in findings if one.where == name] for name in ("spark1", "spark2")}
    return rules["spark1"], rules["spark2"], format_report([odd, other], findings, 100)


def test_good_facts_are_not_changed() -> None:
    assert shape_facts(GOOD) == (GOOD, [])
    assert set(GOOD) == set(Facts.__annotations__)
    assert set(PF) == set(GOOD["pfs"][0])


def wrong(raw: dict[str, Any]) -> None:
    raw["pfs"][1]["rate_gbps"] = True
    raw["swap"] = [{"name": "/swap.img", "kind": "file", "kib": 5}, "x"]
    raw["user"]["sudo_from"] = 3
    raw["runtime_memlock"] = {"k3s.service": None, "x.service": "y", "docker.service": 5}
    raw["listeners"] = {"port": 1}
    del raw["netplan"]["files"], raw["arch"]


PARTS = {"parts of ports and lists": {"pfs": [{}], "rdma": {}, "swap": [{}], "listeners": [{}]}, "wrong parts": wrong}


def test_what_is_wrong_is_named_and_what_is_right_is_kept_as_stored() -> None:
    """An oddity has its finding. Without a user nobody knows whether the others could be read."""
    told = {}
    for name, raw in {**PARTS, "nothing": {}, "a list": [], "a text": "", "a number": 3, "true": True, **ODD}.items():
        facts: Any = raw
        if callable(raw):
            raw(facts := copy.deepcopy(GOOD))
        shaped, misread = shape_facts(facts)
        own, others, _report = judged(facts)
        assert others == ["preflight.storage.space"], name
        told[name] = [f"misread: {', '.join(misread)}", *own]
        told[name] += [f"{key}: {value}" for key, value in shaped.items() if name in PARTS and value != GOOD[key]]
    stored.compare("preflight_shapes", told)


@pytest.mark.parametrize("one", ODD)
def test_two_oddities_at_once_cost_no_finding_of_another_host(one: str) -> None:
    for two, damage in ODD.items():
        raw = copy.deepcopy(GOOD)
        ODD[one](raw)
        damage(raw)
        own, others, report = judged(raw)
        assert own, two
        assert others == ["preflight.storage.space"], two
        assert "spark2: Ubuntu 24.04.3 LTS, kernel 6.14.0-1013-nvidia; 1 error" in report, two


FORMS = [None, "x", 7, [], {}, [[]], {"x": []}, True]


@pytest.mark.parametrize("name", sorted(GOOD))
def test_each_fact_may_have_any_form(name: str) -> None:
    for value in FORMS:
        _own, others, _report = judged(copy.deepcopy(GOOD) | {name: value})
        assert others == ["preflight.storage.space"], value


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("kernel", "7" * 4096, True),
        ("kernel", "7" * 4097, False),
        ("memory_kib", 2**63 - 1, True),
        ("memory_kib", 2**63, False),
        ("interfaces", ["x"] * 10_000, True),
        ("interfaces", ["x"] * 10_001, False),
        ("packages", dict.fromkeys(map(str, range(10_000)), "1"), True),
        ("packages", dict.fromkeys(map(str, range(10_001)), "1"), False),
        ("clock_offset_s", 3, True),
        ("clock_offset_s", True, False),
        ("time_synchronized", 1, False),
    ],
)
def test_a_fact_has_a_largest_size(name: str, value: Any, fits: bool) -> None:
    facts: Any
    facts, misread = shape_facts(copy.deepcopy(GOOD) | {name: value})
    assert (misread == [], facts[name] == value) == (fits, fits)
