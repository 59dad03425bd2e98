# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which files count as NCCL's own."""

import gzip
import io
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl import sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import SourceError, written_by_nccl

REAL = Path(__file__).parents[3] / "fixtures" / "nccl" / "real"
NCCL = re.compile(rb" NCCL (?:INFO|WARN|ATTN) |^NCCL version|^\n")
INFO = "host:1:1 [0] NCCL INFO Using network IB\n"
STAMPED = "\n[2026-11-22 12:00:00] host:1:7 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event\n"


def test_all_lines_that_nccl_was_seen_to_write_are_its_own_and_recorded_outputs_are_not(tmp_path: Path) -> None:
    for recorded in sorted(REAL.glob("*.log")):
        assert not written_by_nccl(recorded)
        path = tmp_path / recorded.name
        lines = recorded.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line for line in lines if NCCL.search(line)))
        assert written_by_nccl(path) == bool(path.read_bytes()), recorded


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (INFO + STAMPED + INFO, True),
        ("NCCL version 2.28.9+cuda13.0\n" + INFO, True),
        (INFO + "[2026-11-22 12:00:00 TP0] Prefill batch\n", False),
        ("2026-11-22T12:00:00Z stdout F " + INFO, False),
        ('prompt: "' + INFO, False),
        (INFO + "INFO: 127.0.0.1:40000 - GET /health\n", False),
        ("", False),
        ("\n\n", False),
    ],
)
def test_a_file_with_other_lines_is_a_text(tmp_path: Path, text: str, own: bool) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert written_by_nccl(path) is own
    for written in (gzip.compress(text.encode()), text.encode("utf-16"), gzip.compress(text.encode("utf-8-sig"))):
        path.write_bytes(written)
        assert written_by_nccl(path) is own


def test_the_kept_lines_of_a_source_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_KEPT_BYTES", 2 * len(INFO))
    kept: list[bytes] = []
    # Far apart, so that each line is kept for itself.
    text = f"{INFO}{'x' * 9999}\n" * 9
    sources.read_source("a", [nullcontext(io.BytesIO(text.encode()).read)], kept, NcclLog())
    assert kept == [INFO.encode()] * 2


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(INFO.encode())[:-9])
    with pytest.raises(SourceError, match=r"log\.gz can't be read"):
        written_by_nccl(path)
