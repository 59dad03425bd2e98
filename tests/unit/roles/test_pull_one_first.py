# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that roles pull an image on one node first if K3s's nodes fetch images from each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROLES = Path(__file__).resolve().parents[3] / "roles"
TASKS = {"sglang": "images.yml", "multus": "networks.yml", "gateway": "present.yml"}


def flat(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for task in tasks for one in (task, *flat(task.get("block", [])))]


@pytest.mark.parametrize("role", TASKS)
@pytest.mark.parametrize(
    ("inventory", "one_first"),
    [({}, False), ({"k3s_embedded_registry": False}, False), ({"k3s_embedded_registry": "yes"}, True)],
)
def test_the_role_s_option_follows_k3s_embedded_registry(role: str, inventory: dict[str, Any], one_first: bool) -> None:
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROLES / role / "defaults" / "main.yml"), trusted_as_template=True)
    value = Templar(loader=loader, variables=inventory).template(defaults[f"{role}_pull_one_first"])
    assert value is one_first


@pytest.mark.parametrize("role", TASKS)
def test_the_task_that_pulls_the_image_passes_the_option(role: str) -> None:
    tasks = yaml.safe_load((ROLES / role / "tasks" / TASKS[role]).read_text(encoding="utf-8"))
    (pull,) = [task["gb10.cluster.image_pull"] for task in flat(tasks) if "gb10.cluster.image_pull" in task]
    assert pull["one_first"] == f"{{{{ {role}_pull_one_first }}}}"
