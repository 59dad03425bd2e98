# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the whole of what is made of what hosts and pods report: matrices, inventories and attachments."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import attachments, check_matrix, inventory, parse
from cabling_samples import cable, facts, ring
from ring_samples import cabled_plan
from stored import compare, flat, said, say_words


def ping(host: str, peer: str, layer: str = "", /, vf: int = 0, **changes: Any) -> dict[str, Any]:
    own = {
        "rail": "rail0",
        "vf_index": vf,
        "layer": layer,
        "ok": not layer,
        "reason": f"{layer} of {peer}" * bool(layer),
    }
    return {"host": host, "peer": peer, **own, **changes}


def pings(hosts: str, broken: Callable[[str, str], str] = lambda _one, _two: "", **changes: Any) -> dict[str, Any]:
    return {one: [ping(one, two, broken(one, two), **changes) for two in hosts if two != one] for one in hosts}


PINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "nobody": ({}, ""),
    "one": ({"a": []}, "a"),
    "no answer": ({}, "ba"),
    "two": (pings("ab"), "ab"),
    "two, and a stranger": (pings("abc"), "ab"),
    "of PFs": (pings("abc", vf=-1), "cab"),
    "a lost end": (pings("abc", lambda one, two: "link" * ("b" in (one, two))), "abc"),
    "a lost end of two": (pings("ab", lambda one, two: "link"), "ab"),
    "a lost end of PFs": (pings("abcd", lambda one, two: "mtu" * ("b" in (one, two)), vf=-1), "abcd"),
    "one direction": (pings("abc", lambda one, two: "mtu" * (one + two == "ab")), "abc"),
    "to one end": (pings("abc", lambda one, two: "ip" * (two == "b")), "abc"),
    "two layers": (pings("abcd", lambda one, two: {"a": "link", "b": "mtu"}.get(one, "")), "abcd"),
    "four with one cause": (pings("abcde", lambda one, two: "ip" * (two == "e"), reason="r"), "abcde"),
    "five with one cause": (pings("abcdef", lambda one, two: "ip" * (two == "f"), reason="r"), "abcdef"),
    "all": (pings("abc", lambda _one, _two: "sriov"), "abc"),
    "to one that sent nothing": (pings("abcd", lambda one, two: "ip" * (two == "d")) | {"d": []}, "abcd"),
    "three directions": (
        {"a": [ping("a", "b", "ip"), ping("a", "c", "ip")], "b": [ping("b", "a", "ip")], "c": []},
        "abc",
    ),
    "two directions": ({"a": [ping("a", "b", "ip"), ping("a", "c", "ip")], "b": [], "c": []}, "abc"),
    "24 hosts to one": ({h: [ping(h, "a")] for h in "abcdefghijklmnopqrstuvwx"}, "abcdefghijklmnopqrstuvwx"),
    "25 hosts to one": ({h: [ping(h, "a")] for h in "abcdefghijklmnopqrstuvwxy"}, "abcdefghijklmnopqrstuvwxy"),
    "no mapping": ({"a": [None], "b": [[]]}, "ab"),
    "nothing in it": ({"a": [{}], "b": [ping("b", "a"), {}]}, "ab"),
    "one more for another": ({"a": [ping("a", "b"), ping("b", "a")], "b": {}}, "ab"),
    "reasons that differ in addresses": (
        {
            "a": [
                ping("a", two, "ip", reason=f"{two} at 10.0.0.{n}/24 has 02:00:00:00:00:0{n}")
                for n, two in enumerate("bc")
            ]
        },
        "a",
    ),
    "reasons that differ in names": ({"a": [ping("a", two, "ip", reason=f"aa of {two}{two}") for two in "bc"]}, "a"),
    "lost at first": ({"a": [ping("a", "b", reason="late")], "b": [ping("b", "a", "mtu")]}, "ab"),
    "more on one VF": (
        {
            "a": [ping("a", "b", vf=vf, **({"ok": False, "layer": "mtu"} if vf > 1 else {})) for vf in range(4)],
            "b": [ping("b", "a")],
        },
        "ab",
    ),
    **{
        f"names of {length}": (
            {h * length: [ping(h * length, o * length)] for h, o in ("ab", "ba")},
            ["a" * length, "b" * length],
        )
        for length in (32, 33)
    },
    "24 hosts": (pings("abcdefghijklmnopqrstuvwx"), "abcdefghijklmnopqrstuvwx"),
    "25 hosts": (pings("abcdefghijklmnopqrstuvwxy"), "abcdefghijklmnopqrstuvwxy"),
    **{
        f"a result with {changes}": ({"a": [ping("a", "b", **changes)], "b": [ping("b", "a")]}, "ab")
        for changes in (
            {"host": "b"},
            {"peer": None},
            {"rail": 7},
            {"reason": None},
            {"ok": 1},
            {"vf_index": True},
            {"vf_index": "0"},
            {"layer": None},
            {"layer": "no such"},
            {"ok": False},
            {"ok": True, "layer": "mtu"},
            {"more": 1},
        )
    },
    **{
        f"a result with {field} of {length}": ({"a": [ping("a", "b", **{field: "x" * length})], "b": []}, "ab")
        for field, lengths in {"peer": (256, 257), "rail": (256, 257), "reason": (4000, 4001)}.items()
        for length in lengths
    },
}


def test_the_verdicts_on_pings_are_those_that_are_stored() -> None:
    found = {}
    for name, (results, hosts) in PINGS.items():
        verdict = check_matrix.ping_verdict(results, hosts)
        lines = f"{verdict['ok']}: {verdict['msg']}".replace("x" * 200, "").splitlines()
        found[name] = [
            *lines,
            *([] if lines[len(lines) - len(verdict["table"]) :] == verdict["table"] else verdict["table"][:2]),
        ]
    compare("ping_verdicts", found)


def rate(one: str, two: str, **changes: Any) -> dict[str, Any]:
    return {"pair": [one, two], "measured": {"r0": 97.54, "r1": None}, "ok": True, "msg": f"{one}-{two}", **changes}


RATES: dict[str, tuple[list[Any], list[str]]] = {
    "nobody": ([], []),
    "one": ([], ["spark1"]),
    "none of a chain": ([], ["spark3", "spark1", "spark2"]),
    "the ends of a chain": ([rate("spark1", "spark3")], ["spark1", "spark3"]),
    "half of a chain": ([rate("spark2", "spark1")], ["spark1", "spark2", "spark3"]),
    "all of a chain": ([rate("spark3", "spark2"), rate("spark2", "spark1")], ["spark1", "spark2", "spark3"]),
    "two slow": (
        [rate("spark3", "spark2", ok=False, msg="z"), rate("spark2", "spark1", ok=False, msg="a", measured={"r0": 50})],
        ["spark1", "spark2", "spark3"],
    ),
    "both ways": ([rate("spark1", "spark2", ok=False), rate("spark2", "spark1")], ["spark1", "spark2"]),
    "a stranger": ([rate("spark1", "spark2"), rate("spark1", "spark9")], ["spark1", "spark2"]),
    **{
        f"a result with {changes}": ([rate("spark1", "spark2", **changes)], ["spark1", "spark2"])
        for changes in (
            {"pair": ["spark1"]},
            {"pair": ["spark1", "spark2", "spark2"]},
            {"pair": ("spark1", "spark2")},
            {"pair": ["spark1", 2]},
            {"measured": []},
            {"measured": {"r0": "97"}},
            {"measured": {"r0": float("inf")}},
            {"measured": {"r0": True}},
            {"measured": {"r0": 97, "r1": "97"}},
            {"measured": {}},
            {"measured": {"r0": 90, "r1": 5.5}},
            {"ok": 1},
            {"msg": None},
            {"msg": "m" * 4000},
            {"msg": "m" * 4001},
            {"more": 1},
        )
    },
    "no mapping": ([None, 5, [], {}], ["spark1", "spark2"]),
}


def test_the_verdicts_on_rates_and_the_rounds_are_those_that_are_stored() -> None:
    chain = cabled_plan(3, closed=False)
    found = {}
    for name, (results, hosts) in RATES.items():
        verdict = check_matrix.bandwidth_verdict(results, hosts, chain)
        found[name] = f"{verdict['ok']}: {verdict['msg']}\n{verdict['table']}".replace("m" * 200, "").splitlines()
    found |= {f"{count} hosts": [str(one) for one in check_matrix.rounds("gfedcba"[:count])] for count in range(8)}
    for count in (3, 4):
        found[f"a ring of {count}"] = flat(
            {
                str(n): one
                for n, one in enumerate(check_matrix.meetings([*cabled_plan(count)["hosts"]], cabled_plan(count)))
            }
        )
    compare("bandwidth_verdicts", found)


def machine(number: int, ports: list[dict[str, Any]], **changes: Any) -> inventory.Machine:
    """Return a machine with these ports and facts."""
    ipv4 = {"address": f"10.0.0.{number}", "prefix": 24}
    known = {
        "hostname": f"Spark{number}",
        "interfaces": ["lo", "wl-0", "enP7s7"],
        "lo": {"device": "lo"},
        "wl_0": {"device": "wl-0", "ipv4": {"address": f"10.9.0.{number}", "prefix": 20}},
        "enP7s7": {"device": "enP7s7", "ipv4": ipv4},
        "default_ipv4": {"interface": "wl-0", "address": f"10.9.0.{number}", "prefix": 20},
        "user_id": "me",
        "mounts": [{"mount": mount, "size_available": size} for mount, size in (("/", 5), ("/data", 9), ("/a b", 99))],
        "gb10_pf_totalvfs": {"enp1s0f0np0": 1},
        "gb10_cabling": ports,
    }
    return inventory.Machine.of(f"10.0.0.{number}", {**known, **changes})


def group(links: list[Any], count: int, **changes: Any) -> list[inventory.Machine]:
    every = facts(count, *links).values()
    return [machine(number, ports, **changes) for number, ports in enumerate(every, start=1)]


SWITCH = [tuple((host, 0, half) for host in range(1, 5)) for half in (0, 1)]
PAIR = cable((1, 0), (2, 0))
GB10 = {"gb10_preflight": {"gpus": [{}, {"name": "NVIDIA B300"}]}}


def all_machines() -> dict[str, list[inventory.Machine]]:
    """Return machines by what is special about them; tests call it, so that they notice faults in it."""
    return {
        "one": group([], 1),
        "one B300": group([], 1, gb10_preflight={"gpus": [{"name": "NVIDIA B300 SXM"}]}),
        "a GPU without a name": group([], 1, **GB10),
        "no GPUs": group([], 1, gb10_preflight={"gpus": []}, gb10_cabling=None),
        "two": group(PAIR, 2),
        "two without cables": group([], 2),
        "three on a switch": group([link[:3] for link in SWITCH], 3),
        "four on a switch": group(SWITCH, 4),
        "a ring in another order": [group(ring(4), 4)[index] for index in (0, 2, 1, 3)],
        "nine in a ring": [group(ring(9), 9)[index] for index in (0, 2, 1, 3, 4, 5, 6, 7, 8)],
        "eight in a ring": [group(ring(8), 8)[index] for index in (0, 2, 1, 3, 4, 5, 6, 7)],
        "three, the first without a cable": group(cable((2, 0), (3, 0)), 3),
        "two B300": group(PAIR, 2, gb10_preflight={"gpus": [{"name": "NVIDIA B300 SXM"}]}),
        "mounts of one": group(PAIR, 1) + group(PAIR, 2, mounts=[{"mount": "/", "size_available": 1}])[1:],
        "a full mount of one": group(PAIR, 1)
        + group(PAIR, 2, mounts=[{"mount": m, "size_available": s} for m, s in (("/data", 1), ("/", 2))])[1:],
        "mounts of the system": group([], 1, mounts=[{"mount": m, "size_available": 9} for m in ("/usr", "/var/x")]),
        "a chain": [group(ring(3)[:-2], 3)[index] for index in (0, 2, 1)],
        "one of another interface, network and user": [
            *group(PAIR, 1),
            machine(
                2,
                facts(2, *PAIR)["spark2"],
                enP7s7=None,
                wl_0={"device": "eth9", "ipv4": {"address": "10.0.0.2", "prefix": 16}},
                env={"SUDO_USER": "you"},
            ),
        ],
        "many VFs": group(PAIR, 2, gb10_pf_totalvfs={"a": 16, "b": 3, "c": 0, "d": None}),
        "no VFs": group(PAIR, 2, gb10_pf_totalvfs=None, mounts=None, env={}, user_id=None),
        "one without a name": group([], 1, hostname=None, env={"SUDO_USER": "you"}),
        "a prefix without an address": group([], 1, default_ipv4={"prefix": 20}, interfaces=[]),
        "no names": group(PAIR, 2, hostname=None),
        "names that mean all": group(PAIR, 1, hostname="localhost") + group(PAIR, 2)[1:],
        "one name": group(PAIR, 2, hostname="x"),
        "names of other letters": group(PAIR, 1, hostname="x_y") + group(PAIR, 2)[1:],
        "a second name that means all": group(PAIR, 1) + group(PAIR, 2, hostname="all")[1:],
        "fewer VFs on the second": group(PAIR, 1, gb10_pf_totalvfs={"a": 2}) + group(PAIR, 2)[1:],
        "no address": group(PAIR, 2, default_ipv4=None, interfaces=None),
        "no prefix": group(PAIR, 2, default_ipv4={"address": "10.9.0.1"}, interfaces=[]),
        "prefix 0": group(
            PAIR, 2, interfaces=["enP7s7"], enP7s7={"device": "enP7s7", "ipv4": {"address": "10.0.0.1", "prefix": 0}}
        ),
        "read-only": group(
            [],
            1,
            mounts=[
                {"mount": f"/m{number}", "size_available": 1, "options": options}
                for number, options in enumerate(("ro,rw", "rw,ro", "rox", None))
            ],
        ),
        "a mount without a size": group(
            [], 1, mounts=[{"mount": "/z"}, {"mount": "/y", "size_available": -1}, {}, None]
        ),
    }


def test_inventories_are_those_that_are_stored() -> None:
    found: dict[str, list[str]] = {}
    for name, machines in all_machines().items():
        files = inventory.render(inventory.compose(machines), json.dumps)
        lines = [repr(machines[0].free), *(line for text in files.values() for line in text.split("\n"))]
        found[name] = [line for line in lines if line not in found.get("one", ())]
        assert all(yaml.safe_load(text) for text in files.values())
    compare("inventories", found)


PORT = {"name": "enp1s0"}
FACTS: list[tuple[str, Any]] = [
    *(("hostname", value) for value in (None, "", "a" * 253, "a" * 254, "-a", "a b", 7)),
    *(("user_id", value) for value in ("a", "a" * 64, "a" * 65, b"a")),
    *(("env", value) for value in (None, {}, {"SUDO_USER": None, "HOME": 7}, {"SUDO_USER": []}, [])),
    *(("default_ipv4", {"address": value}) for value in ("", "10.0.0.1", "10.0.0", "::1", 7, None)),
    *(("default_ipv4", {"prefix": value}) for value in (-1, 0, "32", 33, True, None, "x", b"2", 1e400)),
    *(
        ("mounts", [{"mount": "/a", "size_available": value}])
        for value in (-1, -2, 2**63 - 1, 2**63, "7", True, b"7", [], float("nan"))
    ),
    *(
        ("mounts", [{"mount": value, "size_available": 1}])
        for value in ("", "/", "a", "/a/b.c", "/.a", "/a/", "/" + "a" * 300, "/\x07", 7, ["/a"], None)
    ),
    *(("interfaces", value) for value in (None, [None, "a"], ["a" * 32], ["a" * 33], "a", {}, [7])),
    *(("gb10_pf_totalvfs", value) for value in ({"a": 1}, {"a b": 1}, {"a": "x"}, {7: 1}, [], {"a": None})),
    *(
        ("gb10_cabling", value)
        for value in ([PORT], [{"mac": "aa"}], [{"name": ""}, PORT], [PORT, {"mac": "aa"}], [None], [7], {})
    ),
    *(
        ("gb10_cabling", [{**PORT, key: value}])
        for key, values in {
            "mac": ("", "aa", "AA:0b", "aa:", "a" * 60, "aa" + ":aa" * 19, "aa" + ":aa" * 20),
            "carrier": (True, None, 1, "true"),
            "neighbours": (["aa", None], ["x"], "aa"),
            "switch": ("s" * 201, "a\x1b", 7),
            "speed_mbps": (-1, 10**6, 1.5),
        }.items()
        for value in values
    ),
    ("gb10_preflight", {"gpus": [{"name": 7}]}),
    ("enP7s7", {"device": "a b"}),
    ("enP7s7", {"ipv4": {"prefix": 99}}),
    ("other", {"ipv4": {"prefix": 99}}),
    ("mounts", [{"mount": "a"}, {"mount": "/a"}, {"mount": "/b"}]),
    ("gb10_cabling", [{"name": "a"}, {"name": "b"}]),
    ("interfaces", ["a", "b-1", "hostname"]),
    ("interfaces", ["a"] * 20_001),
    ("interfaces", ["a"] * 20_000),
    ("gb10_pf_totalvfs", {f"a{number}": 1 for number in range(20_000)}),
]


def test_what_is_read_of_facts_is_what_is_stored() -> None:
    found = {}
    for number, (key, value) in enumerate(FACTS):
        try:
            lines = [
                f"{part}: {one}"
                for part, one in inventory.reported(
                    "h", {"interfaces": ["enP7s7"], "a": {"device": "a"}, "b_1": {"device": "b-1"}, key: value}
                ).items()
                if one not in ([], ["enP7s7"])
            ]
        except inventory.Refused as error:
            lines = [f"refused: {error}"]
        found[f"{number} {key} {ascii(value)[:70]}"] = [line[:300] for line in lines]
    compare("inventory_facts", found)


def test_machines_with_the_ports_of_another_are_twins() -> None:
    one, two, three = (machine(number, [{**PORT, "mac": mac}]) for number, mac in ((1, "aa"), (2, "bb"), (3, "aa")))
    assert inventory.twins([one, two, three, one]) == ["10.0.0.1 and 10.0.0.3"]
    assert inventory.twins([machine(1, []), machine(2, []), machine(3, [PORT]), machine(4, [PORT])]) == []


NETWORK = {"name": "n", "interface": "net1", "ips": ["10.1.0.1/24"]}


def pod(wanted: Any, got: Any = None, **more: Any) -> dict[str, Any]:
    notes = {attachments.NETWORKS: wanted if isinstance(wanted, str) else json.dumps(wanted)}
    notes |= {} if got is None else {attachments.NETWORK_STATUS: json.dumps(got)}
    return {"metadata": {"name": "p", "uid": "u", "annotations": notes}, "spec": {"nodeName": "node"}, **more}


PODS: dict[str, dict[str, Any]] = {
    "no annotations": {"metadata": {"name": "p", "uid": "u", "annotations": None}},
    "no networks": pod([]),
    "no list": pod({"a": 1}),
    "a number": pod(5),
    "no JSON": pod("["),
    "two as wanted": pod(
        [NETWORK, {"name": "m", "interface": "net2", "ips": ["10.2.0.1/24"]}],
        [{"interface": "net1", "ips": ["10.1.0.1"]}, {"interface": "net2", "ips": ["10.2.0.1"]}],
    ),
    "too deep": pod("[" * 100_000),
    "no status": pod([NETWORK]),
    "as wanted": pod([NETWORK], [{"interface": "net1", "ips": ["10.1.0.1"]}]),
    "more than wanted": pod([NETWORK], [{"interface": "net1", "ips": ["10.1.0.1", "10.1.0.2"]}]),
    "others": pod([NETWORK], [{"interface": "net1", "ips": ["10.1.0.3", "10.1.0.2", 7]}]),
    "no addresses": pod([NETWORK], [{"interface": "net1"}]),
    "another interface": pod([NETWORK], [{"interface": "net2", "ips": ["10.1.0.1"]}]),
    "one of two": pod(
        [NETWORK | {"ips": ["10.1.0.2/24", "10.1.0.1/24"]}], [{"interface": "net1", "ips": ["10.1.0.1"]}]
    ),
    "any address": pod([{"name": "n", "interface": "net1"}], [{"interface": "net1", "ips": ["10.9.0.1"]}]),
    "any address, none": pod([{"name": "n", "interface": "net1"}], [{"interface": "net1", "ips": []}]),
    "no interface": pod([{"name": "n"}], [{"ips": ["10.9.0.1"]}]),
    "long names": pod([{"name": "n" * 101, "interface": "i" * 100}]),
    "two networks": pod(
        [NETWORK, {"name": "m", "interface": "net2", "ips": ["10.2.0.1/24"]}, "x"], [{"interface": "net2"}]
    ),
    "running": pod([NETWORK], status={"phase": "Running"}),
    "failed": pod([NETWORK], status={"phase": "Failed"}),
    "ended": pod([NETWORK], status={"phase": "Succeeded"}),
    "no phase": pod([NETWORK], status=None),
    "no node": pod([NETWORK], spec={}),
}
RESULTS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "passed": [{"pod_uid": "u", "source": "10.1.0.1", "ok": True}],
    "failed": [{"pod_uid": "u", "source": "10.1.0.1", "ok": False}],
    "failed, then passed": [{"pod_uid": "u", "source": "10.1.0.1", "ok": ok} for ok in (False, True)],
    "passed, then failed": [{"pod_uid": "u", "source": "10.1.0.1", "ok": ok} for ok in (True, False)],
    "another pod": [{"pod_uid": "v", "source": "10.1.0.1", "ok": True}],
    "the second address": [{"pod_uid": "u", "source": "10.1.0.2", "ok": True}],
    "both addresses": [{"pod_uid": "u", "source": f"10.1.0.{end}", "ok": True} for end in (1, 2)],
}


def test_what_is_said_of_pods_is_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch, attachments._RULES)
    found = {}
    for name, one in PODS.items():
        other = {**pod([NETWORK | {"name": "o"}]), "spec": one.get("spec", {})}
        held = [
            {node: sorted(names) for node, names in attachments.attached_nads(pods).items()}
            for pods in ([one], [one, other])
        ]
        pinged = [said for said, results in RESULTS.items() if attachments.all_pinged([one], results)]
        both = [said for said, results in RESULTS.items() if attachments.all_pinged([pod([NETWORK]), one], results)]
        found[name] = [
            *said(attachments.compare_status(one)),
            f"holds {held}; pinged if {pinged}, with another if {both}",
        ]
    assert not attachments.all_pinged([], RESULTS["passed"])
    compare("pods", found)


def test_all_objects_for_a_plan_are_those_that_are_stored() -> None:
    plan = cabled_plan(3, gb10_fabric_vf_count=2, closed=False)
    found = {
        prefix or "by name": [
            yaml.safe_dump(one, width=1000, default_flow_style=True).strip()
            for one in (
                *attachments.nads(plan, "ns", prefix)[:3],
                attachments.probe_pod(plan, "spark1", "ns", "n1", "pause:3", prefix),
                *(attachments.sriov_resources(plan, prefix, {"isRdma": True}) if prefix else ()),
                attachments.sriov_offers(plan, {"spark1": "n1", "spark2": "n2"}, prefix) if prefix else {},
            )
        ]
        for prefix in ("", "a.b/c")
    }
    compare("fabric_objects", found)


class HostVars(dict[str, Any]):
    """Variables of a host, of which some have a template that fails."""

    def get(self, key: str, default: Any = None) -> Any:
        if (value := super().get(key, default)) == "fails":
            raise AnsibleError(f"no {key}")
        return value


def test_templates_that_fail_and_unknown_hosts_are_found_and_options_of_k3s_are_left_to_their_role() -> None:
    given = dict.fromkeys(("gb10_node_id", "ansible_host", "k3s_config", "k3s_cluster_cidr"), "fails")
    own = {"a": given | {"gb10_fabric_mtu": 0, "k3s_service_cidr": "s"}, "b": {"gb10_pf_totalvfs": {"x": 0}}}
    hostvars = {host: HostVars(values) for host, values in own.items()}
    variables, findings = parse.fabric_variables(["a", "c", "b"], {"hostvars": hostvars})
    assert variables == {"a": {"gb10_fabric_mtu": 0, "k3s_service_cidr": "s"}, "b": {"gb10_pf_totalvfs": {"x": 0}}}
    assert [(found.rule, found.key, found.where, found.value, found.reason) for found in findings] == [
        ("fabric.value.template", "gb10_node_id", "a", None, "no gb10_node_id"),
        ("fabric.value.template", "ansible_host", "a", None, "no ansible_host"),
        ("fabric.host.unknown", "hosts", "", "c", "not in the inventory"),
    ]
