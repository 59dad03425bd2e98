# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every form of NCCL's statements, every log format and every cause; cases.txt has the expected results.

A case is ``### what it shows``, ``=== verdict class evidence version pass|fail channels [cause]`` and its log; ``~`` is
a blank inside a word. In NCCL's own files, an excerpt proves nothing: see test_nccl_judged.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report

FIXTURE = Path(__file__).parents[3] / "fixtures" / "nccl" / "cases.txt"


def cases() -> Iterator[Any]:
    for block in FIXTURE.read_text(encoding="utf-8").split("### ")[1:]:
        title, expected, log = block.split("\n", 2)
        *verdict, version, passes, rest = expected.removeprefix("=== ").split(" ", 5)
        channels, end = json.JSONDecoder().raw_decode(rest)
        verdict = [word.replace("~", " ") for word in verdict]
        yield pytest.param(verdict, version, passes == "pass", channels, rest[end:].strip(), log, id=title)


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(("verdict", "version", "passes", "channels", "cause", "log"), [*cases()])
def test_case(
    verdict: list[str], version: str, passes: bool, channels: dict[str, Any], cause: str, log: str, ending: str
) -> None:
    report = Report(NcclLog().read(io.BytesIO(log.replace("\n", ending).encode()).read), "log")
    assert (list(report.verdict), report.channels) == (verdict, channels)
    assert report.satisfied is passes, report.failures
    assert version in ("-", report.version)
    telling = [each for each in report.causes if each["confidence"] >= 0.3]
    if cause:
        assert telling[0]["id"] == cause
        assert telling[0]["line"].strip() in log
    else:
        assert [each["id"] for each in telling if each["kind"] != "fallback"] == []
