# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what tests/all and tests/lint print and record about their steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import steps

TESTS = Path(__file__).resolve().parents[1]
RUN = """set -euo pipefail
. tests/steps mine
step quick "is over at once"
true
step busy "takes CPU time"
python3 -c 'import time; end = 1.2
while time.process_time() < end: pass'
{last}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("steps", "plays/steps.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TESTS / name, tmp_path / "tests" / name)
    (tmp_path / "tests" / "record").mkdir()
    return tmp_path


def run(checkout: Path, last: str = "true", **environment: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["bash", "-c", RUN.format(last=last)],
        cwd=checkout, env=os.environ | {"RECORD_STEPS": ""} | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


def recorded(checkout: Path) -> dict[str, dict[str, dict[str, int]]]:
    return dict(json.loads((checkout / "tests" / "record" / "steps.json").read_text()))


def test_the_cpu_time_of_each_step_is_printed_and_recorded_if_asked(checkout: Path) -> None:
    status, lines = run(checkout)
    assert (status, lines[-1]) == (0, "==> all 2 steps of mine passed")
    assert [line.split()[0::2] for line in lines[-3:-1]] == [["quick", "0"], ["busy", "1"]]
    assert not list((checkout / "tests" / "record").iterdir())
    run(checkout, RECORD_STEPS="1")
    assert {name: step["cpu"] for name, step in recorded(checkout)["mine"].items()} == {"quick": 0, "busy": 1}


def test_the_step_that_failed_is_named_and_nothing_is_recorded(checkout: Path) -> None:
    status, lines = run(checkout, "exit 3", RECORD_STEPS="1")
    assert (status, lines[-1]) == (3, "==> mine failed in step busy")
    assert not list((checkout / "tests" / "record").iterdir())


def test_the_record_keeps_other_runs_and_steps(checkout: Path) -> None:
    before = {"lint": {"ruff": {"seconds": 1, "cpu": 2}}, "mine": {"slow": {"seconds": 3, "cpu": 4}}}
    (checkout / "tests" / "record" / "steps.json").write_text(json.dumps(before))
    run(checkout, RECORD_STEPS="1")
    after = recorded(checkout)
    assert (after["lint"], after["mine"]["slow"], len(after["mine"])) == (before["lint"], before["mine"]["slow"], 3)


@pytest.mark.parametrize(("now", "named"), [(40, False), (41, True), (29, False)])
def test_a_step_that_took_a_third_more_cpu_time_is_named(now: int, named: bool) -> None:
    found = {"unit": steps.Step(seconds=90, cpu=now), "new": steps.Step(seconds=9, cpu=9)}
    record = {"unit": steps.Step(seconds=10, cpu=30)}
    warning = f"SLOWER: unit took {now} CPU seconds, 30 in the record."
    assert (warning in list(steps.table(found, record))) is named


def test_a_short_step_is_not_named_for_noise() -> None:
    assert not steps.slower({"yamllint": steps.Step(seconds=9, cpu=7)}, {"yamllint": steps.Step(seconds=3, cpu=2)})


def test_times_in_a_locale_with_a_comma_are_read() -> None:
    found = dict(steps.parse(["unit\t3\t0m1,500s 0m0,600s", "lint\t9\t1m2,100s 0m1,000s"]))
    assert found == {"unit": {"seconds": 3, "cpu": 2}, "lint": {"seconds": 9, "cpu": 61}}
