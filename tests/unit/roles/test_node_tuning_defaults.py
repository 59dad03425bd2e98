# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which parts of role node_tuning are on if nobody sets anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

DEFAULTS = Path(__file__).resolve().parents[3] / "roles" / "node_tuning" / "defaults" / "main.yml"


@pytest.mark.parametrize(("inventory", "on"), [({}, True), ({"serving_plan_platform": "b300"}, False)])
def test_a_gb10_is_tuned_except_for_its_clock_and_another_host_is_left_alone(inventory: Any, on: bool) -> None:
    loader = DataLoader()
    defaults = loader.load_from_file(str(DEFAULTS), trusted_as_template=True)
    values = {name: Templar(loader=loader, variables=inventory).template(value) for name, value in defaults.items()}
    assert values == {
        "node_tuning_headless": on,
        "node_tuning_memory_guard": on,
        "node_tuning_memory_guard_percent": [3, 2],
        "node_tuning_drop_caches": on,
        "node_tuning_swappiness": "1" if on else "",
        "node_tuning_gpu_clock_mhz": "",
    }
