# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what `make lint` and `make test` print and record about their steps."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import steps
import yaml

BUSY = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.55: pass'"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "record").mkdir(parents=True)
    shutil.copy(steps.TOP / "tests" / "steps.py", tmp_path / "tests")
    return tmp_path


def run(checkout: Path, *more: dict[str, object], **environment: str) -> tuple[int, list[str]]:
    mine = [{"name": "quick", "run": "true", "quick": True}, *more]
    (checkout / "tests" / "steps.yml").write_text(yaml.safe_dump({"mine": [{"purpose": "…"} | step for step in mine]}))
    done = subprocess.run(
        [sys.executable, "tests/steps.py", "mine"],
        cwd=checkout, env=os.environ | {"RECORD_STEPS": ""} | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


def recorded(checkout: Path) -> dict[str, dict[str, dict[str, int]]]:
    return dict(json.loads((checkout / "tests" / "record" / "steps.json").read_text()))


def test_the_cpu_time_of_each_step_is_printed_and_recorded_if_asked(checkout: Path) -> None:
    busy = {"name": "busy", "run": BUSY}
    status, lines = run(checkout, busy)
    assert (status, lines[-1]) == (0, "==> all 2 steps of mine passed")
    assert [line.split()[0::2] for line in lines[-3:-1]] == [["quick", "0"], ["busy", "1"]]
    assert not list((checkout / "tests" / "record").iterdir())
    run(checkout, busy, RECORD_STEPS="1")
    assert {name: step["cpu"] for name, step in recorded(checkout)["mine"].items()} == {"quick": 0, "busy": 1}


def test_two_steps_run_at_a_time_and_the_output_of_each_is_printed_whole(checkout: Path) -> None:
    text = "touch {0}; until test -e {1}; do sleep 0.02; done; echo {0}; sleep 0.3; echo {0} >&2"
    words = [{"name": one, "run": text.format(one, other)} for one, other in (("one", "two"), ("two", "one"))]
    status, lines = run(checkout, *words)
    assert (status, lines[-1]) == (0, "==> all 3 steps of mine passed")
    said = [line for line in lines if line in ("one", "two")]
    assert said in (["one", "one", "two", "two"], ["two", "two", "one", "one"])


def test_a_step_that_fails_ends_neither_the_one_beside_it_nor_those_that_wait(checkout: Path) -> None:
    broken = {"name": "broken", "run": "touch begun; false"}
    slow = {"name": "slow", "run": "until test -e begun; do sleep 0.02; done; sleep 0.5; touch over"}
    alone = {"name": "alone", "run": "touch alone", "alone": True}
    status, lines = run(checkout, broken, slow, {"name": "next", "run": "false"}, alone)
    assert (status, lines[-1]) == (1, "==> mine failed in: broken, next")
    assert (checkout / "over").exists()
    assert not (checkout / "alone").exists()


def test_a_step_alone_waits_for_those_before_it_and_the_next_wait_for_it(checkout: Path) -> None:
    before = {"name": "before", "run": "sleep 0.5; echo 1 >>order"}
    alone = {"name": "alone", "run": "sleep 0.5; echo 2 >>order", "alone": True}
    assert run(checkout, before, alone, {"name": "after", "run": "echo 3 >>order"})[0] == 0
    assert (checkout / "order").read_text().split() == ["1", "2", "3"]


@pytest.mark.parametrize(("now", "named"), [(40, False), (41, True), (29, False)])
def test_a_step_that_took_a_third_more_cpu_time_is_named(now: int, named: bool) -> None:
    found = {"unit": steps.Took(seconds=90, cpu=now), "new": steps.Took(seconds=9, cpu=9)}
    record = {"unit": steps.Took(seconds=10, cpu=30)}
    warning = f"SLOWER: unit took {now} CPU seconds, 30 in the record."
    assert (warning in list(steps.table(found, record))) is named
