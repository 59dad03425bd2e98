# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the templates that read the names of the command line: sweeps with a dot, and the preset of another profile."""

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
