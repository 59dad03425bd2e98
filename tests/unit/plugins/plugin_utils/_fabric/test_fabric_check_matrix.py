# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from itertools import combinations
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules.fabric_bandwidth import judge_bandwidth
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import check_matrix as matrix
from hypothesis import given
from hypothesis import strategies as st
from ring_samples import cabled_plan


@given(st.sets(st.text("abcdef", min_size=1, max_size=4), max_size=9))
def test_all_pairs_meet_once_and_no_host_has_two_partners(hosts: set[str]) -> None:
    schedule = matrix.rounds(hosts)
    for pairs in schedule:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    met = sorted(tuple(sorted(pair)) for pairs in schedule for pair in pairs)
    assert met == sorted(combinations(sorted(hosts), 2))


def result(host: str, peer: str, layer: str = "", rail: str = "rail0", vf: int = 0) -> dict[str, Any]:
    return {
        "host": host,
        "peer": peer,
        "rail": rail,
        "vf_index": vf,
        "layer": layer,
        "ok": not layer,
        "reason": f"because of {layer}" if layer else "",
    }


def every(hosts: str, broken: str = "") -> dict[str, list[dict[str, Any]]]:
    return {
        one: [result(one, two, "link" if broken in (one, two) else "") for two in hosts if two != one] for one in hosts
    }


def test_all_good() -> None:
    found = matrix.ping_verdict(every("abc"), "abc")
    assert found["ok"]
    assert found["table"][1].split() == ["a", "-", "1/1", "1/1"]
    assert found["msg"].startswith("6 directions on all rails and VFs pass with full-size packets\n")


def test_a_direction_that_lost_packets_passes_and_is_named() -> None:
    results = every("abc")
    for host in "bc":
        results[host][0]["reason"] = "passes, but a first try lost all 3 packets"
    found = matrix.ping_verdict(results, "abc")
    assert found["ok"]
    lost = "rail0 VF 0: passes, but a first try lost all 3 packets"
    assert found["msg"].splitlines()[-2:] == [f"b → a {lost}", f"c → a {lost}"]


def test_a_host_without_results_fails() -> None:
    found = matrix.ping_verdict({"a": every("ab")["a"]}, "ab")
    assert not found["ok"]
    assert "b: gave no result" in found["msg"]


def test_an_empty_check_fails_except_for_a_single_host() -> None:
    empty = matrix.ping_verdict({"a": [], "b": []}, "ab")
    assert (empty["ok"], empty["msg"].splitlines()[0]) == (False, "0 of 0 directions fail")
    assert matrix.ping_verdict({"a": []}, "a")["ok"]


def test_a_dead_end_is_named_once() -> None:
    found = matrix.ping_verdict(every("abcd", broken="c"), "abcd")
    assert not found["ok"]
    lines = [line for line in found["msg"].splitlines() if "because of" in line]
    assert lines == ["c rail0 VF 0: no pair with it works (link): because of link"]
    assert "0/1 link" in found["table"][1]


def test_the_matrix_of_more_hosts_than_fit_on_a_screen_is_left_out_of_the_message() -> None:
    many = "abcdefghijklmnopqrstuvwxyz"
    found = matrix.ping_verdict(every(many, broken="c"), many)
    assert len(found["table"]) == 27
    assert found["msg"].splitlines() == [
        "50 of 650 directions fail",
        "c rail0 VF 0: no pair with it works (link): because of link",
    ]


def test_an_end_that_never_sent_is_blamed_direction_by_direction() -> None:
    results = every("abcd", broken="d") | {"d": []}
    found = matrix.ping_verdict(results, "abcd")
    assert [line for line in found["msg"].splitlines() if "because of" in line] == [
        "a → d rail0 VF 0, b → d rail0 VF 0, c → d rail0 VF 0 (link): because of link"
    ]


def test_what_all_ends_share_is_said_once_with_four_of_them() -> None:
    results = {one: [result(one, two, "mtu") for two in "abcdef" if two != one] for one in "abcdef"}
    for one, found in results.items():
        for number, each in enumerate(found):
            each["reason"] = f"{each['peer']} at 10.100.0.{number}/24 drops packets of 8972 bytes that {one} sends"
    lines = matrix.ping_verdict(results, "abcdef")["msg"].splitlines()
    assert lines[0] == "30 of 30 directions fail"
    assert [line.partition(": ")[0] for line in lines if "drops packets" in line] == [
        "a rail0 VF 0, b rail0 VF 0, c rail0 VF 0, d rail0 VF 0 and 2 more"
    ]


def test_a_single_direction_is_named_with_its_layer() -> None:
    results = every("abc")
    results["a"][0] = result("a", "b", "mtu")
    found = matrix.ping_verdict(results, "abc")
    assert "a → b rail0 VF 0 (mtu): because of mtu" in found["msg"]


def switched(*hosts: str) -> dict[str, Any]:
    return {"hosts": {host: {"vfs": [{"rail": "rail0", "rail_index": 0}]} for host in hosts}}


def pair(client: str, server: str, **rails: float) -> dict[str, object]:
    good, text = judge_bandwidth(rails, 90, 180)
    return {"pair": [client, server], "measured": rails, "ok": good, "msg": f"{client} → {server}: {text}"}


def test_bandwidth_of_all_pairs_is_one_matrix() -> None:
    results = [
        pair("spark2", "spark1", rail0=97.5, rail1=97.4),
        pair("spark3", "spark1", rail0=97.5, rail1=0.0),
        pair("spark3", "spark2", rail0=96.0, rail1=96.0),
    ]
    found = matrix.bandwidth_verdict(results, ["spark1", "spark2", "spark3"], switched("spark1", "spark2", "spark3"))
    assert found["ok"] is False
    assert found["table"] == [
        "Gb/s from \\ to  spark1     spark2",
        "spark2          194.9      -",
        "spark3          97.5 slow  192.0",
    ]
    head, reason, *_more = found["msg"].split("\n")
    assert head == "2 of 3 pairs reach the floors"
    assert reason.startswith("spark3 → spark1: half-rail: rail1")


def test_a_pair_that_was_not_measured_fails() -> None:
    found = matrix.bandwidth_verdict([pair("b", "a", rail0=97.0)], ["a", "b", "c"], switched(*"abc"))
    assert found["ok"] is False
    assert "a and c: not measured" in found["msg"]


@pytest.mark.parametrize(
    "told", [[], {}, {"pair": ["b", "a"], "ok": True}, {**pair("b", "a", rail0=97.0), "pair": "ba"}]
)
def test_what_is_no_measurement_counts_as_none(told: object) -> None:
    found = matrix.bandwidth_verdict([told], ["a", "b"], switched(*"ab"))
    assert (found["ok"], "a and b: not measured" in found["msg"]) == (False, True)


def test_a_run_that_measures_no_pair_fails() -> None:
    found = matrix.bandwidth_verdict([], ["a"], switched(*"ab"))
    assert found["ok"] is False
    assert "no two hosts of this run share a rail. Name two hosts that do in --limit" in found["msg"]


def test_hosts_of_a_ring_without_a_common_cable_are_neither_paired_nor_missed() -> None:
    plan = cabled_plan(4)
    hosts = list(plan["hosts"])
    met = [(host, one["partner"]) for turn in matrix.meetings(hosts, plan) for host, one in turn.items()]
    assert sorted(met) == sorted(
        (one, two) for one in hosts for two in hosts if {one[-1], two[-1]} in map(set, ("12", "23", "34", "41"))
    )
    results = [pair(one, two, a=97.0, b=97.0) for one, two in met if one < two]
    assert matrix.bandwidth_verdict(results, hosts, plan)["ok"]
    assert "not measured" in matrix.bandwidth_verdict(results[1:], hosts, plan)["msg"]
