# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every form of NCCL's statements, every log format and every cause; cases.txt has the expected results.

A case is ``### what it shows``, ``=== verdict class evidence version pass|fail channels [cause]`` and its log; ``~`` is
a blank inside a word. In NCCL's own files, an excerpt proves nothing: see test_nccl_starts.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.expectation import judge_log
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog

FIXTURE = Path(__file__).parents[3] / "fixtures" / "nccl" / "cases.txt"


@dataclass(frozen=True)
class Case:
    title: str
    verdict: str
    transport_class: str
    evidence: str
    version: str
    passes: str
    channels: dict[str, dict[str, int]]
    cause: str
    log: str


def cases() -> list[Case]:
    found = []
    for block in FIXTURE.read_text(encoding="utf-8").split("### ")[1:]:
        title, expected, log = block.split("\n", 2)
        verdict, kind, evidence, version, passes, rest = expected.removeprefix("=== ").split(" ", 5)
        channels, end = json.JSONDecoder().raw_decode(rest)
        cause = rest[end:].strip()
        version = "" if version == "-" else version
        found.append(
            Case(
                title,
                verdict.replace("~", " "),
                kind,
                evidence,
                version,
                passes,
                channels,
                cause,
                log,
            )
        )
    return found


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_case(case: Case, ending: str) -> None:
    data = case.log.replace("\n", ending).encode()
    report = judge_log(NcclLog().read(io.BytesIO(data).read), "log")
    verdict = report.verdict
    assert (verdict.verdict, verdict.transport_class, verdict.evidence) == (
        case.verdict,
        case.transport_class,
        case.evidence,
    )
    assert report.channels == case.channels
    assert report.satisfied is (case.passes == "pass"), report.failures
    if case.version:
        assert report.version == case.version
    telling = [cause for cause in report.causes if cause["confidence"] >= 0.3]
    if case.cause:
        assert telling[0]["id"] == case.cause
        assert telling[0]["line"].strip() in case.log
    else:
        assert [cause["id"] for cause in telling if cause["kind"] != "fallback"] == []
