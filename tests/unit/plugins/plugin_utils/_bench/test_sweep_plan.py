# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import Transport
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import Workload
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import (
    OVERLAY,
    SCHEMA,
    Resolved,
    SweepPlan,
    check,
    examine,
    overlay_of,
    plan,
)

SWEEP: dict[str, Any] = {
    "name": "nemotron",
    "profile": "nemotron-3-super-120b",
    "base": {"server_args": {"speculative_algorithm": "EAGLE"}},
    "axes": {
        "depth": [
            {"name": "3/4", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4},
            {"name": "5/5", "speculative_num_steps": 5, "speculative_num_draft_tokens": 5},
            {"name": "5/7", "speculative_num_steps": 5, "speculative_num_draft_tokens": 7},
        ],
        "ep_size": [1, 3, 4],
    },
    "workloads": [{"concurrency": 1}],
    "exclude": [{"depth": "5/7", "ep_size": 4}],
    "include": [{"labels": {"depth": "none"}, "preset": "no-spec", "topology": {"ep": 1}}],
}


def as_sglang(overlay: Mapping[str, Any]) -> Resolved:
    ep = overlay["topology"]["ep"]
    steps = overlay["server_args"].get("speculative_num_steps")
    findings = []
    if ep == 3:
        findings = [Finding("error", "moe.ep_divides", "ep_size", 3, "does not divide tp_size 4", "Use 1, 2 or 4.")]
    return Resolved(f"{overlay.get('preset')}:{steps}:{ep}", findings)


def test_a_cell_is_named_after_its_labels_and_told_apart_by_its_overlay() -> None:
    def same(overlay: Mapping[str, Any]) -> Resolved:
        return Resolved(str(sorted(overlay)))

    (alone,) = plan({"base": {"image": "i"}}, same).cells
    assert (alone.id.rpartition("-")[0], len(alone.id.rpartition("-")[2]), alone.labels) == ("base", 8, {})
    axes = {"a b": ["x/y z", "w" * 80], "env": [{"A": 1}, {"A": 2}]}
    exclude = [{"a b": "w" * 80, "env": ["A=1", "A=3"]}, {"env": {"A": 2}, "a b": "x/y z"}]
    include = [{"labels": {"n": 1}, "image": "j", "other": 2}, {"env": {"B": 1}}]
    found = plan({"name": 7, "axes": axes, "exclude": exclude, "include": include, "base": {"image": "i"}}, same)
    assert found.name == "7"
    assert [cell.id[:-9] for cell in found.cells] == ["x_y_z-A=1", "w" * 60, "1", "base"]
    assert len({cell.id for cell in found.cells}) == 4
    assert [cell.overlay for cell in found.cells[2:]] == [{"image": "j"}, {"image": "i", "env": {"B": 1}}]
    assert [cell.status for cell in found.cells] == ["run", "duplicate", "run", "run"]
    assert (found.cells[1].duplicate_of, found.count("run"), found.count("duplicate")) == (found.cells[0].id, 3, 1)


def by_label(result: SweepPlan) -> dict[str, str]:
    return {"|".join(c.labels.values()): c.status for c in result.cells}


def test_product_exclusion_inclusion_and_folding() -> None:
    result = plan(SWEEP, as_sglang)
    assert by_label(result) == {
        "3/4|1": "run",
        "3/4|3": "invalid",
        "3/4|4": "run",
        "5/5|1": "run",
        "5/5|3": "invalid",
        "5/5|4": "run",
        "5/7|1": "duplicate",
        "5/7|3": "invalid",
        "none": "run",
    }
    double = next(c for c in result.cells if c.status == "duplicate")
    original = next(c for c in result.cells if c.id == double.duplicate_of)
    assert original.labels == {"depth": "5/5", "ep_size": "1"}
    invalid = next(c for c in result.cells if c.status == "invalid")
    assert invalid.reasons[0]["rule"] == "moe.ep_divides"


def test_cells_keep_their_names_when_the_file_grows() -> None:
    before = {c.id for c in plan(SWEEP, as_sglang).cells}
    more = SWEEP | {"axes": SWEEP["axes"] | {"ep_size": [1, 2, 3, 4]}}
    assert before < {c.id for c in plan(more, as_sglang).cells}


def test_overlay_keys_and_server_arguments_are_told_apart() -> None:
    sweep = {
        "profile": "p",
        "workloads": [{"concurrency": 1}],
        "axes": {"transport": ["roce", "socket"], "max_running_requests": [8]},
    }
    overlays = [c.overlay for c in plan(sweep, lambda o: Resolved(str(o))).cells]
    assert overlays[1] == {"transport": "socket", "server_args": {"max_running_requests": 8}}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"profile": None}, "sweep.profile"),
        ({"axes": ["ep"]}, "sweep.axes"),
        ({"axes": {"ep_size": []}, "exclude": []}, "sweep.axes"),
        ({"axes": {"ep_size": [1, 1]}, "exclude": []}, "sweep.axes"),
        ({"exclude": [{"colour": "red"}]}, "sweep.exclude"),
        ({"workloads": None}, "sweep.workloads"),
        ({"workloads": ["n1"]}, "sweep.workloads"),
        ({"exclude": {"depth": "5/7"}}, "sweep.exclude"),
        ({"axes": {"x": [{"name": "y", "env": 5}]}, "exclude": []}, "sweep.axes"),
    ],
)
def test_a_wrong_file_is_refused(change: dict[str, Any], rule: str) -> None:
    assert rule in {f.rule for f in check(SWEEP | change)}


@pytest.mark.parametrize(
    ("axis", "value", "overlay"),
    [
        ("topology", {"ep": 4}, {"topology": {"ep": 4}}),
        ("topology", {"name": "wide", "ep": 4}, {"topology": {"ep": 4}}),
        ("env", {"NCCL_DEBUG": "INFO"}, {"env": {"NCCL_DEBUG": "INFO"}}),
        ("server_args", {"page_size": 1}, {"server_args": {"page_size": 1}}),
        ("ep", 4, {"topology": {"ep": 4}}),
        ("ep-size", 4, {"topology": {"ep": 4}}),
        ("tp_size", 2, {"topology": {"tp": 2}}),
        ("wide", {"topology": {"ep": 4}}, {"topology": {"ep": 4}}),
        ("mode", {"name": "x", "preset": "mtp", "page_size": 1}, {"preset": "mtp", "server_args": {"page_size": 1}}),
        (
            "both",
            {"ep": 2, "topology": {"tp": 4}, "env": {"A": "b"}},
            {"topology": {"ep": 2, "tp": 4}, "env": {"A": "b"}},
        ),
    ],
)
def test_the_value_of_an_axis_goes_where_a_profile_has_it(axis: str, value: Any, overlay: dict[str, Any]) -> None:
    assert overlay_of(axis, value) == overlay


def test_all_mistakes_are_reported_at_once_with_suggestions() -> None:
    sweep = {
        "profile": "p",
        "exlude": [],
        "base": {"prest": "mtp"},
        "axes": {"transport": ["roce", "banana", "sockt"], "topology": [{"nods": 4}, 2], "depth": [1]},
        "exclude": [{"depht": 1}, {"depth": 9}],
        "include": [{"serverargs": {"page_size": 1}}, {"server_args": ["page_size"]}],
        "workloads": [{"concurency": 1}, {"concurrency": 1}, {"concurrency": 1, "max_tokens": 9}],
        "stop": {"hour": 1, "failures": "two"},
    }
    said = [f"{f.key}: {f.reason} {f.remedy}" for f in check(sweep)]
    for key, remedy in [
        ("sweep", "unknown key 'exlude' (did you mean exclude?)"),
        ("base", "unknown key 'prest' (did you mean preset?)"),
        ("axes.transport[banana].transport", "is not one of roce, socket"),
        ("axes.transport[sockt].transport", "(did you mean socket?)"),
        ("axes.topology[nods=4].topology", "unknown key 'nods' (did you mean nodes?)"),
        ("axes.topology[2].topology", "Write parallel sizes as {ep: 4}"),
        ("exclude[0]", "Did you mean depth?"),
        ("exclude[1].depth", "Choose from: 1."),
        ("include.0", "(did you mean server_args?)"),
        ("include.1.server_args", "Write server arguments as {name: value}."),
        ("workloads.0", "(did you mean concurrency?)"),
        ("workloads.0", "'concurrency' is a required property"),
        ("stop", "(did you mean hours?)"),
        ("stop.failures", "Write how many cells in a row, 1 or more."),
    ]:
        assert any(line.startswith(f"{key}: ") and remedy in line for line in said), (key, said)
    assert len(said) == 14
    twice = {"profile": "p", "workloads": [{"concurrency": 1}, {"concurrency": 1, "max_tokens": 9}]}
    assert [(f.key, f.value) for f in check(twice)] == [("workloads", "c0-n1")]


def test_the_schema_knows_every_transport_and_every_key_of_a_workload() -> None:
    assert tuple(OVERLAY["properties"]["transport"]["enum"]) == get_args(Transport)
    assert set(SCHEMA["properties"]["workloads"]["items"]["properties"]) == {f.name for f in fields(Workload)}


def test_a_refused_cell_is_no_original_and_no_duplicate() -> None:
    sweep = {"profile": "p", "workloads": [{"concurrency": 1}], "axes": {"graphs": [1, 2, 3, 4]}}
    refused = [Finding("error", "r", "graphs", 1, "is refused", "")]
    made = plan(sweep, lambda o: Resolved("one", refused if o["server_args"]["graphs"] < 3 else ()))
    assert [c.status for c in made.cells] == ["invalid", "invalid", "run", "duplicate"]
    ids = [c.id for c in made.cells]
    assert [c.duplicate_of for c in made.cells] == [None, None, None, ids[2]]


def test_a_stop_rule_that_does_not_exist_is_named() -> None:
    assert "sweep.stop" in {f.rule for f in check(SWEEP | {"stop": {"minutes": 3}})}
    assert check(SWEEP | {"stop": {"hours": 3, "infrastructure": 2, "failures": 5}}) == []


def test_an_axis_whose_value_has_a_number_for_a_name_is_refused() -> None:
    found = check({"profile": "x", "axes": {"a": [{1: 2}, {"b": 3}, 4]}, "workloads": [{"concurrency": 1}]})
    assert [f.key for f in found if f.rule == "sweep.axes"] == ["axes.a[1=2].server_args"]


def test_loads_that_the_server_cannot_run_as_written_are_named() -> None:
    server = {"max_running_requests": 8, "context_length": 4096}
    loads = [{"concurrency": 9}, {"concurrency": 8, "requests": 7}, {"concurrency": 1, "context_tokens": 4000}]
    loads = [{"max_tokens": 97, **load} for load in loads]
    sweep = {"name": "s", "profile": SWEEP["profile"], "base": {"server_args": server}, "axes": {"ep_size": [1]}}
    found = [(one.rule, one.key) for one in examine(sweep | {"workloads": loads}).findings]
    assert [(rule, key) for rule, key in found if key.startswith("workloads")] == [
        ("sweep.slots", "workloads.0.concurrency"),
        ("sweep.requests", "workloads.1.requests"),
        ("sweep.context", "workloads.2.context_tokens"),
    ]
