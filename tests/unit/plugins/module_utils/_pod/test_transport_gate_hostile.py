# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that forged files, odd counters, clock steps and refusals of the API take a proof away and never make one."""

import os
import urllib.request
from contextlib import nullcontext
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import gate, sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import NcclFiles
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import UNANSWERED, Condition, Seen
from gate_rank import LINES, Rank

PREFIX = "g-0-0:40:40 [0] NCCL INFO "


def served(monkeypatch: pytest.MonkeyPatch, *pages: str) -> None:
    """Let the server's metrics be these pages, one after another."""
    answers = iter(pages)
    monkeypatch.setattr(
        urllib.request.OpenerDirector, "open", lambda *_words, **_more: BytesIO(next(answers, pages[-1]).encode())
    )


def test_a_forged_file_of_another_process_can_take_the_proof_away_and_not_make_one(rank: Rank) -> None:
    rank.nccl("1", net="Socket")
    assert rank.step() == "WrongTransport"
    forged = "".join(f"g-0-0:41:41 [0] NCCL INFO {line.format(net='IB')}\n" for line in LINES)
    # Another process, an old file, a new file.
    for when in (10, 4102444800):
        (rank.logs / "1" / "g-0-0.41").write_text(forged)
        os.utime(rank.logs / "1" / "g-0-0.41", (when, when))
        assert rank.step() == "WrongTransport"


def test_tcp_with_a_forged_file_is_found_by_the_counters(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes NCCL's files itself passes at first; its tokens then move no bytes by RDMA."""
    rank.nccl("1")
    served(monkeypatch, *(f"sglang:generation_tokens_total {100 * n}\n" for n in range(1, 9)))
    assert [rank.step(25) for _look in range(3)] == ["Proven", "Proven", "CountersSilent"]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "earlier start", "file beside the starts", "other name"])
def test_what_is_no_file_of_this_start_proves_nothing(rank: Rank, tmp_path: Path, kind: str) -> None:
    rank.nccl("1")
    real = rank.logs / "1" / "g-0-0.40"
    text = real.read_text()
    real.rename(tmp_path / "real")
    if kind == "link":
        real.symlink_to(tmp_path / "real")
    elif kind == "pipe":
        os.mkfifo(real)
    elif kind == "directory":
        real.mkdir()
    elif kind == "other name":
        # NCCL_DEBUG_FILE ends with %h.%p: host name and process number.
        (rank.logs / "1" / "g-0-0.40.copy").write_text(text)
    elif kind == "earlier start":
        rank.start("2")
        (rank.logs / "1").mkdir()
        real.write_text(text)
    else:
        (rank.logs / "g-0-0.40").write_text(text)
    assert not rank.api.conditions
    # The directory of an earlier start that is there again is the older one, so it is read; it proves nothing.
    assert rank.step() == ("NotProven" if kind == "file beside the starts" else "EvidenceChanged")


def test_a_file_that_was_cut_off_is_judged_and_repeated_again(rank: Rank) -> None:
    rank.nccl("1")
    file = rank.logs / "1" / "g-0-0.40"
    repeated = NcclFiles(rank.logs)
    assert b"Connected" in b"".join(repeated.new_lines())
    assert rank.step() == "Proven"
    whole = file.read_text()
    # The same size again, after a rotation by copying.
    file.write_text(whole.replace("NET/IB/0", "NET/IX/0"))
    os.utime(file, (4102444800, 4102444800))
    rank.step()
    assert rank.step(20) != "Proven"
    file.write_text(f"{PREFIX}after the cut\n")
    assert b"".join(repeated.new_lines()) == f"{PREFIX}after the cut\n".encode()


@pytest.mark.parametrize("blocks", [1, 70_000])
def test_a_file_that_is_overwritten_in_place_proves_nothing(rank: Rank, blocks: int) -> None:
    rank.nccl("1", net="Socket")
    file = rank.logs / "1" / "g-0-0.40"
    file.write_text(file.read_text() + f"{PREFIX}Connected all trees\n" * blocks)
    assert rank.step() == "WrongTransport"
    said = file.read_text()
    with file.open("a") as stream:
        stream.write(f"{PREFIX}NCCL appends\n")
    assert rank.step() == "WrongTransport"
    with file.open("r+") as stream:
        stream.write(said.replace("Socket", "IB").ljust(len(said)))
    assert [rank.step(20) for _look in range(2)] == ["EvidenceChanged"] * 2
    assert "g-0-0.40 was overwritten" in rank.api.conditions[-1].message
    rank.start("2")
    rank.nccl("2")
    assert rank.step() == "Proven"


def test_a_file_of_zeros_or_without_an_end_proves_nothing(rank: Rank) -> None:
    (rank.logs / "1").mkdir()
    with (rank.logs / "1" / "g-0-0.40").open("wb") as stream:
        stream.truncate(64 << 20)
    assert rank.step() == "NotProven"


@pytest.mark.parametrize("code", [409, 503])
@pytest.mark.parametrize("call", ["set_condition", "add_event"])
def test_a_condition_that_the_api_refuses_is_sent_again_and_the_sidecar_is_not_ready(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    def refuse(*_words: Any) -> None:
        raise HTTPError("url", code, "reason", Message(), None)

    rank.nccl("1")
    assert rank.step() == "Proven"
    rank.nccl("1", net="Socket")
    with monkeypatch.context() as away:
        away.setattr(rank.api, call, refuse)
        for _look in range(2):
            with pytest.raises(HTTPError):
                rank.turn(3)
            assert rank.watch.unsaid
            assert 'reason="WrongTransport"' in rank.watch.text
    assert (rank.step(), rank.watch.unsaid) == ("WrongTransport", False)
    assert rank.api.events == ["Proven", "WrongTransport"]


@pytest.mark.parametrize(("code", "raised"), [(401, False), (403, False), (404, False), (410, True), (500, True)])
def test_the_head_does_not_stand_on_what_it_knew_if_it_may_not_see_the_other_ranks(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, code: int, raised: bool
) -> None:
    """A token without rights, or of another group's pod, can't prove the group."""

    def refuse(_name: str) -> dict[str, Any]:
        raise HTTPError("url", code, "no", Message(), None)

    rank.nccl("1")
    assert rank.step() == "Proven"
    monkeypatch.setattr(rank.api, "pod", refuse)
    with pytest.raises(HTTPError) if raised else nullcontext():
        rank.step()
    assert rank.api.conditions[-1].reason == ("Proven" if raised else "OtherRanks")
    assert rank.api.conditions[-1].message.endswith("g-1-0: its pod is missing") is (code == 404)


def test_a_sidecar_that_starts_alone_proves_again_from_the_files(rank: Rank) -> None:
    rank.nccl("1")
    assert rank.step() == "Proven"
    rank.watch = sidecar.Watch(rank.watch.gate, NcclFiles(rank.logs), rank.api)  # type: ignore[arg-type]
    assert rank.watch._others == {"g-1-0": UNANSWERED}
    assert rank.step() == "Proven"
    rank.nccl("1", net="Socket")
    rank.watch = sidecar.Watch(rank.watch.gate, NcclFiles(rank.logs), rank.api)  # type: ignore[arg-type]
    assert rank.step() == "WrongTransport"


def test_labels_of_metrics_cannot_add_lines() -> None:
    judged = {"transport_class": 'x"} 1\nup{a="', "evidence": "back\\slash"}
    text = gate.render({"instance": 'g"\n', "rank": "0"}, Condition(False, "R", ""), Seen("", judged), 0, (), {}, {})
    assert all(line.startswith(("#", "gb10_transport_")) for line in text.splitlines())
    assert 'class="x\\"} 1\\nup{a=\\""' in text
