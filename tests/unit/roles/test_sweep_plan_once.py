# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play the first tasks of a sweep in check mode, after a plan as in playbook sweep and without one, on no host."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("before", [["sweep_plan"], []], ids=["planned before", "alone"])
def test_a_sweep_is_planned_once_and_recorded(tmp_path: Path, before: list[str]) -> None:
    roles = [{"name": "gb10.cluster.bench", "tasks_from": part} for part in [*before, "sweep"]]
    tasks = [{"ansible.builtin.import_role": role} for role in roles]
    play = {"hosts": "gb10_nodes", "connection": "local", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    sweep = ROOT / "plugins" / "sweeps" / "gemma-4-26b-b300.yml"
    values = {"bench_sweep": sweep, "gb10_results_dir": tmp_path / "results", "bench_models_dir": ""}
    words = ["-i", "inventory/4x-gb10-switch"]
    for name, value in values.items():
        words += ["-e", f"{name}={value}"]
    done = ansible("ansible-playbook", *words, "--check", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 cells: 2 to measure") == 1
    assert "changed: [spark1 -> localhost]" in done.stdout.partition("Sweep | Record the plan")[2]
