# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Classify a failed cell by what its ranks logged.

The classes with their patterns and remedies are data: plugins/sweeps/data/failures.yml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from .._load.judge import Status
from .._paths import SWEEPS
from .._yaml import read_yaml

FailureKind = Literal[
    "rejected_argument",
    "fake_tensor",
    "illegal_instruction",
    "invalid_configuration",
    "kernel_missing",
    "out_of_memory",
    "nan",
    "draft_loader",
    "assertion",
    "nccl",
    "infrastructure",
    "timeout",
    "transport",
    "crash",
]
CellStatus = Status | FailureKind | Literal["duplicate"]


@dataclass(frozen=True)
class Failure:
    """The class of a failure, the log line that shows it, and what to do."""

    kind: FailureKind
    line: str
    remedy: str


@cache
def signatures() -> list[tuple[re.Pattern[str], FailureKind, str]]:
    """Return pattern, class and remedy of every known failure; earlier classes take precedence."""
    entries = read_yaml(SWEEPS / "data/failures.yml")
    return [(re.compile("|".join(e["patterns"]), re.IGNORECASE), e["kind"], e["remedy"]) for e in entries]


CONSEQUENCES: frozenset[FailureKind] = frozenset({"nccl", "infrastructure", "timeout"})
"""The classes that the surviving ranks report when another rank has died, whatever the cause."""

CRASH = re.compile(
    r"CUDA error: |Segmentation fault|core dumped|Fatal Python error|"
    r"(?:^|\]:?)\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)"
)
"""Lines with which a process reports its own death: a signal, the CUDA runtime, or the last line of a traceback."""

ECHO = re.compile(r"scheduler (?:is dead|died)|Initialization failed|EOFError|BrokenPipeError")
"""Lines with which SGLang's other processes report a dead one, without its cause (engine.py, http_server.py)."""


def quote(line: str) -> str:
    """Return a log line in the form in which records quote it."""
    return line.strip()[:500]


def crash_line(lines: Iterable[str]) -> str:
    """Return the first line that reports the process's own death and matches no signature; else an empty string."""
    return next((n for n in lines if CRASH.search(n) and not ECHO.search(n) and classify([n]) is None), "")


def classify(lines: Iterable[str]) -> Failure | None:
    """Return the failure that explains the others, or None if the lines show none.

    The order of the classes decides, not the order of the lines: a rejected argument on one rank explains the broken
    connections of the other ranks, never the reverse.
    """
    # "raise …" is a source line in a traceback; the message itself follows below it.
    said = [line for line in lines if not line.lstrip().startswith("raise ")]
    for pattern, kind, remedy in signatures():
        for line in said:
            if pattern.search(line):
                return Failure(kind, quote(line), remedy)
    return None
