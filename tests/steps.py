#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the steps of tests/steps.yml, and print what each took, beside the record.

A step is named as slower if it took a third more CPU time than in the record: other work on the machine changes the
seconds much more. With RECORD_STEPS=1 a run that passed writes its record.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import yaml

TOP = Path(__file__).resolve().parents[1]
STEPS = TOP / "tests" / "steps.yml"
RECORD = TOP / "tests" / "record" / "steps.json"
SLOWER = 4 / 3
# Below this many CPU seconds, a third more is noise.
NOISE_S = 5
PROGRESS_S = 30


class Step(TypedDict):
    """An entry of tests/steps.yml."""

    name: str
    purpose: str
    run: str
    beside: NotRequired[bool]
    quick: NotRequired[bool]


class Took(TypedDict):
    """What a step took, in seconds."""

    seconds: int
    cpu: int


def wait(process: subprocess.Popen[bytes]) -> tuple[int, Took]:
    """Return the exit status of a step, and what its programs took."""
    begun = time.monotonic()
    while True:
        try:
            _pid, status, used = os.wait4(process.pid, 0)
            break
        except KeyboardInterrupt:  # the step has the signal too, and removes what it made
            continue
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.monotonic() - begun, used.ru_utime + used.ru_stime
    return process.returncode, Took(seconds=round(seconds), cpu=round(cpu))


def start(step: Step, **options: Any) -> subprocess.Popen[bytes]:
    """Start the programs of a step."""
    return subprocess.Popen(["bash", "-euo", "pipefail", "-c", step["run"]], cwd=TOP, **options)


class Beside(threading.Thread):
    """Steps that run beside the others, one after another, each with its output in a file and a process group."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(daemon=True)
        self.waiting = {step["name"]: queue.Queue[tuple[int, Took]]() for step in steps}
        self.outputs = tempfile.TemporaryDirectory()
        self.steps = steps
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = threading.Lock()

    def run(self) -> None:
        """Run the steps, until `end` is called."""
        for step in self.steps:
            with self.ended, Path(self.outputs.name, step["name"]).open("wb") as output:
                self.process = start(step, stdout=output, stderr=subprocess.STDOUT, process_group=0)
            self.waiting[step["name"]].put(wait(self.process))

    def result(self, name: str) -> tuple[int, Took]:
        """Wait for a step, print its output, and return what `wait` returns."""
        for waited in itertools.count(PROGRESS_S, PROGRESS_S):
            try:
                result = self.waiting[name].get(timeout=PROGRESS_S)
                break
            except queue.Empty:
                print(f"... {name}: waited {waited} s", flush=True)
        sys.stdout.buffer.write(Path(self.outputs.name, name).read_bytes())
        return result

    def end(self) -> None:
        """End the programs of the step that runs, and start no other."""
        self.ended.acquire()
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)


def run(name: str, steps: list[Step]) -> tuple[int, dict[str, Took]]:
    """Run steps until one fails; return its exit status, and what each took."""
    beside = Beside([step for step in steps if step.get("beside")])
    beside.start()
    taken: dict[str, Took] = {}
    for step in steps:
        print(f"==> {name} {step['name']}: {step['purpose']}", flush=True)
        status, taken[step["name"]] = beside.result(step["name"]) if step.get("beside") else wait(start(step))
        if status:
            break
    beside.end()
    return status, taken


def slower(steps: dict[str, Took], record: dict[str, Took]) -> list[str]:
    """Return the names of the steps that took a third more CPU time than in the record."""
    return [
        name
        for name, step in steps.items()
        if name in record and step["cpu"] > max(record[name]["cpu"] * SLOWER, record[name]["cpu"] + NOISE_S)
    ]


def table(steps: dict[str, Took], record: dict[str, Took]) -> Iterator[str]:
    """Yield the lines that a run prints at its end."""
    width = max(map(len, steps), default=0)
    yield f"{'step':{width}}  seconds  CPU seconds  in the record"
    for name, step in steps.items():
        known = str(record[name]["cpu"]) if name in record else "-"
        yield f"{name:{width}}  {step['seconds']:7}  {step['cpu']:11}  {known:>13}"
    for name in slower(steps, record):
        yield f"SLOWER: {name} took {steps[name]['cpu']} CPU seconds, {record[name]['cpu']} in the record."


def write(run: str, steps: dict[str, Took], record: dict[str, dict[str, Took]]) -> None:
    """Put the steps of a run into the record, a line per step."""
    runs = {**record, run: steps}
    kept = []
    for name in sorted(runs):
        lines = (f"    {json.dumps(step)}: {json.dumps(took)}" for step, took in runs[name].items())
        kept.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    RECORD.write_text("{\n" + ",\n".join(kept) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Run the command line."""
    runs: dict[str, list[Step]] = yaml.safe_load(STEPS.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=runs)
    parser.add_argument("--quick", action="store_true", help="only the steps that take seconds")
    options = parser.parse_args()
    steps = [step for step in runs[options.run] if step.get("quick") or not options.quick]
    record: dict[str, dict[str, Took]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    status, taken = run(options.run, steps)
    print("\n".join(table(taken, record.get(options.run, {}))))
    if status:
        print(f"==> {options.run} failed in step {list(taken)[-1]}")
    else:
        print(f"==> all {len(taken)} steps of {options.run} passed")
        if os.environ.get("RECORD_STEPS") == "1" and not options.quick:
            write(options.run, taken, record)
    return status


if __name__ == "__main__":
    sys.exit(main())
