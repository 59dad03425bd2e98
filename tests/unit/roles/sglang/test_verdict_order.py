# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the image judges before a running group is stopped, after its image and models are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

TASKS = Path(__file__).resolve().parents[4] / "roles/sglang/tasks"


def order(name: str) -> list[str]:
    """Return the task files and modules of a file in the order in which they run."""
    found: list[str] = []

    def walk(tasks: list[dict[str, Any]]) -> None:
        for task in tasks:
            walk(task.get("block", []))
            for key in ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks"):
                value = task.get(key)
                if value:
                    found.append(value["file"] if isinstance(value, dict) else value)
                    if found[-1] == "replace.yml":
                        walk(yaml.safe_load((TASKS / "replace.yml").read_text(encoding="utf-8")))

    walk(yaml.safe_load((TASKS / name).read_text(encoding="utf-8")))
    return found


def test_the_verdict_comes_after_image_and_models_and_before_anything_stops() -> None:
    steps = order("main.yml")
    wanted = ["images.yml", "models.yml", "configs.yml", "replace.yml", "verdict.yml", "stop_ranks.yml", "deploy.yml"]
    assert [step for step in steps if step in wanted] == wanted


def test_a_refusal_fails_and_an_unknown_verdict_does_not() -> None:
    tasks = yaml.safe_load((TASKS / "verdict.yml").read_text(encoding="utf-8"))
    (check,) = [task["ansible.builtin.assert"] for task in tasks if "ansible.builtin.assert" in task]
    assert check["that"] == "sglang_verdict.verdict != 'refused'"
    assert "{{ sglang_verdict.why }}" in check["fail_msg"]
