# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test when playbook kubernetes need not look for the virtual functions: role sriov has found them in the same run."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

PLAYBOOK = Path(__file__).resolve().parents[3] / "playbooks" / "kubernetes.yml"
ALL: dict[str, Any] = {"sriov_compared": {"steps": []}}


@pytest.mark.parametrize(
    ("second", "ends"),
    [
        (ALL, True),
        # Check mode, which creates none
        ({"sriov_compared": {"steps": ["enp1s0f0np0: sriov_numvfs = 4"]}}, False),
        ({"sriov_compared": {"skipped": True}}, False),
        ({}, False),
    ],
)
def test_the_play_ends_only_if_every_host_has_all(second: dict[str, Any], *, ends: bool) -> None:
    loader = DataLoader()
    plays = loader.load_from_file(str(PLAYBOOK), trusted_as_template=True)
    (play,) = (play for play in plays if play["name"] == "Check that the virtual functions exist")
    (task,) = (task for task in play["tasks"] if "role sriov" in task["name"])
    condition = trust_as_template("{{ " + task["when"] + " }}")
    known = {"ansible_play_hosts": ["spark1", "spark2"], "hostvars": {"spark1": ALL, "spark2": second}}
    assert Templar(loader=loader, variables=known).template(condition) is ends
