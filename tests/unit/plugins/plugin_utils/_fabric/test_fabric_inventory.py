# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the inventory written for machines is planned without an error and fits their cables."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import judge, ports_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.inventory import Machine, compose, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from cabling_samples import End, cable, facts, ring

INVENTORIES = Path(__file__).resolve().parents[5] / "inventory"


def machines(count: int, links: list[tuple[End, ...]], **changes: Any) -> list[Machine]:
    """Return machines with these cables as Ansible's facts describe them."""
    return [
        Machine.of(
            f"192.168.10.{10 + number}",
            {
                "hostname": host,
                "interfaces": ["lo", "enP7s7", "wlP9s9"],
                "enP7s7": {
                    "device": "enP7s7",
                    "ipv4": {"address": f"192.168.10.{10 + number}", "prefix": "24"},
                },
                "default_ipv4": {"interface": "wlP9s9", "address": f"10.0.0.{number}", "prefix": "24"},
                "env": {"SUDO_USER": "nvidia"},
                "user_id": "root",
                "mounts": [{"mount": "/", "size_available": 9}, {"mount": "/boot/efi", "size_available": 99}],
                "gb10_pf_totalvfs": {port["name"]: 4 for port in ports},
                "gb10_cabling": ports,
                **changes,
            },
        )
        for number, (host, ports) in enumerate(facts(count, *links).items(), start=1)
    ]


def read(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the variables of every host as Ansible reads them from the files."""
    group = yaml.safe_load(files["group_vars/gb10_cluster.yml"])
    nodes = yaml.safe_load(files["hosts.yml"])["gb10_cluster"]["children"]["gb10_nodes"]["hosts"]
    return {host: {**group, **own} for host, own in nodes.items()}


def switched(*hosts: int) -> list[tuple[End, ...]]:
    return [tuple((host, 0, half) for host in hosts) for half in (0, 1)]


@pytest.mark.parametrize(
    ("count", "links", "topology", "preset"),
    [
        (2, cable((1, 0), (2, 1)), "direct", "two-nodes"),
        (4, switched(1, 2, 3, 4), "switch", "current"),
        *((count, ring(count), "ring", "two-nodes") for count in (3, 6, 8)),
        (4, ring(4)[:-2], "chain", "two-nodes"),
        (4, [*cable((1, 0), (2, 1)), *cable((3, 0), (4, 1))], "mixed", "two-nodes"),
    ],
)
def test_what_is_written_is_a_plan_that_fits_the_cables(
    count: int, links: list[tuple[End, ...]], topology: str, preset: str
) -> None:
    given = machines(count, links)
    variables = read(render(compose(given), json.dumps))
    assert variables == compose(given).variables()
    first = variables["spark1"]
    assert (first["gb10_fabric_topology"], first["serving_plan_preset"]) == (topology, preset)
    assert (first["ansible_user"], first["gb10_fabric_vf_count"], first["gb10_models_dir"]) == (
        "nvidia",
        2,
        "/srv/models",
    )
    assert first["gb10_management_interface"] == "enP7s7"
    assert first["gb10_management_networks"] == ["192.168.10.0/24"]
    for values in variables.values():
        values["gb10_pf_totalvfs"] = {port["name"]: 4 for port in given[0].ports}
    plan, findings = plan_fabric(variables)
    assert [finding for finding in findings if finding.severity != "info"] == []
    ports = ports_of({host: next(m.ports for m in given if m.hostname == host) for host in variables})
    assert [finding.rule for finding in judge(ports, plan) if finding.rule != "cabling.same_cage"] == []


@pytest.mark.parametrize(
    ("gpu", "platform", "profile"),
    [
        ("NVIDIA GB10", "gb10", "gemma-4-31b-it"),
        ("NVIDIA B300 SXM6 AC", "b300", "gemma-4-26b-a4b-it-b300"),
        ("NVIDIA H200", "h200", "gemma-4-31b-it"),
        ("", "gb10", "gemma-4-31b-it"),
    ],
)
def test_the_gpu_chooses_the_platform_and_the_profile(gpu: str, platform: str, profile: str) -> None:
    gpus = [{"name": gpu}] if gpu else []
    group = compose(machines(2, [], gb10_preflight={"gpus": gpus})).group
    assert (group["serving_plan_platform"], group["serving_plan_profile"]) == (platform, profile)
    if platform == "b300":
        example = yaml.safe_load((INVENTORIES / "1x-b300/group_vars/gb10_cluster.yml").read_text(encoding="utf-8"))
        named = ("serving_plan_profile", "serving_plan_preset", "gb10_sglang_version", "gb10_sglang_image")
        assert [group.get(name) for name in named] == [example.get(name) for name in named]
        assert group["serving_plan_nodes"] == ["spark1"]
