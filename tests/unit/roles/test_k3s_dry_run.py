# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that check mode only shows the order of an upgrade, because its steps cannot be played without changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROLE = Path(__file__).resolve().parents[3] / "roles" / "k3s"


@pytest.mark.parametrize(
    ("asked", "check", "dry"), [("false", False, False), ("true", False, True), ("false", True, True)]
)
def test_check_mode_is_a_dry_run(asked: str, *, check: bool, dry: bool) -> None:
    loader = DataLoader()
    template = loader.load_from_file(str(ROLE / "vars" / "main.yml"), trusted_as_template=True)["__k3s_dry_run"]
    known = {"k3s_upgrade_dry_run": asked, "ansible_check_mode": check}
    assert Templar(loader=loader, variables=known).template(template) is dry


def test_the_plan_of_an_upgrade_obeys_it() -> None:
    plan = (ROLE / "tasks" / "upgrade_plan.yml").read_text(encoding="utf-8")
    assert "k3s_upgrade_dry_run" not in plan
    assert plan.count("not __k3s_dry_run") == 3
