# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that playbooks find the group that the planner made, and how they show its logs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.action import serving_plan
from ansible_collections.gb10.cluster.plugins.filter import serving
from ansible_plays import ansible
from role_samples import role_values
from serving_samples import fabric
from shipped_profiles import SHIPPED

ROOT = Path(__file__).resolve().parents[4]
FILTERS = serving.FilterModule().filters()


def planned(instance: str, profile: str) -> str:
    """Return the name that the planner gives to a group."""
    platform = "b300" if profile.endswith("b300") else "gb10"
    # A profile without a default wants a preset.
    preset = next(iter(SHIPPED[profile]["presets"]))
    options = role_values("serving_plan", instance=instance, profile=profile, preset=preset, platform=platform)
    given = {"fabric": fabric(), "candidates": ["spark1", "spark2", "spark3", "spark4"], "taken": []}
    planned = serving_plan.ActionModule.act(None, options | given, {})
    assert not planned.get("failed"), planned["msg"]
    return str(planned["plan"]["instance"])


# The sample fabric has four hosts.
@pytest.mark.parametrize("profile", [name for name, one in SHIPPED.items() if one["topology"]["nodes"] <= 4])
def test_every_profile_s_group_is_found_by_its_profile(profile: str) -> None:
    assert FILTERS["serving_instance"]("", profile) == planned("", profile)


def test_group_names_are_valid_in_kubernetes() -> None:
    assert FILTERS["serving_instance"]("", "glm-4.7") == "glm-4-7"
    assert FILTERS["serving_instance"]("second", "glm-4.7") == planned("second", "glm-4.7") == "second"


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


def test_logs_are_below_the_names_of_their_pods_and_end_with_the_command_that_follows_one() -> None:
    read = [
        {"item": {"metadata": {"name": f"g-{n}-0"}, "spec": {"nodeName": f"spark{n}"}}, "log_lines": lines}
        for n, lines in ((1, ["a", "b"]), (2, []))
    ]
    assert serving.serving_logs(read, "ns", "~/.kube/config", "gb10").splitlines() == [
        "g-1-0 on spark1:",
        "  a",
        "  b",
        "g-2-0 on spark2:",
        "  (nothing yet)",
        "",
        "Follow it:",
        "  kubectl --context gb10 -n ns logs -f g-1-0 -c sglang",
    ]
    assert serving.serving_logs([], "ns", "k", "c").startswith("No rank has started")
    assert serving.serving_logs([], "ns", "k", "c", "rank 1").startswith("Last hang: rank 1\nNo rank has started")
