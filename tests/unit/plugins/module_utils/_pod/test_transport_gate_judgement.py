# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a look reads only what was written since, and judges as if it had read everything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import judge_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import expectation
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import Judgement, NcclFiles, open_file
from gate_rank import GATE, LINES

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
    for pid in (40, 41, 42):
        place.write(pid)
    assert place.judge()["satisfied"]
    assert sorted(place.read) == ["g-0-0.40", "g-0-0.41", "g-0-0.42"]
    assert place.judge()["satisfied"]
    assert place.read == []
    place.write(41, lines=2)
    judged = place.judge()
    # Another communicator is being set up.
    assert (judged["complete"], place.read) == (False, ["g-0-0.41"])
    place.write(43, net="Socket")
    judged = place.judge()
    assert (judged["verdict"], place.read) == ("mixed", ["g-0-0.43"])


def test_a_new_start_reads_everything_again(place: Place) -> None:
    place.write(40)
    place.judge()
    place.start = place.start.rename(place.start.with_name("2"))
    assert place.judge()["satisfied"]
    assert place.read == ["g-0-0.40"]


def test_each_process_of_a_rank_has_a_file(place: Place) -> None:
    for pid in range(40, 50):
        place.write(pid)
    judged = place.judge()
    assert judged["satisfied"], judged["msg"]
    assert len(judged["ranks"]) == 10
    assert {rank["pod"] for rank in judged["ranks"]} == {"g-0-0"}


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
    sources = {"g-0-0": [open_file(path) for path in look.files]}
    assert one_by_one == judge_sources(sources, EXPECT, {"g-0-0": 0}, one_start=True)[0]


def test_lines_of_files_that_did_not_grow_are_not_looked_for(place: Place) -> None:
    place.write(40)
    place.write(41)
    assert len(list(place.files.new_lines())) == 2
    place.write(41, lines=1)
    place.read.clear()
    assert [block.count(b"\n") for block in place.files.new_lines()] == [1]
    assert place.read == ["g-0-0.41"]
    # A file that was cut off is read from its beginning.
    (place.start / "g-0-0.40").write_text("new\n")
    assert list(place.files.new_lines()) == [b"new\n"]
