# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the server of rank 0 a tiny question now and then, and say when the answer is no language any more.

It also asks at once when front_door.py notes that a client's answer repeats one character, as broken engines do.

A server whose /health is green may answer with one token over and over. Only such an answer counts: a wrong sum, a
thought that the limit cuts off, a server that is busy or refuses says nothing about the engine.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from .._in_pod.api import timestamp
from .._in_pod.chat import ask
from .._kube.labels import ANSWERS, ANSWERS_OUT
from .api import PodApi
from .metrics import metric
from .state import Condition

# Seconds between two questions, after garbage or while the server starts, and after the server refused a question.
_EVERY, _AGAIN, _REFUSED = 300.0, 20.0, 3600.0
# The file that front_door.py touches.
SUSPECT = "suspect"
# Seconds that an answer may take, and tokens that it may have
_LIMIT, _TOKENS = 60.0, 16
# So many answers in a row must be garbage.
_PROOF = 2
# A run of one character, and of one word
_RUNS = re.compile(r"([^\s.])\1{7}|\b(\w{2,})(?:\W+\2\b){5}")
_RESULTS = ("right", "unclear", "none", "garbage")


def garbled(text: str) -> bool:
    """Tell whether a short answer is noise: one character or word over and over, no letter or digit, or broken text."""
    plain = "".join(text.split())
    broken = sum(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Co", "Cn") for c in plain)
    wordless = len(plain) >= 4 and not any(c.isalnum() for c in plain)
    return wordless or bool(_RUNS.search(text)) or broken > max(2, len(plain) // 5)


class Answers:
    """Asks, and publishes what changed. ``enforce``: garbage takes the head out of the Service.

    The server owns the directory ``base``, so that of its file only the time is read, and it can hurry no question
    more than those after garbage.
    """

    def __init__(self, base: Path, port: int, api: PodApi, labels: Mapping[str, str], enforce: bool) -> None:
        self.text = ""
        self._base, self._noted, self._asked = base, 0, float("-inf")
        self._port, self._api, self._labels, self._enforce = port, api, labels, enforce
        self._counts = dict.fromkeys(_RESULTS, 0)
        self._ask_after, self._garbage, self._said = 0.0, 0, ""
        self._published: Condition | None = None
        self._since = ""

    @property
    def closes(self) -> bool:
        """Tell whether the head must get no requests."""
        return self._enforce and self._garbage >= _PROOF

    def step(self, now: float) -> None:
        """Ask if it is time, and publish; raise OSError, HTTPException or ValueError of the API."""
        noted = self._note()
        if now >= self._ask_after or (noted not in (0, self._noted) and now - self._asked >= _AGAIN):
            self._noted, self._asked = noted, now
            result, wait = self._ask()
            self._counts[result] += 1
            # No answer neither proves garbage nor takes it back.
            if result != "none":
                self._garbage = self._garbage + 1 if result == "garbage" else 0
            self._ask_after = time.monotonic() + (_AGAIN if self._garbage else wait)
            self.text = self._render()
        condition = self._condition()
        before = self._published
        if before is None or before.reason != condition.reason:
            since = self._since if before and before.proven == condition.proven else timestamp()
            self._api.set_condition(condition, since, ANSWERS)
            if not (condition.proven and (before is None or before.proven)):
                self._api.add_event(condition, "Answers")
            self._published, self._since = condition, since

    def _note(self) -> int:
        """Return when an answer was noted last, 0 if none was since the server's start."""
        try:
            return (self._base / SUSPECT).lstat().st_mtime_ns
        except OSError:
            return 0

    def _ask(self) -> tuple[Literal["right", "unclear", "none", "garbage"], float]:
        """Return what became of one question, and the seconds until the next one."""
        # Another sum each time, because a prompt that was seen is read from the cache.
        number = sum(self._counts.values())
        first, second = 11 + number % 80, 12 + number % 77
        body = {
            "messages": [{"role": "user", "content": f"What is {first} plus {second}? Answer with the number only."}],
            "max_tokens": _TOKENS,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        }
        said = ask(self._port, body, _LIMIT, lambda _text: None)
        text = said["text"] or said["thought"]
        if str(first + second) in re.findall(r"\d+", text):
            return "right", _EVERY
        if garbled(text):
            # It may be a part of somebody's prompt if the engine mixes up its streams, so it is cut short.
            self._said = ascii(text[:20])
            return "garbage", _AGAIN
        if said["error"]:
            starts = "refused" in said["error"]
            return "none", _AGAIN if starts else _REFUSED if said["error"].startswith("HTTP 4") else _EVERY
        return "unclear", _EVERY

    def _condition(self) -> Condition:
        if self._garbage >= _PROOF:
            message = (
                f"the server answered {self._garbage} questions in a row with {self._said} and no words. Run playbook "
                "verify, which names the settings under suspicion, and restart the group"
            )
            return Condition(False, ANSWERS_OUT if self._enforce else "Garbage", message)
        if not self._counts["right"] + self._counts["unclear"]:
            return Condition(True, "NotAnswered", "the server has answered no question yet; this is no finding")
        return Condition(True, "Words", "the server answers short questions with words or numbers")

    def _render(self) -> str:
        asked = [({"result": name}, n) for name, n in self._counts.items()]
        return metric(
            "gb10_answers_garbage",
            "gauge",
            "1 if the server answers short questions with noise.",
            self._labels,
            [({}, int(self._garbage >= _PROOF))],
        ) + metric(
            "gb10_answers_questions_total",
            "counter",
            "Questions that the sidecar asked the server, by what became of them.",
            self._labels,
            asked,
        )
