# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that plays end for all hosts when one of them fails, where the others must not be changed without it.

Otherwise Ansible goes on with the other hosts, also in the plays that follow.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("book", "name"),
    [
        ("kubernetes", "Check every host before changing any"),
        ("kubernetes", "Start the servers"),
        ("upgrade", "Plan the upgrade"),
        # A rank without its model would stop the group that runs.
        ("upgrade", "Start the model group as a whole and verify its transport"),
        ("compare_transports", "Serve over TCP, prove the transport and measure"),
        ("compare_transports", "Serve over RoCE, prove the transport and measure"),
        # If the first server fails, the datastores of the others are the only ones left.
        ("restore", "Restore the cluster's state"),
    ],
)
def test_a_failed_host_ends_the_run_for_all(book: str, name: str) -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / f"{book}.yml").read_text(encoding="utf-8"))
    (play,) = [play for play in plays if play["name"] == name]
    assert play["any_errors_fatal"] is True
