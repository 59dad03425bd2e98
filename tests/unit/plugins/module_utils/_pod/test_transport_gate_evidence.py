# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar of a rank reads of NCCL's files, how it judges them, and what it collects about a hang."""

import io
import itertools
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import expectation
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import Judgement, NcclFiles, opened
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from gate_rank import GATE, LINES, page_of
from sysfs_samples import mlx5_vf

RAIL = Rail("mlx0", "lo", "10.100.0.1", 1500)
# What NCCL 2.28.9 answered when rank 1 of four had been killed (tests/gpu/hang.py), without ranks 2 and 3; a comma is
# missing after the last "nvml_dev".
RAS = (Path(__file__).parents[3] / "fixtures/nccl/ras-2.28.9.txt").read_text()


def test_an_answer_without_an_end_is_cut_off_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow:
        """Sends one byte every three seconds."""

        limit = evidence._WAIT

        def settimeout(self, seconds: float) -> None:
            self.limit = seconds

        def recv(self, _size: int) -> bytes:
            clock[0] += min(3, self.limit)
            if self.limit < 3:
                raise TimeoutError
            assert clock[0] < 60
            return b"x"

    monkeypatch.setattr(evidence.time, "monotonic", lambda: clock[0])
    with pytest.raises(TimeoutError):
        evidence._everything(Slow())  # type: ignore[arg-type]
    assert clock == [evidence._WAIT]


def test_what_a_rank_tells_about_a_hang_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, counters = tmp_path / "logs", tmp_path / "class/infiniband/mlx0/ports/1/counters"
    for directory in (counters, logs / "1"):
        directory.mkdir(parents=True)
    (logs / "1/g-0-0.40").write_text("".join(f"line {number}\n" for number in range(9)))
    (logs / "1/g-0-0.41").write_text("x\n")
    (logs / "gpu.json").write_text('{"xid": {"31": 2}}')

    def count(more: int) -> None:
        for name, value in {"port_xmit_data": 100, "port_rcv_data": 100, "symbol_error": 3, "link_downed": 1}.items():
            (counters / name).write_text(f"{value + more * (name != 'link_downed')}\n")

    def answer() -> None:
        connection, _address = listening.accept()
        with connection:
            asked.append(connection.recv(999))
            connection.sendall(RAS.encode())

    count(0)
    asked, ask = list[bytes](), evidence.ask_nccl
    assert evidence._RAS == ("localhost", 28028)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        monkeypatch.setattr(evidence.time, "sleep", lambda _seconds: count(5))
        monkeypatch.setattr(evidence, "ask_nccl", lambda: ask(listening.getsockname()))
        monkeypatch.setattr(evidence, "down", lambda _rails, _root, rdma: ("lo has no carrier",) if rdma else ())
        thread = threading.Thread(target=answer)
        thread.start()
        status, text = evidence.Evidence(logs, (RAIL,), str(tmp_path)).answer()
        thread.join()
    told = json.loads(text)
    assert status == 200
    assert 0 <= time.time() - told.pop("at") < 600
    lines = [f"{name}: {json.dumps(told[name])}" for name in sorted(told)]
    stored.compare("hang_evidence", {"a rank": lines, "NCCL is asked": asked[0].decode().splitlines()})


def test_the_page_collects_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = evidence.Evidence(tmp_path, (), str(tmp_path))
    gate = sidecar.Gate("g", 0, ("g-0",), (), None, False, 9, 0, str(tmp_path))
    page = page_of(monkeypatch, gate, None, None, collector)
    inner: list[tuple[int, str]] = []

    def collect() -> dict[str, Any]:
        inner.append(page("/hang"))
        return {}

    monkeypatch.setattr(collector, "collect", collect)
    assert page("/hang") == (200, "{}")
    assert inner == [(429, "")]
    assert page("/metrics") == (200, "")


def test_rails_of_networks_that_others_made_are_what_the_pod_has(tmp_path: Path) -> None:
    mlx5_vf(tmp_path, address="127.0.0.1")
    (found,) = evidence.completed([Rail("", "lo", "", 0)], str(tmp_path))
    assert (found.device, found.interface, found.address) == ("rocep1s0f0v0", "lo", "127.0.0.1")
    assert found.mtu > 1500
    assert evidence.completed([RAIL], str(tmp_path)) == (RAIL,)
    (absent,) = evidence.completed([Rail("", "absent0", "", 0)], str(tmp_path))
    assert absent == Rail("", "absent0", "", 0)


# Looks in turn, each after files were written (=), appended to (+), given a time (@), moved (>), deleted (-) or made as
# directories (/); | ends a line.
LOOKS = {
    "lines are repeated once and whole, also of the same process of a later start": (
        " ; 1/; 1/h.40=one|tw 1/h.41=other|; 1/h.40+o|; ; -1 2/; 2/h.40=new|"
    ),
    "a file that was cut off is read from its beginning": "1/ 1/h.40=longer| 1/h.41=other|; 1/h.40=new|",
    "the next start has evidence of its own": "1/ 1/h.40=12345; 1/h.40=1234; -1 2/ 2/h.40=12345",
    "the process that wrote last is read last": "1/ 1/h.1000=x 1/h.999=x 1/h.1000@20 1/h.999@10",
    **{
        f"two files, {how}": f"1/ 1/h.40=12345 1/h.41=12345; {how}; "
        for how in (
            *("1/h.40=123456", "1/h.42=1", "1/h.42=", "1/h.40=1234", "-1/h.41", "-1/h.40 -1/h.41", "1/h.42/; -1/h.42"),
            # The old file keeps its inode, as it does while NCCL has it open.
            *("1/h.40>kept 1/h.40=123456", "9/", "9/ 10/", "a\nb/", "\u0663/"),
        )
    },
}


TIMES = itertools.count(1000)


def happen(base: Path, event: str) -> None:
    name, how, more = re.split(r"([=+@>]|$)", event, maxsplit=1)
    path = base / name.removeprefix("-")
    if name.startswith("-"):
        path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
    elif how == "@":
        os.utime(path, (int(more), int(more)))
    elif how == ">":
        path.rename(base / more)
    elif how:
        with path.open("w" if how == "=" else "a") as stream:
            stream.write(more.replace("|", "\n"))
        os.utime(path, (next(TIMES),) * 2)
    else:
        path.mkdir()


def test_what_is_read_of_nccl_s_files_is_as_stored(tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    for number, (title, course) in enumerate(LOOKS.items()):
        base, before = tmp_path / str(number), None
        base.mkdir()
        files = NcclFiles(base)
        for events in course.split("; "):
            for event in events.split(" "):
                happen(base, event) if event else None
            look, new = files.look(), b"".join(files.new_lines())
            news = "" if look.signature == before else f"{', '.join(path.name for path in look.files)} {new!r}"
            said = [f"{look.start or 'no start'}: {news or 'nothing new'}", *filter(None, [look.changed])]
            found.setdefault(ascii(title), []).append(f"{events!a} → {'; '.join(said)}")
            before = look.signature
    stored.compare("nccl_files", found)


def test_a_line_without_an_end_is_passed_on_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "h.40").write_bytes(b"x" * ((1 << 20) + 5))
    assert sum(map(len, NcclFiles(tmp_path).new_lines())) == 1 << 20


def test_links_and_pipes_that_the_server_makes_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("t0ken\n")
    logs = tmp_path / "logs"
    start = logs / "1"
    start.mkdir(parents=True)
    (logs / "9").symlink_to(secret)
    os.mkfifo(start / "pipe")
    (start / "token").symlink_to(secret / "token")
    files = NcclFiles(logs)
    assert (list(files.new_lines()), files.look().files) == ([], ())
    assert "directory" not in files.look().changed
    before = list(Path("/proc/self/fd").iterdir())
    # The server replaces the directory of its start after the sidecar has looked.
    with pytest.raises(OSError, match="9"), opened(logs / "9" / "token"):
        pass
    for name in ("token", "pipe"):
        with pytest.raises(OSError, match=r"token|not a regular file"), opened(start / name):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


EXPECT = expectation(dict(GATE["expect"]))  # type: ignore[call-overload]
REAL = sorted((Path(__file__).parents[3] / "fixtures/nccl/real").glob("*.log"))


class Place:
    """The directory of a rank's files, and the names of those that were read."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.start = path / "1"
        self.start.mkdir()
        self.files, self.judgement, self.read = NcclFiles(path), Judgement("g-0-0", 0, EXPECT), list[str]()
        original = evidence.opened

        def opened(path: Path) -> Any:
            self.read.append(path.name)
            return original(path)

        monkeypatch.setattr(evidence, "opened", opened)

    def write(self, pid: int, net: str = "IB", lines: int = len(LINES)) -> None:
        said = "".join(f"g-0-0:{pid}:{pid} [0] NCCL INFO {line.format(net=net)}\n" for line in LINES[:lines])
        with (self.start / f"g-0-0.{pid}").open("a") as stream:
            stream.write(said)

    def judge(self) -> dict[str, Any]:
        self.read.clear()
        return self.judgement.judge(self.files.look())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_only_files_that_were_written_are_read_again(place: Place) -> None:
    # Each process of a rank has a file.
    for pid in range(40, 50):
        place.write(pid)
    judged = place.judge()
    assert judged["satisfied"], judged["msg"]
    assert [rank["pod"] for rank in judged["ranks"]] == ["g-0-0"] * 10
    assert sorted(place.read) == [f"g-0-0.{pid}" for pid in range(40, 50)]
    assert place.judge()["satisfied"]
    assert place.read == []
    place.write(41, lines=2)
    # Another communicator is being set up.
    assert (place.judge()["complete"], place.read) == (False, ["g-0-0.41"])
    place.write(53, net="Socket")
    assert (place.judge()["verdict"], place.read) == ("mixed", ["g-0-0.53"])
    # A new start reads everything again.
    place.start = place.start.rename(place.start.with_name("2"))
    assert (place.judge()["verdict"], len(place.read)) == ("mixed", 11)


@pytest.mark.parametrize(
    ("free", "why"), [("9700000", "kexec handover (kho) keeps memory"), ("0", "or locked memory is limited")]
)
def test_the_node_s_memory_says_why_nothing_could_be_pinned(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: str, why: str
) -> None:
    place.write(40)
    with (place.start / "g-0-0.40").open("a") as stream:
        stream.write(
            "g-0-0:40:40 [0] misc/ibvwrap.cc:95 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
        )
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nCmaTotal:              0 kB\nCmaFree:         {free} kB\n")
    monkeypatch.setattr(evidence, "_MEMINFO", tmp_path / "meminfo")
    assert why in place.judge()["causes"][0]["summary"]


def test_a_file_that_vanishes_between_two_steps_is_no_proof(place: Place) -> None:
    place.write(40)
    look = place.files.look()
    (place.start / "g-0-0.40").unlink()
    with pytest.raises(OSError, match=r"g-0-0\.40"):
        place.judgement.judge(look)


def orders() -> Iterator[tuple[Path, ...]]:
    for first in REAL:
        for second in (first, *REAL[:: len(REAL) // 3]):
            yield first, second


@pytest.mark.parametrize("names", list(orders()), ids=lambda names: "+".join(path.stem for path in names))
def test_files_that_are_read_one_by_one_say_what_they_say_together(place: Place, names: tuple[Path, ...]) -> None:
    for number, name in enumerate(dict.fromkeys(names)):
        text = name.read_text().replace("vm:", f"vm{number}:")
        (place.start / f"vm{number}.40").write_text(text)
    look = place.files.look()
    one_by_one = place.judgement.judge(look)
    sources = {"g-0-0": [nullcontext(io.BytesIO(path.read_bytes()).read) for path in look.files]}
    assert one_by_one == judge_sources(sources, EXPECT, {"g-0-0": 0}, one_start=True)[0]


def test_lines_of_files_that_did_not_grow_are_not_looked_for(place: Place) -> None:
    place.write(40)
    place.write(41)
    assert len(list(place.files.new_lines())) == 2
    place.write(41, lines=1)
    place.read.clear()
    assert [block.count(b"\n") for block in place.files.new_lines()] == [1]
    assert place.read == ["g-0-0.41"]
