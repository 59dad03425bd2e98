# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what `make lint` and `make test` print and record about their steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import steps
import yaml

BUSY = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.7: pass'"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "record").mkdir(parents=True)
    shutil.copy(steps.TOP / "tests" / "steps.py", tmp_path / "tests")
    return tmp_path


def run(checkout: Path, *more: dict[str, object], **environment: str) -> tuple[int, list[str]]:
    mine = [{"name": "quick", "run": "true", "quick": True}, {"name": "busy", "run": BUSY}, *more]
    (checkout / "tests" / "steps.yml").write_text(yaml.safe_dump({"mine": [{"purpose": "…"} | step for step in mine]}))
    done = subprocess.run(
        [sys.executable, "tests/steps.py", "mine"],
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


def test_a_step_beside_the_others_is_printed_in_its_turn(checkout: Path) -> None:
    beside = {"name": "beside", "run": f"touch begun; {BUSY}; echo found >&2", "beside": True}
    status, lines = run(checkout, {"name": "other", "run": "test -e begun; echo other"}, beside)
    assert (status, lines[-1]) == (0, "==> all 4 steps of mine passed")
    assert [line for line in lines if line in ("other", "found")] == ["other", "found"]
    assert [line.split()[2] for line in lines if line.startswith(("busy ", "beside "))] == ["1", "1"]


def test_a_failure_ends_the_steps_beside_it(checkout: Path) -> None:
    slow = {"name": "slow", "run": "touch begun; sleep 60; touch over", "beside": True}
    begun = time.monotonic()
    broken = {"name": "broken", "run": "until test -e begun; do sleep 0.1; done; false"}
    assert run(checkout, broken, slow, {"name": "next", "run": "touch next", "beside": True})[0] == 1
    assert time.monotonic() - begun < 50
    assert not (checkout / "next").exists()


@pytest.mark.parametrize(("now", "named"), [(40, False), (41, True), (29, False)])
def test_a_step_that_took_a_third_more_cpu_time_is_named(now: int, named: bool) -> None:
    found = {"unit": steps.Took(seconds=90, cpu=now), "new": steps.Took(seconds=9, cpu=9)}
    record = {"unit": steps.Took(seconds=10, cpu=30)}
    warning = f"SLOWER: unit took {now} CPU seconds, 30 in the record."
    assert (warning in list(steps.table(found, record))) is named
