# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test scripts/nccl_verdict.py as a user without Ansible runs it."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TCP = ROOT / "tests" / "unit" / "fixtures" / "nccl" / "real" / "twohosts-socket.rank0.log"
IB = (
    b"s1:1:1 [0] NCCL INFO Using network IB\n"
    b"s1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId f000 - Init COMPLETE\n"
    b"s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
)
KEYS = {"file", "verdict", "transport_class", "evidence", "channels", "nccl_version", "causes"}


def run(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(ROOT / "scripts" / "nccl_verdict.py"), *words]
    return subprocess.run(command, input=given, capture_output=True, check=False)


def test_json_has_one_object_per_file_and_the_exit_status_covers_all(tmp_path: Path) -> None:
    good, packed = tmp_path / "rank0.log", tmp_path / "rank1.log.gz"
    good.write_bytes(IB)
    packed.write_bytes(gzip.compress(IB))
    done = run("--json", str(good), str(packed))
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert [entry["file"] for entry in found] == [str(good), str(packed)]
    assert all(set(entry) >= KEYS for entry in found)
    mixed = run("--json", str(good), str(TCP))
    assert mixed.returncode == 1
    tcp = json.loads(mixed.stdout)[1]
    assert (tcp["verdict"], tcp["transport_class"], tcp["evidence"]) == ("socket", "tcp", "channels")
    assert tcp["channels"] == {"Socket": {"0": 10}}
    assert tcp["nccl_version"] == "2.28.9+cuda13.0"
    assert tcp["causes"][0]["remedy"]


def test_an_expectation_of_socket_reverses_the_verdict() -> None:
    assert run("--expect", "Socket", "--nodes", "2", str(TCP)).returncode == 0
    assert run("--expect", "Socket", "--nodes", "3", str(TCP)).returncode == 1


def test_standard_input_and_a_line_for_people() -> None:
    done = run("-", given=IB)
    verdict, note = done.stdout.splitlines()
    assert (done.returncode, verdict) == (0, b"ok    -: ib (NET/IB/0 x1)")
    assert note.startswith(b"note: This is a text: whoever can make a server print something can forge it. ")
    (entry,) = json.loads(run("--json", "-", given=IB).stdout)
    assert (entry["source"], entry["remark"]) == ("text", note.decode().removeprefix("note: "))
    assert run("-", given=b"nothing\n").stdout.startswith(b"FAIL  -: unknown (none): nothing in the log says")


def test_a_file_that_cannot_be_read_fails(tmp_path: Path) -> None:
    done = run(str(tmp_path / "missing.log"), "-", given=IB)
    assert done.returncode == 2
    assert b"missing.log" in done.stderr
    (tmp_path / "torn.gz").write_bytes(gzip.compress(IB * 50)[:-20])
    done = run("--json", str(tmp_path / "torn.gz"), str(tmp_path / "missing.log"), "-", given=IB)
    found = json.loads(done.stdout)
    assert [(entry["satisfied"], "error" in entry) for entry in found] == [(False, True), (False, True), (True, False)]


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(IB),
        lzma.compress(IB),
        bz2.compress(IB),
        IB.decode().encode("utf-16"),
        IB.decode().encode("utf-8-sig"),
    ],
    ids=["gzip", "xz", "bzip2", "utf-16", "utf-8 with a mark"],
)
def test_packed_logs_are_read_from_files_and_standard_input(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    assert run(str(tmp_path / "log")).returncode == 0
    assert run("-", given=data).returncode == 0


def test_a_log_cannot_write_over_its_verdict_on_a_terminal(tmp_path: Path) -> None:
    forged = IB.replace(b"IB", b"A\rok    log ib x4\x08\x1b]0;t\x07")
    done = run("-", given=forged)
    assert done.returncode == 1
    assert b"A?ok    log ib x4??]0;t?" in done.stdout
    assert not [byte for byte in done.stdout if byte < 32 and byte != ord("\n")]
    missing = run(str(tmp_path / "no\rok"))
    assert b"no?ok: " in missing.stderr


def test_zstd_is_named() -> None:
    done = run("-", given=b"\x28\xb5\x2f\xfd\x00\x00")
    assert done.returncode == 2
    assert b"compressed with zstd" in done.stderr


def test_help_has_the_exit_status_and_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    assert b"Exit status: 0 every file" in run("--help").stdout
    (tmp_path / "log").write_bytes(IB)
    command = [sys.executable, str(ROOT / "scripts" / "nccl_verdict.py"), *[str(tmp_path / "log")] * 2000]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
