# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a group is asked, which answers are right, and what a wrong one makes suspicious."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import HEIGHT, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.answers import (
    Asking,
    Question,
    Wrong,
    answers_screen,
    arguments,
    judge,
)

COUNTED = " ".join(map(str, range(1, 21)))
LINE = "python3 -m sglang.launch_server --model-path m --context-length 262144 --trust-remote-code"
LINE += " --kv-cache-dtype=fp8_e4m3 --speculative-algorithm NEXTN --max-running-requests 8"
ARGV = LINE.split()
PLAN = {"instance": "g", "sglang_version": "0.5.20", "ranks": [{"argv": ARGV}], "models": ["org/model"]}


def answer(text: str = "", **more: Any) -> dict[str, Any]:
    empty = {"thought": "", "calls": [], "end": "stop", "error": "", "prompt_tokens": 100, "tokens": 9, "seconds": 1.0}
    return {"text": text, **empty, **more}


def question(about: str, wanted: str, **body: Any) -> Question:
    return Question(about, about, "What?", wanted, body)


SUM, COUNT, NAME = question("one", "42"), question("one", COUNTED), question("context", "Amber Heron")
TOOL = question("tools", "Paris", tools=[{}])
THINK = question("reasoning", "42")
CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
ANSWERS = [
    (SUM, answer("42")),
    (SUM, answer("**42**.\n")),
    (SUM, answer("17 plus 25 is 42.")),
    (SUM, answer(thought="17 + 25 = 42", end="length")),
    (COUNT, answer(", ".join(COUNTED.split()))),
    (COUNT, answer("\n".join(COUNTED.split()))),
    # as a healthy SmolLM2-135M answers
    (COUNT, answer("\n".join(f"{number}. {number}" for number in COUNTED.split()))),
    (NAME, answer("The boat is called the \u201cAmber Heron\u201d.")),
    (TOOL, answer(calls=[CALL])),
    (THINK, answer("42", thought="Seventeen and twenty-five. The sum is 42.")),
    (SUM, answer("!" * 256, end="length")),
    (SUM, answer("!" * 40, error="not complete after 300 s")),
    (SUM, answer("42", thought="!" * 400)),
    (SUM, answer("\ufffd" * 12)),
    (SUM, answer("!")),
    (SUM, answer("421")),
    (SUM, answer()),
    (SUM, answer(error="not complete after 300 s")),
    (SUM, answer("4", error="the connection ended")),
    (COUNT, answer("1 2 3 4 5 6 7 8 9 10")),
    (COUNT, answer(COUNTED.replace("8 9", "9 8"))),
    (SUM, answer("Let me see", end="length")),
    (TOOL, answer("<tool_call>get_weather Paris")),
    (TOOL, answer(calls=[CALL | {"arguments": '{"city": "Rome"}'}])),
    (THINK, answer("17 + 25 </think> 42")),
]


class Model:
    """Answers everything right but what ``breaks``; a row of a prompt has 20 tokens."""

    def __init__(self, **breaks: str) -> None:
        self.breaks, self.rounds = breaks, list[Sequence[Question]]()

    def __call__(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        self.rounds.append(questions)
        return [
            answer(
                self.breaks.get(each.about, each.wanted),
                prompt_tokens=20 * each.rows + 30,
                calls=[CALL] if "tools" in each.body else [],
            )
            for each in questions
        ]


class Weak(Model):
    """Adds wrongly: so together, and so alone."""

    def __init__(self, together: str, alone: str) -> None:
        super().__init__()
        self.sums = (together, alone)

    def __call__(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        sums = questions[0].about == "streams"
        said = self.sums[len(questions) == 1] or questions[0].wanted
        self.breaks = {"streams": said} if sums else {}
        return super().__call__(questions)


def ask(full: bool = False, model: Model | None = None, **more: Any) -> tuple[Asking, Model, list[Wrong]]:
    model = model or Model()
    asking = Asking(more.pop("args", arguments(ARGV)) | more, full, model)
    return asking, model, asking.run()


# Tokens of the promised context that a quick and a full run ask for; the first one asks without a promise.
ROUNDS: dict[str, dict[str, Any]] = {
    "quick": {},
    "parsers": {"reasoning_parser": "qwen3", "tool_call_parser": "qwen3_coder"},
    "quick, 8192": {"context_length": "8192"},
    "full": {"full": True},
    "full, 100": {"full": True, "context_length": "100"},
    "full, 2000": {"full": True, "context_length": "2000"},
    "full, no promise": {"full": True, "args": {}},
    "wrong together and alone": {"model": Weak("32", "32")},
    "wrong together": {"model": Weak("32", "")},
    "broken together": {"model": Weak("!" * 90, "32")},
}
FLASH = ["RadixArk/Qwen3.8-Flash-Next-NVFP4"]
# {case: what is broken, and the plan}
SCREENS: dict[str, tuple[str, dict[str, Any]]] = {
    "one stream": ("one", {}),
    "several streams": ("streams", {}),
    "a long prompt": ("context", {"models": FLASH}),
    "a backend of experts": ("one", {"ranks": [{"argv": [*ARGV, "--moe-runner-backend", "flashinfer_mxfp4"]}]}),
    "an older release": (
        "one",
        {"sglang_version": "0.5.12", "ranks": [{"argv": ["--quantization", "modelopt_fp4", "--disable-cuda-graph"]}]},
    ),
    "nothing is set": ("one", {"ranks": [{"argv": ["--disable-cuda-graph"]}]}),
}
SILENT = (("one", "HTTP 500: no"), ("context", "not complete after 300 s"), ("context", "HTTP 400: too long"))


def shown(asking: Asking, plan: Mapping[str, Any], wrong: Sequence[Wrong]) -> list[str]:
    lines = render(answers_screen(PLAN | plan, asking, wrong, 300), 100).splitlines()
    assert len(lines) <= HEIGHT - 2  # a command and a file follow
    assert max(map(len, lines)) <= 100
    assert not any("\x1b" in line for line in lines)
    return lines


def test_questions_judgements_and_screens_are_as_stored() -> None:
    found: dict[str, list[str]] = {"judgements": [], "arguments": [str(arguments(ARGV))]}
    for asked, came in ANSWERS:
        wrong = judge(asked, came)
        said = f"{wrong.why} (silent: {wrong.silent}, other: {wrong.other})" if wrong else "right"
        given = {key: value for key, value in came.items() if key in ("text", "thought", "error", "calls") and value}
        found["judgements"].append(f"{asked.about}, {asked.wanted[:9]}: {str(given)[:70]}: {said}")
    for name, case in ROUNDS.items():
        asking, model, wrongs = ask(**case)
        rounds = [
            f"{len(questions)} {one.about}: {one.kind}, {one.text} wants {one.wanted[:20]!r}, {one.body},"
            f" {one.rows} rows {[*one.notes]}"
            for questions in model.rounds
            for one in questions[:1]
        ]
        known = {line for lines in found.values() for line in lines}
        asked_before = sum(line in known for line in rounds)
        found[name] = [f"{asked_before} rounds as before", *(line for line in rounds if line not in known)]
        wanted = [(each.question.about, each.why) for each in wrongs]
        right = [each["kind"] for each in asking.right]
        found[name].append(f"wrong: {wanted}, weak: {asking.weak}, longest: {asking.longest}, right: {right}")
        # The note stands in the middle, and a longer prompt begins like a shorter one.
        prompts = [each for (each, *_others) in model.rounds if each.about == "context"]
        assert all(each.wanted in each.notes[str(each.rows // 2)] for each in prompts)
        assert all(shorter.notes.items() < longer.notes.items() for shorter, longer in pairwise(prompts))
    for name, (broken, plan) in SCREENS.items():
        asking, _model, wrongs = ask(model=Model(**{broken: "!" * 256 + "\x1b[31m{{ 1 }}"}))
        found[f"screen: {name}"] = shown(asking, plan, wrongs)
    for about, error in SILENT:
        silent = judge(question(about, "42"), answer(error=error))
        assert silent
        found[f"screen: {about}, {error}"] = shown(Asking({}, False, Model()), {}, [silent])
    stored.compare("answers", found)


@pytest.mark.parametrize(("context", "wanted"), [("262144", [65536, 131072, 235929]), ("2000", [500, 1000, 1800])])
def test_prompts_fill_the_promised_context_as_the_server_counts_it(context: str, wanted: list[int]) -> None:
    asking, model, _wrong = ask(full=True, context_length=context)
    prompts = [each for (each, *_others) in model.rounds if each.about == "context"]
    assert [20 * each.rows for each in prompts] == pytest.approx(wanted, rel=0.1)
    assert asking.longest <= 0.95 * int(context)
