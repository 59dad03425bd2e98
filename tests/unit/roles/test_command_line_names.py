# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test templates: sweeps with a dot in their names, cells of one rank, and the preset of another profile."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROOT = Path(__file__).resolve().parents[3]
LOADER = DataLoader()


def load(path: str) -> Any:
    return LOADER.load_from_file(str(ROOT / path), trusted_as_template=True)


@pytest.mark.parametrize(
    ("sweep", "name"),
    [
        ("qwen3.5-397b-ep1", "qwen3.5-397b-ep1"),
        ("qwen3.5-397b-ep4", "qwen3.5-397b-ep4"),
        ("plugins/sweeps/glm-4.7.yml", "glm-4.7"),
        ("mine.yaml", "mine"),
        ("results/glm-4.7.jsonl", "glm-4.7"),
    ],
)
def test_a_name_keeps_what_follows_its_dot(sweep: str, name: str) -> None:
    given = {"bench_sweep": sweep, "sweep": sweep, "bench_results_dir": "results"}
    journal = load("roles/bench/vars/main.yml")["__bench_journal"]
    report = load("playbooks/report.yml")[0]["vars"]["report_path"]
    templar = Templar(LOADER, given)
    assert (templar.template(journal), templar.template(report)) == (f"results/{name}.jsonl", f"results/{name}")


@pytest.mark.parametrize(
    ("plan", "wanted", "proves"),
    [
        ({"gb10_serving_plan": {"expect": {"ranks": 2}}}, True, True),
        ({"gb10_serving_plan": {"expect": {"ranks": 2}}}, "false", False),
        ({"gb10_serving_plan": {"expect": {"ranks": 1}}}, True, False),
        ({}, True, True),
    ],
)
def test_a_cell_of_one_rank_is_measured_without_a_proof(plan: dict[str, Any], wanted: Any, proves: bool) -> None:
    templates = load("roles/bench/vars/main.yml")
    given = {"ansible_facts": plan, "bench_verify_transport": wanted, "__bench_planned": templates["__bench_planned"]}
    assert Templar(LOADER, given).template(templates["__bench_proves"]) is proves


MINE = {"serving_plan_profile": "glm-4.7", "serving_plan_preset": "throughput"}


@pytest.mark.parametrize(
    ("inventory", "given", "preset"),
    [
        (MINE, {}, "throughput"),
        (MINE, {"profile": "glm-4.7"}, "throughput"),
        (MINE, {"profile": "gemma-4-31b-it"}, ""),
        (MINE, {"profile": "gemma-4-31b-it", "preset": "latency"}, "latency"),
        (MINE, {"preset": "latency"}, "latency"),
        ({}, {}, ""),
        ({"serving_plan_preset": "p"}, {"profile": "gemma-4-31b-it"}, "p"),
        ({"serving_plan_preset": "p"}, {"profile": "glm-4.7"}, ""),
    ],
)
def test_a_preset_of_the_inventory_belongs_to_its_profile(
    inventory: dict[str, str], given: dict[str, str], preset: str
) -> None:
    variables = {"hostvars": {"spark1": inventory}, "inventory_hostname": "spark1", **given}
    template = load("playbooks/vars/command_line.yml")["serving_plan_preset"]
    assert Templar(LOADER, variables).template(template).strip() == preset
