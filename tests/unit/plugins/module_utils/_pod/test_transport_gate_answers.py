# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which answers of a server count as noise, and what follows from them."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import ANSWERS
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod import watch as answers
from gate_rank import FakeApi, page_of


@pytest.mark.parametrize(
    "text",
    [
        "!!!!!!!!!!!!!!!!",
        "! ! ! !",
        "0000000000000000",
        "the the the the the the",
        "foo, foo, foo, foo, foo, foo, ",
        "\ufffd\ufffd\ufffd\ufffd a",
        "\x00\x01\x02\x03abcdefg",
        "\x00\x01\x02abcdefg",
        "????\n????",
        "aaaaaaaaaaaaaaaa",
    ],
)
def test_noise_is_found(text: str) -> None:
    assert answers.garbled(text)


FINE = ["", "23", "**23**", "The sum of 11 and 12 is 24.", "Okay, let me think. 11 plus 12 ...", "…", "答案是二十三"]
UNFINISHED = [
    "\U0001f600",
    "<think>\nThe user wants",
    "I can't help with that",
    "no no no",
    "$11 + 12 = ",
    "1.........",
    "ab\ufffd\ufffd",
    "\ufffd\ufffd\ufffdabcdefghijkl",
]


@pytest.mark.parametrize("text", [*FINE, *UNFINISHED])
def test_a_wrong_or_unfinished_answer_is_no_noise(text: str) -> None:
    assert not answers.garbled(text)


class Server:
    """Answers each question with the next text; ``SUM`` stands for the right number, ``error:`` begins an error."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, port: int, body: dict[str, Any], limit: float, show: Any) -> dict[str, Any]:
        self.asked.append(body)
        a, b = map(int, re.findall(r"\d+", body["messages"][0]["content"]))
        text = self.said[min(len(self.asked), len(self.said)) - 1].replace("SUM", str(a + b))
        error = text[6:] if text.startswith("error:") else ""
        return {"text": "" if error else text, "thought": "", "error": error}


NOISE = "!" * 16


def asking(
    monkeypatch: pytest.MonkeyPatch, server: Server, enforce: bool = False, base: Path = Path("/none")
) -> answers.Answers:
    monkeypatch.setattr(answers, "ask", server)
    monkeypatch.setattr(answers.time, "monotonic", lambda: 0.0)
    return answers.Answers(base, 9, FakeApi(ANSWERS), {"instance": "g", "rank": "0"}, enforce)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "reasons", "events"),
    [
        (["SUM"] * 3, ["Words"], []),
        (["error:[Errno 111] Connection refused", "SUM"], ["NotAnswered", "Words"], []),
        (["SUM", "error:not complete after 60 s", "error:HTTP 503: busy"], ["Words"], []),
        (["99999", "I think"], ["Words"], []),
        (["SUM", NOISE, "error:not complete after 60 s", NOISE], ["Words", "Garbage"], ["AnswersGarbage"]),
        (["SUM", NOISE, "SUM", NOISE], ["Words"], []),
        (
            ["SUM", NOISE, NOISE, "error:not complete after 60 s", "SUM"],
            ["Words", "Garbage", "Words"],
            ["AnswersGarbage", "AnswersWords"],
        ),
        ([NOISE, NOISE], ["NotAnswered", "Garbage"], ["AnswersGarbage"]),
    ],
)
def test_only_two_answers_of_noise_in_a_row_are_a_finding(
    said: list[str], reasons: list[str], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(*said)
    watch = asking(monkeypatch, server)
    api: Any = watch._api
    monkeypatch.setattr(answers, "timestamp", lambda: str(len(api.times)))
    for number in range(len(said)):
        watch.step(4000.0 * (number + 1))
    assert [condition.reason for condition in api.conditions] == reasons
    since = "0"
    for number, condition in enumerate(api.conditions):
        since = since if condition.proven == api.conditions[max(number - 1, 0)].proven else str(number)
        assert api.times[number] == since
    assert api.events == events
    assert len({body["messages"][0]["content"] for body in server.asked}) == len(said)
    assert all(body["max_tokens"] < 20 and body["temperature"] == 0 for body in server.asked)
    assert not any(value for body in server.asked for value in body["chat_template_kwargs"].values())
    assert sum(map(int, re.findall(r"questions_total{.*} (\d+)", watch.text))) == len(said)
    assert ('gb10_answers_garbage{instance="g",rank="0"} 1' in watch.text) is (reasons[-1] == "Garbage")


@pytest.mark.parametrize(
    ("said", "pause"),
    [("SUM", 300), (NOISE, 20), ("error:refused", 20), ("error:not complete", 300), ("error:HTTP 401: key", 3600)],
)
def test_a_question_is_asked_rarely(said: str, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(said)
    watch = asking(monkeypatch, server)
    for now, asked in ((1.0, 1), (pause - 1.0, 1), (pause + 0.0, 2)):
        watch.step(now)
        assert len(server.asked) == asked


def test_an_answer_of_a_client_that_repeats_one_character_makes_it_ask_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server owns the file: it may be a link to nothing, and it may be touched all the time."""
    server = Server("SUM")
    watch = asking(monkeypatch, server, base=tmp_path)
    watch.step(1.0)
    asked = []
    for now in range(2, 60):
        if now == 10:
            (tmp_path / answers.SUSPECT).symlink_to("nothing")
        if now > 40:
            os.utime(tmp_path / answers.SUSPECT, ns=(now, now), follow_symlinks=False)
        before = len(server.asked)
        watch.step(float(now))
        asked += [now] * (len(server.asked) - before)
    assert asked == [21, 41]
    (tmp_path / answers.SUSPECT).unlink()
    watch.step(100.0)
    assert len(server.asked) == 3


@pytest.mark.parametrize(("enforce", "status"), [(True, 503), (False, 200)])
def test_garbage_takes_the_head_out_of_the_service_only_if_that_is_wanted(
    enforce: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = asking(monkeypatch, Server(NOISE, NOISE, "SUM"), enforce)
    gate = sidecar.Gate("g", 0, ("g-0",), (), None, False, 9, 0, "/sys")
    page = page_of(monkeypatch, gate, None, answers=watch)
    seen = []
    for number in range(3):
        watch.step(4000.0 * (number + 1))
        seen.append(page("/ready")[0])
        assert (page("/live"), page("/other")) == ((200, ""), (404, ""))
    assert seen == [200, status, 200]
    assert "gb10_answers_questions_total" in page("/metrics")[1]
    api: Any = watch._api
    (found,) = (condition for condition in api.conditions if not condition.proven)
    assert found.reason == ("GarbageOut" if enforce else "Garbage")
    assert "What is 12 plus 13? Answer with the number only. The answer was '!!!!!!!!!!!!!!!!'." in found.message
    assert ("supervisor restarts it once" in found.message) is enforce
    assert ("restart the group" in found.message) is not enforce
