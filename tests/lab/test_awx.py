# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbook site as a job of AWX, with the sudo password as the answer to Ansible's question, on two nodes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from labcommand import CHECKOUT, LabCommand

COVERS = (
    "playbooks/site.yml",
    "plugins/callback",
    "plugins/plugin_utils/_controller",
    "plugins/plugin_utils/_bench",
    "tests/unit/samples/awx_job.py",
)

JOB = CHECKOUT / "tests" / "unit" / "samples" / "awx_job.py"


def test_a_job_deploys_and_serves(make_lab: Callable[..., LabCommand], tmp_path: Path) -> None:
    lab = make_lab()
    lab.up(2, kubernetes=True)
    job = {
        "inventories": [str(lab.state / "inventory")],
        "extra": {
            "gb10_results_dir": str(lab.results),
            "serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}},
        },
        "become_password": (lab.state / "become-password").read_text().strip(),
    }
    done = lab.run(sys.executable, JOB, tmp_path, "playbooks/site.yml", json.dumps(job))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "curl" in done.stdout, done.stdout[-3000:]
