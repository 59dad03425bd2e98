#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the steps of tests/steps.yml, two at a time, and print what each took, beside the record.

A step that fails does not end those beside it, so one run shows all of their failures.

A step is named as slower if it took a third more CPU time than in the record: other work on the machine changes the
seconds much more. With RECORD_STEPS=1 a run that passed writes its record.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
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
# Most steps keep one core busy, and the smallest machine of the forge has two.
AT_ONCE = 2


class Step(TypedDict):
    """An entry of tests/steps.yml."""

    name: str
    purpose: str
    run: str
    alone: NotRequired[bool]
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


def together(name: str, steps: list[Step]) -> dict[str, tuple[int, Took]]:
    """Run steps, two at a time, each with its output in a file that is printed when the step has ended."""
    started: list[subprocess.Popen[bytes]] = []
    results = {}
    with tempfile.TemporaryDirectory() as outputs, ThreadPoolExecutor(AT_ONCE) as lanes:

        def work(step: Step) -> tuple[int, Took]:
            with Path(outputs, step["name"]).open("wb") as output:
                # A process group for each: an interrupt reaches also what the step has started, which cleans up.
                process = start(
                    step, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0
                )
            started.append(process)
            return wait(process)

        running = {lanes.submit(work, step): step for step in steps}
        begun = time.monotonic()
        try:
            while running:
                ended = futures.wait(running, PROGRESS_S, futures.FIRST_COMPLETED).done
                for future in ended:
                    step = running.pop(future)
                    results[step["name"]] = future.result()
                    print(f"==> {name} {step['name']}: {step['purpose']}", flush=True)
                    sys.stdout.buffer.write(Path(outputs, step["name"]).read_bytes())
                    sys.stdout.flush()
                if not ended:
                    names = ", ".join(step["name"] for future, step in running.items() if future.running())
                    print(f"... {names}: {time.monotonic() - begun:.0f} s after the start", flush=True)
        except KeyboardInterrupt:
            lanes.shutdown(wait=False, cancel_futures=True)
            for process in started:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGINT)
            raise
    return {step["name"]: results[step["name"]] for step in steps}


def run(name: str, steps: list[Step]) -> tuple[list[str], dict[str, Took]]:
    """Run steps until some fail; return their names, and what each step took."""
    taken: dict[str, Took] = {}
    failed: list[str] = []
    for alone, each in itertools.groupby(steps, key=lambda step: step.get("alone", False)):
        if failed:
            break
        if alone:
            results = {}
            for step in each:
                print(f"==> {name} {step['name']}: {step['purpose']}", flush=True)
                results[step["name"]] = wait(start(step))
                if results[step["name"]][0]:
                    break
        else:
            results = together(name, list(each))
        taken |= {step: took for step, (_status, took) in results.items()}
        failed += [step for step, (status, _took) in results.items() if status]
    return failed, taken


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
    try:
        failed, taken = run(options.run, steps)
    except KeyboardInterrupt:
        return 130
    print("\n".join(table(taken, record.get(options.run, {}))))
    if failed:
        print(f"==> {options.run} failed in: {', '.join(failed)}")
    else:
        print(f"==> all {len(taken)} steps of {options.run} passed")
        if os.environ.get("RECORD_STEPS") == "1" and not options.quick:
            write(options.run, taken, record)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
