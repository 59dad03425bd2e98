# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the commands of the documentation that compare all profiles with all releases, which takes a minute."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from documented import commands

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [command for _page, command in commands("deep")])
def test_a_long_command_does_what_the_page_says(command: str) -> None:
    done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
