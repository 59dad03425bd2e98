# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the values that variables of roles have for an inventory (samples/role_values.yml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROOT = Path(__file__).resolve().parents[3]
VALUES = yaml.safe_load((ROOT / "tests" / "unit" / "samples" / "role_values.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("place", "given", "value"), [(place, *case) for place in VALUES for case in VALUES[place]])
def test_a_variable_has_its_value(place: str, given: dict[str, Any], value: Any) -> None:
    file, name = place.split()
    loader = DataLoader()
    known = loader.load_from_file(str(ROOT / file), trusted_as_template=True)
    found = Templar(loader=loader, variables={**known, **given}).template(known[name])
    assert (found, isinstance(found, bool)) == (value, isinstance(value, bool))


@pytest.mark.parametrize(("given", "value"), [(0, 0), ("0", "0"), (1, 1), ("", "omitted")])
def test_a_swappiness_of_0_reaches_the_module(given: int | str, value: int | str) -> None:
    loader = DataLoader()
    (task,) = loader.load_from_file(str(ROOT / "roles/node_tuning/tasks/main.yml"), trusted_as_template=True)
    known = Templar(loader=loader, variables={"node_tuning_swappiness": given, "omit": "omitted"})
    assert known.template(task["gb10.cluster.node_tuning"]["swappiness"]) == value
