# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the survey for AWX asks only for what the playbooks read, and that its defaults can be planned.

tests/lab/test_awx.py runs site as a job.
"""

import json
from pathlib import Path

import awx_job
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import load_known

ROOT = Path(__file__).resolve().parents[3]
ASKED = json.loads((ROOT / "docs" / "awx" / "survey.json").read_text(encoding="utf-8"))["spec"]


def test_a_question_sets_a_short_name_with_all_its_choices() -> None:
    known = load_known().command_line
    for question in ASKED:
        assert question.get("choices") == known[question["variable"]].get("choices"), question["variable"]


def test_a_job_with_the_defaults_of_the_survey_shows_the_one_mistake_of_its_variables(tmp_path: Path) -> None:
    extra = {question["variable"]: question["default"] for question in ASKED} | {"sglang_wait_timeout": "long"}
    done, output = awx_job.run(tmp_path, "playbooks/plan.yml", ["inventory/4x-gb10-switch"], extra, ["-t", "plan"])
    said = " ".join(output.split())
    assert done == "failed", output
    assert "Nothing was changed: 1 error," in said
    assert "sglang_wait_timeout = 'long'" in said
