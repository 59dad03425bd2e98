# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbook plan as a job of AWX, and one whose inventory has a mistake."""

from __future__ import annotations

from pathlib import Path

import awx_job
import pytest


@pytest.mark.parametrize(("mistake", "status"), [({}, "successful"), ({"sglang_wait_timeout": "long"}, "failed")])
def test_a_job_shows_the_plan_or_the_finding(mistake: dict[str, str], status: str, tmp_path: Path) -> None:
    done, output = awx_job.run(
        tmp_path, "playbooks/plan.yml", ["inventory/4x-gb10-switch"], {"profile": "glm-4.7", **mistake}, ["-t", "plan"]
    )
    assert done == status, output
    shown = " ".join(output.split())
    assert ("sglang_wait_timeout = 'long'" in shown) is bool(mistake)
    assert ("glm-4.7" in shown) is not bool(mistake)
