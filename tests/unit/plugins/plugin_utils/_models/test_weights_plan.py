# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test who downloads and who copies: each file once per group of nodes, all problems before the first byte."""

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._models.plan import Stock, plan_share

GB = 10**9
REPO = "org/tiny"
FILES = [{"name": name, "size": GB, "digest": name * 8, "algorithm": "sha256"} for name in ("a", "b", "c")]
LISTING = {"commit": "c0ffee", "files": FILES}


def node(number: int, has: str = "", **changes: Any) -> Stock:
    """Return a node with some verified files, two addresses, and 100 GB of free space."""
    held = {file["name"]: {"digest": file["digest"], "size": GB} for file in FILES if file["name"] in has}
    complete = len(has) == len(FILES)
    model = {"dest": "/srv/models/org--tiny", "commit": "c0ffee" if complete else "", "complete": complete}
    model |= {"held": held, "parts": changes.pop("parts", {}), "listing": LISTING, "error": ""}
    if offline := changes.pop("offline", ""):
        model |= {"listing": None, "error": offline}
    model |= changes.pop("model", {})
    disk = {"path": "/srv/models", "free_bytes": changes.pop("free", 100 * GB), "reserve_bytes": 10 * GB}
    addresses = changes.pop("addresses", [f"10.100.0.{number}/24", f"10.101.0.{number}/24"])
    assert not changes
    return Stock.of(f"spark{number}", {"disk": disk, "addresses": addresses, "models": {REPO: model}})


def downloads(*nodes: Stock, share: bool = True) -> dict[str, str]:
    """Return the files that each node downloads; the plan must be free of errors."""
    plan, findings = plan_share(nodes, share)
    assert not has_errors(findings), findings
    return {name: "".join(file[-1] for file in each.hub) for name, each in plan.nodes.items()}


def rules(*nodes: Stock) -> list[tuple[str, str]]:
    plan, findings = plan_share(nodes)
    assert not (has_errors(findings) and plan.needed)
    return [(finding.rule, finding.where) for finding in findings]


def test_the_first_node_downloads_and_the_others_copy_on_both_rails() -> None:
    plan, findings = plan_share([node(1), node(2), node(3), node(4)])
    assert findings == [] and plan.needed
    assert [each.download_bytes for each in plan.nodes.values()] == [3 * GB, 0, 0, 0]
    assert [each.copy_bytes for each in plan.nodes.values()] == [0, 3 * GB, 3 * GB, 3 * GB]
    assert plan.rounds == 1
    third = plan.nodes["spark3"]
    assert [peer["name"] for peer in third.peers] == ["spark1", "spark2", "spark4"]
    assert third.peers[0]["paths"] == [
        {"to": "10.100.0.1", "via": "10.100.0.3"},
        {"to": "10.101.0.1", "via": "10.101.0.3"},
    ]
    assert third.addresses == ("10.100.0.3", "10.101.0.3") and third.place == 2
    assert third.models == ({"repo": REPO, "commit": "c0ffee", "dest": "/srv/models/org--tiny", "files": FILES},)
    assert plan.table.splitlines() == [
        "org/tiny, commit c0ffee: 3.0 GB, 3 files",
        "spark1: downloads 3.0 GB from the hub",
        "spark2: copies 3.0 GB over the fabric from spark1, spark3, spark4",
        "spark3: copies 3.0 GB over the fabric from spark1, spark2, spark4",
        "spark4: copies 3.0 GB over the fabric from spark1, spark2, spark3",
    ]


def test_a_node_that_has_a_file_is_a_source_and_only_missing_files_are_downloaded() -> None:
    assert downloads(node(1), node(2, "a"), node(3, "ab")) == {"spark1": "c", "spark2": "", "spark3": ""}
    assert downloads(node(1), node(2, "abc")) == {"spark1": "", "spark2": ""}


def test_a_file_that_somebody_copied_is_compared_and_not_downloaded() -> None:
    """Also where that node does not reach the hub and its disk has no room for another copy."""
    copied = {"held": {name: {"digest": "", "size": GB} for name in "ab"} | {"c": {"digest": "", "size": GB - 1}}}
    nodes = [node(1), node(2, model=copied, offline="no route", free=11 * GB)]
    assert downloads(*nodes) == {"spark1": "c", "spark2": "ab"}
    plan, _findings = plan_share(nodes)
    assert plan.table.splitlines()[1:] == [
        "spark1: downloads 1.0 GB from the hub and copies 2.0 GB over the fabric from spark2",
        "spark2: compares the files that are there with the digests of the hub and copies 1.0 GB over the fabric"
        " from spark1",
    ]


def test_the_node_with_the_largest_part_goes_on_with_it() -> None:
    assert downloads(node(1, parts={"a": 5}), node(2, parts={"a": 9, "b": 1})) == {"spark1": "c", "spark2": "ab"}
    plan, _findings = plan_share([node(1, parts={"a": GB - 5}), node(2)])
    assert plan.nodes["spark1"].download_bytes == 2 * GB + 5


def test_a_node_that_does_not_reach_the_hub_copies() -> None:
    assert downloads(node(1, offline="no route"), node(2)) == {"spark1": "", "spark2": "abc"}
    assert rules(node(1, offline="no route"), node(2, offline="HTTP 401")) == [("models.listing", "")]


def test_a_file_of_another_digest_or_size_is_missing() -> None:
    old = {"held": {"a": {"digest": "old", "size": GB}, "b": {"digest": "b" * 8, "size": 7}}}
    assert downloads(node(1, model=old), node(2, "c")) == {"spark1": "ab", "spark2": ""}


def test_nothing_is_needed_if_all_files_and_records_are_there() -> None:
    assert not plan_share([node(1, "abc"), node(2, "abc")])[0].needed
    assert plan_share([node(1, "abc"), node(2, "abc", model={"complete": False})])[0].needed
    assert plan_share([node(1, "abc"), node(2, "abc", model={"commit": "older"})])[0].needed


def test_every_small_disk_is_named_with_what_is_missing() -> None:
    nodes = [node(1), node(2, free=12 * GB), node(3, "ab", free=10 * GB), node(4, "abc", free=0)]
    plan, findings = plan_share(nodes)
    assert [(f.rule, f.where) for f in findings] == [("models.disk", "spark2"), ("models.disk", "spark3")]
    assert not plan.needed
    text = str(findings[0])
    for said in ("12.0 GB free", "need 3.0 GB more", "10.0 GB must stay free", "1.0 GB are missing", "Free 1.0 GB"):
        assert said in text
    assert rules(node(1, free=13 * GB)) == [] and rules(node(1, free=13 * GB - 1)) == [("models.disk", "spark1")]
    assert rules(node(1, free=11 * GB, parts={"a": GB, "b": GB})) == []


def test_a_ring_has_one_download_and_its_nodes_copy_from_their_neighbours() -> None:
    links = {1: ["10.1.0.1/30", "10.4.0.2/30"], 2: ["10.1.0.2/30", "10.2.0.1/30"]}
    links |= {3: ["10.2.0.2/30", "10.3.0.1/30"], 4: ["10.3.0.2/30", "10.4.0.1/30"]}
    ring = [node(number, "a", addresses=addresses) for number, addresses in links.items()]
    assert downloads(*ring) == {"spark1": "bc", "spark2": "", "spark3": "", "spark4": ""}
    plan = plan_share(ring)[0]
    assert [peer["name"] for peer in plan.nodes["spark3"].peers] == ["spark2", "spark4"]
    assert plan.rounds == 2, "the neighbours get the files first"
    ring = [node(number, {3: "abc", 4: "a"}.get(number, ""), addresses=links[number]) for number in links]
    assert (plan_share(ring)[0].rounds, *downloads(*ring).values()) == (2, "", "", "", "")


def test_two_pairs_that_do_not_reach_each_other_download_once_each() -> None:
    pairs = [node(n, addresses=[f"10.{1 if n < 3 else 2}.0.{n}/24"]) for n in (1, 2, 3, 4)]
    assert downloads(*pairs) == {"spark1": "abc", "spark2": "", "spark3": "abc", "spark4": ""}
    apart = [*pairs[:2], *(node(n, addresses=[f"10.9.0.{n}/24"], offline="no route") for n in (3, 4))]
    assert rules(*apart) == [("models.unreachable", "spark3, spark4")]


def test_a_node_without_a_free_fabric_address_downloads_and_says_why() -> None:
    nodes = [node(1), node(2), node(3, addresses=[]), node(4, addresses=[])]
    assert downloads(*nodes) == {"spark1": "abc", "spark2": "", "spark3": "abc", "spark4": "abc"}
    assert rules(*nodes) == [("models.alone", "spark3"), ("models.alone", "spark4")]
    plan = plan_share(nodes)[0].nodes["spark3"]
    assert plan.peers == plan.addresses == ()
    assert rules(node(1), node(2), node(3, "abc", addresses=[])) == []


@pytest.mark.parametrize("count", [1, 3])
def test_without_sharing_every_node_downloads_and_nothing_listens(count: int) -> None:
    nodes = [node(number) for number in range(1, count + 1)]
    plan, findings = plan_share(nodes, share=False)
    assert findings == []
    assert downloads(*nodes, share=False) == {f"spark{number}": "abc" for number in range(1, count + 1)}
    assert all(each.addresses == () and each.peers == () for each in plan.nodes.values())


def test_all_models_of_all_nodes_are_planned() -> None:
    nodes = [replace(one, models=dict.fromkeys((REPO, "org/b"), one.models[REPO])) for one in (node(1), node(2))]
    first, second = plan_share(nodes)[0].nodes.values()
    assert first.hub == tuple(f"{name}/{file}" for name in (REPO, "org/b") for file in "abc")
    assert (first.download_bytes, second.copy_bytes) == (6 * GB, 6 * GB)
    assert [model["repo"] for model in second.models] == [REPO, "org/b"]
    assert rules(*(replace(one, disk=replace(one.disk, free_bytes=15 * GB)) for one in nodes)) == [
        ("models.disk", "spark1"),
        ("models.disk", "spark2"),
    ]


OTHER = {"model": {"listing": LISTING | {"commit": "beef"}}}
OFFLINE = {"offline": "no route"}


@pytest.mark.parametrize(
    ("second", "third", "is_own", "found"),
    [
        ({}, OTHER, False, [("models.disagree", "spark3", " than spark1,")]),
        (OTHER, OTHER, True, [("models.disagree", "spark2, spark3", " than the controller,")]),
        ({}, OFFLINE, False, []),
        (OFFLINE, OFFLINE, False, [("models.one_witness", "spark1", "")]),
        (OFFLINE, OFFLINE, True, []),
    ],
)
def test_the_list_of_the_controller_or_of_the_first_node_counts(
    second: dict[str, Any], third: dict[str, Any], is_own: bool, found: list[tuple[str, str, str]]
) -> None:
    stocks = [node(1), node(2, **second), node(3, **third)]
    (model,) = stocks[0].models.values()
    findings = plan_share(stocks, own={REPO: model.listing} if is_own and model.listing else None)[1]
    for each, (rule, where, said) in zip(findings, found, strict=True):
        assert (each.rule, each.where, said in each.reason) == (rule, where, True)


def test_a_single_node_downloads_without_a_warning() -> None:
    assert rules(node(1, addresses=[])) == []
    assert downloads(node(1)) == {"spark1": "abc"}
