# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play the first tasks of a sweep in check mode, after a plan as in playbook sweep and without one."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]


def sweep(tmp_path: Path, hosts: str, *before: str) -> CompletedProcess[str]:
    """Return what a play of parts of role bench ended with, the tasks of the sweep last."""
    roles = [{"name": "gb10.cluster.bench", "tasks_from": part} for part in [*before, "sweep"]]
    tasks = [{"ansible.builtin.import_role": role} for role in roles]
    play = {"hosts": hosts, "connection": "local", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    file = ROOT / "plugins" / "sweeps" / "gemma-4-26b-b300.yml"
    values = {"bench_sweep": file, "gb10_results_dir": tmp_path / "results", "bench_models_dir": ""}
    words = ["-i", "inventory/4x-gb10-switch"]
    for name, value in values.items():
        words += ["-e", f"{name}={value}"]
    return ansible("ansible-playbook", *words, "--check", tmp_path / "play.yml")


@pytest.mark.parametrize("before", [["sweep_plan", "sweep_models"], []], ids=["planned before", "alone"])
def test_a_sweep_is_planned_once_and_recorded(tmp_path: Path, before: list[str]) -> None:
    done = sweep(tmp_path, "spark1", *before)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 cells: 2 to measure") == 1
    assert "changed: [spark1 -> localhost]" in done.stdout.partition("Sweep | Record the plan")[2]


def test_cells_are_refused_in_a_play_of_several_hosts(tmp_path: Path) -> None:
    done = sweep(tmp_path, "gb10_nodes")
    assert done.returncode == 2
    assert "[bench.sweep.hosts]" in done.stdout + done.stderr
    assert not (tmp_path / "results").exists()
