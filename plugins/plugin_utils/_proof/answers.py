# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a served model questions with known answers, and judge what comes. Private to the collection.

A server whose /health is green may answer with one token over and over: from a number of tokens on, of streams, or
always. The questions are of the kind that every chat model answers, so that a wrong answer is a fault of the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import clip

from .._bench.guard import judge_text
from .._controller.screen import Cause, Screen
from .._node.combinations import find_known

Json = dict[str, Any]
STREAMS = 4  # wrong answers were reported from four users at once on
QUICK = 32768
"""Most tokens of the long prompt of ``quick``: sgl-project/sglang#37111 lost notes in 25,000 tokens."""
SHARES = (0.25, 0.5, 0.9)
"""Parts of the promised context that ``full`` fills."""
FIRST_ROWS, ROW_TOKENS = 40, 30.0
"""Rows of the prompt with which the tokens of a row are measured, and more tokens than a row can have."""
PLACES = {"north": "Amber Heron", "south": "Silver Otter", "east": "Crimson Finch", "west": "Golden Badger"}
_COUNT = "Count from 1 to 20. Answer with the numbers only, separated by spaces."
_SUM = "What is {} plus {}? Answer with the number only."
_LEAD = "Here is a question. "
_TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_WORD = re.compile(r"[^\W_]+")
_TAGS = re.compile(r"</?think>|<\|channel\|>|<tool_call>")
_SHOWN, _LONGEST_WORD, _FEWEST_ROWS = 160, 40, 4


@dataclass(frozen=True)
class Question:
    """A question ``about`` one thing (one, again, streams, tools, reasoning, context), and its words for people.

    The words ``wanted`` must be in its answer, or in its call of a tool. ``rows`` of text precede it, with ``notes``
    before some of them by their numbers.
    """

    about: str
    kind: str
    text: str
    wanted: str
    body: Json = field(default_factory=dict)
    rows: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)

    def sent(self) -> Json:
        """Return what the program in the pod needs."""
        return {key: value for key, value in asdict(self).items() if key in ("text", "body", "rows", "notes")}


@dataclass(frozen=True)
class Wrong:
    """An answer that is not right: ``why``, whether none came at all, and whether it is text but another one."""

    question: Question
    answer: Mapping[str, Any]
    why: str
    silent: bool = False
    other: bool = False


def arguments(argv: Sequence[str]) -> Json:
    """Return the flags of a command line by the keys that a profile has for them; True for a flag without a value."""
    found: Json = {}
    for word, after in pairwise([*argv, "--"]):
        if word.startswith("--"):
            name, mark, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value if mark else True if after.startswith("--") else after
    return found


@dataclass
class Asking:
    """The rounds of questions for one group. ``ask`` sends the questions of a round at the same time.

    ``weak`` answers are wrong, and so are those of the model to the same questions alone.
    """

    args: Mapping[str, Any]
    full: bool
    ask: Callable[[Sequence[Question]], Sequence[Mapping[str, Any]]]
    right: list[Json] = field(default_factory=list)
    asked: int = 0
    weak: int = 0
    longest: int = 0
    _row_tokens: float = ROW_TOKENS

    def run(self) -> list[Wrong]:
        """Ask round by round until one has an answer that is not right; return the wrong answers of that round."""
        for questions in self._rounds():
            answers, self.asked = self.ask(questions), len(questions)
            pairs = list(zip(questions, answers, strict=True))
            failed = [each for pair in pairs if (each := judge(*pair))]
            wrong = [each for each in failed if not self._is_weak(each)]
            if wrong:
                return wrong
            self.weak += len(failed)
            for question, answer in pairs:
                if any(each.question is question for each in failed):
                    continue
                tokens = int(answer["prompt_tokens"])
                if question.rows and tokens:
                    self._row_tokens = tokens / question.rows
                self.longest = max(self.longest, tokens)
                self.right.append({"kind": question.kind, "asked": question.text, "prompt_tokens": tokens})
                self.right[-1] |= {"seconds": answer["seconds"], "text": clip(answer["text"], _SHOWN)}
        return []

    def _is_weak(self, wrong: Wrong) -> bool:
        """Tell whether the model has another answer to one of several questions alone too: small models add wrongly.

        The question begins with other words then, since the prefix cache may hold what the streams made wrong.
        """
        if not wrong.other or wrong.question.about != "streams":
            return False
        alone = replace(wrong.question, text=_LEAD + wrong.question.text)
        found = judge(alone, *self.ask([alone]))
        return found is not None and found.other

    def _rounds(self) -> Iterator[list[Question]]:
        plain, count = self._body(), " ".join(map(str, range(1, 21)))
        yield [Question("one", "one stream", _COUNT, count, plain)]
        yield [Question("again", "the same prompt again", _COUNT, count, plain)]
        sums = [(17 + 6 * number, 25 + number) for number in range(STREAMS)]
        yield [Question("streams", f"{STREAMS} streams at once", _SUM.format(a, b), f"{a + b}", plain) for a, b in sums]
        if "tool_call_parser" in self.args:
            body = {**plain, "tools": [{"type": "function", "function": _TOOL}]}
            yield [Question("tools", "tools", "Call the tool for the weather in Paris.", "Paris", body)]
        if "reasoning_parser" in self.args:
            text = "What is 17 plus 25? Think first, then answer with the number only."
            yield [Question("reasoning", "reasoning", text, "42", {"max_tokens": 2048})]
        for question in self._lengths(plain):
            yield [question]

    def _body(self) -> Json:
        """Return what a short question adds to a request: without a thought, where the template has such a switch."""
        if "reasoning_parser" not in self.args:
            return {"max_tokens": 256}
        return {"max_tokens": 1024, "chat_template_kwargs": {"enable_thinking": False, "thinking": False}}

    def _lengths(self, body: Json) -> Iterator[Question]:
        """Yield prompts that grow, each with a note in its middle; a longer one begins like those before it."""
        promised = int(self.args.get("context_length") or 0)
        most = [int(promised * share) for share in (SHARES if self.full else SHARES[:1]) if promised]
        notes: dict[str, str] = {}
        for (place, name), tokens in zip(PLACES.items(), (0, *most), strict=False):
            wanted = tokens if self.full else min(tokens, QUICK)
            rows = int(wanted / self._row_tokens) if wanted else FIRST_ROWS
            if rows < _FEWEST_ROWS or (promised and rows * self._row_tokens > 0.9 * promised + 1):
                continue
            notes[str(rows // 2)] = f"The boat at the {place} pier is called {name}."
            text = f"What is the boat at the {place} pier called? Answer with its name only."
            kind = f"a prompt of {round(rows * self._row_tokens, -2):.0f} tokens"
            yield Question("context" if wanted else "one", kind, text, name, body, rows, dict(notes))


def _holds(text: str, wanted: str) -> bool:
    """Tell whether the words wanted are in a text in their order; a list may number its items."""
    words = iter(_WORD.findall(text.casefold()))
    return all(word in words for word in _WORD.findall(wanted.casefold()))


def judge(question: Question, answer: Mapping[str, Any]) -> Wrong | None:
    """Return what is wrong with an answer; None if it is right."""
    text, thought = str(answer["text"]), str(answer["thought"])
    for said in (thought, text):
        if said.strip() and (found := judge_text(said)):
            return Wrong(question, answer, found[0].detail)
    if answer["error"]:
        half = f"half an answer ({len(text)} characters): " if text else ""
        return Wrong(question, answer, f"{half}{repr(answer['error'])[1:-1]}", silent=True)
    why = _missing(question, answer)
    return Wrong(question, answer, why, other=True) if why else None


def _missing(question: Question, answer: Mapping[str, Any]) -> str:
    """Return what a complete answer lacks; empty if it lacks nothing."""
    text = str(answer["text"])
    if "tools" in question.body:
        called = [call for call in answer["calls"] if call["name"] == _TOOL["name"]]
        right = any(_holds(call["arguments"], question.wanted) for call in called)
        return "" if right else f"no call of {_TOOL['name']} with {question.wanted}"
    # A model may think until its limit, and some parsers take all of an answer for a thought.
    if not _holds(text if text.strip() else str(answer["thought"]), question.wanted):
        cut = "it ended at its limit, and " if answer["end"] == "length" else ""
        return f"{cut}{clip(question.wanted, 60)} is not in it"
    tag = _TAGS.search(text) if question.about == "reasoning" else None
    return f"{tag.group()} is in the answer, so the parser does not fit the model" if tag else ""


def facts_of(plan: Mapping[str, Any], wrong: Sequence[Wrong]) -> Json:
    """Return what the known combinations are compared with: the plan's settings, and what was wrong."""
    return {
        "args": arguments(plan["ranks"][0]["argv"]),
        "release": str(plan["sglang_version"]),
        "models": list(plan.get("models") or ()),
        "nodes": len(plan["ranks"]),
        "wrong": sorted({each.question.about for each in wrong}),
    }


def answers_screen(plan: Mapping[str, Any], asking: Asking, wrong: Sequence[Wrong], limit: int) -> Screen:
    """Return the screen about answers that are not right: the settings that are suspected, and what is known of them.

    ``limit`` is the number of seconds that an answer may take.
    """
    first, group = wrong[0], str(plan["instance"])
    question, answer = first.question, first.answer
    came = str(answer["text"] or answer["thought"] or (json.dumps(answer["calls"]) if answer["calls"] else ""))
    notes = [
        ("Asked", f"{question.text} ({question.kind})"),
        ("Came", f"{_quoted(came)}: {first.why}" if came else f"nothing: {first.why}"),
    ]
    if right := ", ".join(dict.fromkeys(each["kind"] for each in asking.right)):
        notes.append(("Right before that", right))
    if first.silent:
        return Screen(f"Group {group} did not answer a question.", [_silence(first, group, limit)], notes=notes)
    found = list(find_known("answers", facts_of(plan, wrong), group))
    if steps := "; ".join(f"({number}) {each.remedy.rstrip('.')}" for number, each in enumerate(found, 1)):
        notes.append(("Under suspicion, the cheapest first; set one in serving_plan_overrides, key server_args", steps))
    many = f" ({len(wrong)} of {asking.asked} answers)" if asking.asked > 1 else ""
    title = f"Group {group} gives wrong answers: {question.kind}{many}."
    known = [Cause(f"{each.reason} [{each.source}]", "") for each in found[:2]]
    remedy = "Try another release of the image: serving_plan_sglang_version"
    other = Cause("no setting is set that is known for it", remedy)
    return Screen(title, known or [other], notes=notes)


def _quoted(text: str) -> str:
    """Return the escaped beginning of a stranger's text; a screen cannot break a long word."""
    plain = repr(text[: 10 * _SHOWN])
    limit = _LONGEST_WORD if any(len(word) > _LONGEST_WORD for word in plain.split()) else _SHOWN
    return plain if len(plain) <= limit else f"{plain[:limit]}…' ({len(text)} characters)"


def _silence(first: Wrong, group: str, limit: int) -> Cause:
    """Return why there is no whole answer."""
    if first.question.about == "context" and str(first.answer["error"]).startswith("HTTP 4"):
        text = "the server refuses a prompt as long as the profile promises"
        return Cause(text, "Lower context_length, or make room for caches: mem_fraction_static")
    text = f"the server failed, or needed more than {limit} s (nccl_verify_request_timeout)"
    return Cause(text, f"See its log: playbooks/logs.yml -e instance={group}")
