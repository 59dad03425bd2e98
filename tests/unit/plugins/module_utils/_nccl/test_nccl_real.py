# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the verdict on recorded output of NCCL 2.28.9 and SGLang 0.5.16 on two GPUs, and of NCCL 2.32.3 on one."""

import gzip
import io
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import expand, open_log
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, Report

REAL = Path(__file__).parents[3] / "fixtures" / "nccl" / "real"
EXPECTED = {
    "p2p-nvlink": ("intra", "intra", "channels"),
    "shm": ("intra", "intra", "channels"),
    "twohosts-netib-forced": ("error", "unknown", "failure"),
    "twohosts-plugin-missing": ("socket", "tcp", "channels"),
    "twohosts-socket": ("socket", "tcp", "channels"),
    "twohosts-timestamps": ("socket", "tcp", "channels"),
    "twohosts-warn-only": ("unknown", "unknown", "none"),
    "sglang-0.5.16-tp2-base": ("socket", "tcp", "channels"),
    "sglang-0.5.16-tp2-eagle": ("socket", "tcp", "channels"),
    # Two ranks on one GPU: two hosts by NCCL_HOSTID, except for p2p.
    "nccl-2.32.3-groups": ("socket", "tcp", "channels"),
    "nccl-2.32.3-time-stamps": ("socket", "tcp", "channels"),
    "nccl-2.32.3-net-ib-forced": ("error", "unknown", "failure"),
    "nccl-2.32.3-p2p": ("intra", "intra", "channels"),
    "nccl-2.32.3-warn-only": ("unknown", "unknown", "none"),
}


def read(name: str, expect: Expectation | None = None) -> Report:
    with open_log(REAL / name) as stream:
        return Report(NcclLog().read(stream.read), name, expect)


@pytest.mark.parametrize("path", sorted(REAL.glob("*.log")), ids=lambda p: p.name)
def test_verdict_of_a_real_log(path: Path) -> None:
    report = read(path.name)
    verdict = report.verdict
    assert (verdict.verdict, verdict.transport_class, verdict.evidence) == EXPECTED[path.name.split(".rank")[0]]
    assert not report.satisfied
    if "warn-only.rank1" not in path.name:
        assert report.version == ("2.32.3+cuda13.4" if "2.32.3" in path.name else "2.28.9+cuda13.0")


@pytest.mark.parametrize("path", sorted(REAL.glob("*.log")), ids=lambda p: p.name)
def test_every_network_channel_line_is_counted(path: Path) -> None:
    lines = path.read_text(errors="replace").count("via NET/Socket/0")
    counted = sum(count for devices in read(path.name).channels.values() for count in devices.values())
    assert counted == lines


def test_all_communicators_of_a_rank_are_told_apart() -> None:
    (rank,) = read("twohosts-socket.rank0.log").as_dict()["ranks"]
    assert (rank["host"], rank["pid"], rank["rank"]) == ("vm", "894", 0)
    comms = [(c["nranks"], c["nodes"], c["complete"], c["connected"]) for c in rank["communicators"]]
    # The third one serves send and receive only and never builds a ring.
    assert comms == [(2, 2, True, True), (2, 2, True, True), (2, 2, True, False)]
    assert [c["channels"] for c in rank["communicators"]] == [
        {"Socket": {"0": 4}},
        {"Socket": {"0": 4}},
        {"Socket": {"0": 2}},
    ]


def test_the_causes_lead_to_the_remedy() -> None:
    forced = read("twohosts-netib-forced.rank0.log").causes
    assert forced[0]["id"] == "net_forced_missing"
    assert "Failed to initialize any NET plugin" in forced[0]["line"]
    forced = read("nccl-2.32.3-net-ib-forced.rank0.log").causes
    assert forced[0]["id"] == "net_forced_missing"
    assert "NCCL ATTN" in (REAL / "nccl-2.32.3-groups.rank0.log").read_text()
    assert read("nccl-2.32.3-groups.rank0.log").causes[0]["id"] == "no_rdma_device"
    assert read("nccl-2.32.3-groups.rank0.log").troubles == []
    socket = read("twohosts-socket.rank0.log").causes
    assert [cause["id"] for cause in socket] == ["no_rdma_device"]
    assert "privileged" in socket[0]["remedy"]


def test_single_node_is_fine_where_it_is_allowed() -> None:
    assert read("shm.rank0.log", Expectation(allow_intra=True)).satisfied
    assert read("twohosts-warn-only.rank0.log", Expectation(allow_unknown=True)).satisfied
    assert read("twohosts-socket.rank0.log", Expectation(networks=("Socket",), nodes=2, complete=True)).satisfied


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
