# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to damage logs, and verdicts that damaged logs must never get."""

import io
import re
from pathlib import Path
from random import Random

from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nccl"
WORDS = (
    b"NET/",
    b"IB",
    b"Socket",
    b" via ",
    b"NCCL INFO ",
    b"NCCL WARN ",
    b"\n",
    b"\r",
    b"\x1b[0m",
    b"\\u003e",
    b"\x00",
    b"\xff",
)


def read(data: bytes) -> Report:
    """Judge a log with the default expectation."""
    return Report(NcclLog().read(io.BytesIO(data).read), "log")


def seeds() -> list[bytes]:
    """Return all logs of the fixtures, real ones and cases."""
    cases = (FIXTURES / "cases.txt").read_text(encoding="utf-8").split("### ")[1:]
    return [p.read_bytes() for p in sorted((FIXTURES / "real").glob("*.log"))] + [
        case.split("\n", 2)[2].encode() for case in cases
    ]


def mutate(data: bytes, other: bytes, chance: Random) -> bytes:
    """Return ``data`` after one to four accidents: cut, torn, doubled, shuffled, spliced, overwritten."""
    for _unused in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.randrange(1, 200))
        kind = chance.randrange(7)
        if kind == 0:
            data = data[:start]
        elif kind == 1:
            data = data[:start] + b"\n" + data[start:]
        elif kind == 2:
            data = data[:start] + data[end:]
        elif kind == 3:
            data = data[:end] + data[start:end] + data[end:]
        elif kind == 4:
            lines = data.splitlines(keepends=True)
            chance.shuffle(lines)
            data = b"".join(lines)
        elif kind == 5:
            data = data[:start] + other[chance.randrange(len(other) + 1) :][:2000] + data[start:]
        else:
            data = data[:start] + chance.choice(WORDS) + data[end:]
    return data


# Evidence that every pass needs, searched with another pattern than that of the reader.
RDMA_CHANNEL = re.compile(rb"via NET/[A-Za-z][^/\n]*/\d")


def broken_promise(data: bytes, report: Report) -> str:
    """Return why a judgement is wrong for any log, or an empty string."""
    if report.satisfied and not RDMA_CHANNEL.search(data):
        return "a pass without a channel line"
    if report.satisfied and (report.verdict.transport_class, report.verdict.evidence) != ("rdma", "channels"):
        return f"a pass with {report.verdict}"
    if report.satisfied is bool(report.failures):
        return "failures and satisfaction disagree"
    return "" if set(report.as_dict()) >= {"verdict", "evidence", "channels", "causes", "msg"} else "keys are missing"
