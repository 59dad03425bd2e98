# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbook plan as a job of AWX with a mistake in the inventory; tests/lab/test_awx.py runs site."""

from __future__ import annotations

from pathlib import Path

import awx_job


def test_a_job_shows_the_finding(tmp_path: Path) -> None:
    extra = {"profile": "glm-4.7", "sglang_wait_timeout": "long"}
    done, output = awx_job.run(tmp_path, "playbooks/plan.yml", ["inventory/4x-gb10-switch"], extra, ["-t", "plan"])
    assert done == "failed", output
    assert "sglang_wait_timeout = 'long'" in " ".join(output.split())
