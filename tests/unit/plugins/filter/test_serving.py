# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that playbooks find the group that the planner made, and how they show its logs."""

import re
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.filter import serving
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
FILTERS = serving.FilterModule().filters()


def test_group_names_are_valid_in_kubernetes() -> None:
    assert FILTERS["serving_instance"]("", "glm-4.7") == "glm-4-7"
    assert FILTERS["serving_instance"]("second", "glm-4.7") == "second"


NAMES: list[tuple[dict[str, Any], str]] = [
    ({"profile": "glm-4.7"}, "glm-4-7"),
    ({"profile": "glm-4.7", "instance": "two"}, "two"),
    ({}, ""),
]


def test_the_playbooks_take_either_name_and_no_default(tmp_path: Path) -> None:
    book = []
    for playbook in ("serve_stop", "serve_status"):
        plays = yaml.safe_load((ROOT / "playbooks" / f"{playbook}.yml").read_text(encoding="utf-8"))
        files = [str(ROOT / "playbooks" / name) for play in plays for name in play.get("vars_files", [])]
        tasks = [
            {"ansible.builtin.debug": {"msg": "means <{{ sglang_instance }}>"}, "vars": name} for name, _meant in NAMES
        ]
        book.append({"hosts": "localhost", "gather_facts": False, "vars_files": files, "tasks": tasks})
    (tmp_path / "book.yml").write_text(yaml.safe_dump(book))
    done = ansible("ansible-playbook", tmp_path / "book.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall("means <(.*)>", done.stdout) == [meant for _given, meant in NAMES] * 2


def test_the_last_hang_stands_above_the_logs() -> None:
    assert serving.serving_logs([], "ns", "k", "c").startswith("No rank has started")
    assert serving.serving_logs([], "ns", "k", "c", "rank 1").startswith("Last hang: rank 1\nNo rank has started")
