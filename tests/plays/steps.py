#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print what each step of tests/all or tests/lint took, beside the record.

Standard input has a line per step: its name, its seconds, and the CPU time of all programs that the run started until
its end, as `times` of bash prints it. A step is named as slower if it took a third more CPU time than in the record:
other work on the machine changes the seconds much more. With RECORD_STEPS=1 a run that passed writes its record.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

RECORD = Path(__file__).resolve().parents[1] / "record" / "steps.json"
SLOWER = 4 / 3
# Below this many CPU seconds, a third more is noise.
NOISE_S = 5


class Step(TypedDict):
    """What a step took, in seconds."""

    seconds: int
    cpu: int


def parse(lines: Iterable[str]) -> Iterator[tuple[str, Step]]:
    """Yield the name and the times of each step. Raise ValueError for a line of another form."""
    before = 0.0
    for line in lines:
        name, seconds, times = line.rstrip("\n").split("\t")
        parts = re.findall(r"(\d+)m([\d.]+)s", times.replace(",", "."))  # the comma of some locales
        spent = sum(60 * int(minutes) + float(rest) for minutes, rest in parts)
        yield name, Step(seconds=int(seconds), cpu=round(spent - before))
        before = spent


def slower(steps: dict[str, Step], record: dict[str, Step]) -> list[str]:
    """Return the names of the steps that took a third more CPU time than in the record."""
    return [
        name
        for name, step in steps.items()
        if name in record and step["cpu"] > max(record[name]["cpu"] * SLOWER, record[name]["cpu"] + NOISE_S)
    ]


def table(steps: dict[str, Step], record: dict[str, Step]) -> Iterator[str]:
    """Yield the lines that a run prints at its end."""
    width = max(map(len, steps), default=0)
    yield f"{'step':{width}}  seconds  CPU seconds  in the record"
    for name, step in steps.items():
        known = str(record[name]["cpu"]) if name in record else "-"
        yield f"{name:{width}}  {step['seconds']:7}  {step['cpu']:11}  {known:>13}"
    for name in slower(steps, record):
        yield f"SLOWER: {name} took {steps[name]['cpu']} CPU seconds, {record[name]['cpu']} in the record."


def write(run: str, steps: dict[str, Step], record: dict[str, dict[str, Step]]) -> None:
    """Put the steps of a run into the record, a line per step."""
    runs = {**record, run: record.get(run, {}) | steps}
    kept = []
    for name in sorted(runs):
        lines = (f"    {json.dumps(step)}: {json.dumps(times)}" for step, times in runs[name].items())
        kept.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    RECORD.write_text("{\n" + ",\n".join(kept) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Run the command line: the name of the run, and its exit status."""
    run, status = sys.argv[1:]
    record: dict[str, dict[str, Step]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    steps = dict(parse(sys.stdin))
    print("\n".join(table(steps, record.get(run, {}))))
    if status == "0":
        print(f"==> all {len(steps)} steps of {run} passed")
        if os.environ.get("RECORD_STEPS") == "1":
            write(run, steps, record)
    else:
        print(f"==> {run} failed in step {list(steps)[-1]}")


if __name__ == "__main__":
    main()
