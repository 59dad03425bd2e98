# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the verdict on recorded output of NCCL 2.28.9 and SGLang 0.5.16 on two GPUs, and of NCCL 2.32.3 on one."""

import gzip
import io
from pathlib import Path

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import expand, open_log
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, Report

REAL = Path(__file__).parents[3] / "fixtures" / "nccl" / "real"


def read(name: str, expect: Expectation | None = None) -> Report:
    with open_log(REAL / name) as stream:
        return Report(NcclLog().read(stream.read), name, expect)


def test_verdicts_on_real_logs_are_as_stored() -> None:
    """Two ranks of 2.32.3 are on one GPU: two hosts by NCCL_HOSTID, except for p2p."""
    found = {}
    for path in sorted(REAL.glob("*.log")):
        report = read(path.name)
        lines = path.read_text(errors="replace").count("via NET/Socket/0")
        assert sum(count for devices in report.channels.values() for count in devices.values()) == lines
        causes = [f"{each['id']} {each['confidence']}, {each['line'].strip()[-60:]!r}" for each in report.causes]
        # A communicator that serves send and receive only never builds a ring.
        comms = [
            f"rank {rank['rank']} of {rank['host']}:{rank['pid']}: {c['nranks']} ranks, {c['nodes']} nodes,"
            f" complete {c['complete']}, connected {c['connected']}, {c['channels']}"
            for rank in report.as_dict()["ranks"]
            for c in rank["communicators"]
        ]
        head = f"{', '.join(report.verdict)}, {report.version}, troubles {report.troubles}"
        found[path.name] = [head, *(f"- {text}" for text in report.failures), *causes, *comms]
    stored.compare("nccl_real", found)


def test_single_node_is_fine_where_it_is_allowed() -> None:
    assert read("shm.rank0.log", Expectation(allow_intra=True)).satisfied
    assert read("twohosts-warn-only.rank0.log", Expectation(allow_unknown=True)).satisfied
    assert read("twohosts-socket.rank0.log", Expectation(networks=("Socket",), nodes=2, complete=True)).satisfied
    assert "privileged" in read("twohosts-socket.rank0.log").causes[0]["remedy"]


def test_files_are_found_and_unpacked(tmp_path: Path) -> None:
    packed = tmp_path / "rank0.log.gz"
    packed.write_bytes(gzip.compress((REAL / "twohosts-socket.rank0.log").read_bytes()))
    (tmp_path / "directory.gz").mkdir()
    (named := tmp_path / "rank[1].log").touch()
    files, empty = expand([str(tmp_path / "*.gz"), str(packed), str(named), str(tmp_path / "none-*")])
    assert files == [packed, named]
    assert empty == [str(tmp_path / "none-*")]
    with open_log(packed) as stream:
        assert Report(NcclLog().read(stream.read), "x").verdict.verdict == "socket"


@pytest.mark.parametrize("size", [7, 64, 1000, 4096])
def test_chunk_borders_change_nothing(size: int) -> None:
    data = (REAL / "twohosts-socket.rank0.log").read_bytes()
    whole = Report(NcclLog().read(io.BytesIO(data).read), "x").as_dict()
    assert Report(NcclLog().read(io.BytesIO(data).read, size), "x").as_dict() == whole
