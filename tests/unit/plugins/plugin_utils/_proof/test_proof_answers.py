# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a group is asked, which answers are right, and what a wrong one makes suspicious."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import HEIGHT, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.answers import (
    FIRST_ROWS,
    QUICK,
    Asking,
    Question,
    Wrong,
    answers_screen,
    arguments,
    judge,
)

COUNTED = " ".join(map(str, range(1, 21)))
ARGV = [
    "python3",
    "-m",
    "sglang.launch_server",
    "--model-path",
    "m",
    "--context-length",
    "262144",
    "--trust-remote-code",
]
ARGV += ["--kv-cache-dtype=fp8_e4m3", "--speculative-algorithm", "NEXTN", "--max-running-requests", "8"]
PLAN = {"instance": "g", "sglang_version": "0.5.20", "ranks": [{"argv": ARGV}], "models": ["org/model"]}


def answer(text: str = "", **more: Any) -> dict[str, Any]:
    empty = {"thought": "", "calls": [], "end": "stop", "error": "", "prompt_tokens": 100, "tokens": 9, "seconds": 1.0}
    return {"text": text, **empty, **more}


def question(about: str, wanted: str, **body: Any) -> Question:
    return Question(about, about, "What?", wanted, body)


SUM, NAME = question("one", "42"), question("context", "Amber Heron")
TOOL = question("tools", "Paris", tools=[{}])
THINK = question("reasoning", "42")
CALL = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
HEALTHY = [
    (SUM, answer("42")),
    (SUM, answer("**42**.\n")),
    (SUM, answer("17 plus 25 is 42.")),
    (SUM, answer(thought="17 + 25 = 42", end="length")),
    (question("one", COUNTED), answer(", ".join(COUNTED.split()))),
    (question("one", COUNTED), answer("\n".join(COUNTED.split()))),
    # as a healthy SmolLM2-135M answers
    (question("one", COUNTED), answer("\n".join(f"{number}. {number}" for number in COUNTED.split()))),
    (NAME, answer("The boat is called the \u201cAmber Heron\u201d.")),
    (TOOL, answer(calls=[CALL])),
    (THINK, answer("42", thought="Seventeen and twenty-five. The sum is 42.")),
]
# question, answer, a part of what is said of it, and whether no answer came
BROKEN = [
    (SUM, answer("!" * 256, end="length"), "nothing but '!'", False),
    (SUM, answer("!" * 40, error="not complete after 300 s"), "nothing but '!'", False),
    (SUM, answer("42", thought="!" * 400), "nothing but '!'", False),
    (SUM, answer("\ufffd" * 12), "not text", False),
    (SUM, answer("!"), "42 is not in it", False),
    (SUM, answer("421"), "42 is not in it", False),
    (SUM, answer(), "42 is not in it", False),
    (SUM, answer(error="not complete after 300 s"), "not complete after 300 s", True),
    (SUM, answer("4", error="the connection ended"), "half an answer (1 characters): the connection ended", True),
    (question("one", COUNTED), answer("1 2 3 4 5 6 7 8 9 10"), "is not in it", False),
    (question("one", COUNTED), answer(COUNTED.replace("8 9", "9 8")), "is not in it", False),
    (SUM, answer("Let me see", end="length"), "it ended at its limit, and 42 is not in it", False),
    (TOOL, answer("<tool_call>get_weather Paris"), "no call of get_weather with Paris", False),
    (TOOL, answer(calls=[CALL | {"arguments": '{"city": "Rome"}'}]), "no call of get_weather", False),
    (THINK, answer("17 + 25 </think> 42"), "</think> is in the answer", False),
]


@pytest.mark.parametrize(("asked", "came"), HEALTHY, ids=range(len(HEALTHY)))
def test_a_right_answer_passes(asked: Question, came: Mapping[str, Any]) -> None:
    assert judge(asked, came) is None


@pytest.mark.parametrize(("asked", "came", "why", "silent"), BROKEN, ids=range(len(BROKEN)))
def test_a_wrong_answer_half_an_answer_and_none_are_named(
    asked: Question, came: Mapping[str, Any], why: str, silent: bool
) -> None:
    wrong = judge(asked, came)
    assert wrong is not None
    assert why in wrong.why
    assert wrong.silent is silent


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


def asked(full: bool = False, model: Model | None = None, **more: Any) -> tuple[Asking, Model, list[Wrong]]:
    model = model or Model()
    asking = Asking(arguments(ARGV) | more, full, model)
    return asking, model, asking.run()


@pytest.mark.parametrize(
    ("together", "alone", "about"), [("32", "32", []), ("32", "", ["streams"] * 4), ("!" * 90, "32", ["streams"] * 4)]
)
def test_a_model_that_adds_wrongly_alone_too_is_no_broken_server(together: str, alone: str, about: list[str]) -> None:
    class Weak(Model):
        def __call__(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
            sums = questions[0].about == "streams"
            self.breaks = {"streams": together if len(questions) > 1 else alone or questions[0].wanted} if sums else {}
            return super().__call__(questions)

    asking, _model, wrong = asked(model=Weak())
    assert [each.question.about for each in wrong] == about
    assert asking.weak == (0 if about else 4)
    assert all("streams" not in right["kind"] for right in asking.right)


def test_each_kind_is_asked_where_it_applies() -> None:
    _asking, model, wrong = asked()
    assert not wrong
    assert [(questions[0].about, len(questions)) for questions in model.rounds] == [
        ("one", 1),
        ("again", 1),
        ("streams", 4),
        ("one", 1),
        ("context", 1),
    ]
    assert model.rounds[0][0].text == model.rounds[1][0].text
    assert len({each.wanted for each in model.rounds[2]}) == 4
    # Models with a parser of thoughts may think before every answer.
    assert model.rounds[0][0].body["max_tokens"] == 256
    _asking, model, wrong = asked(reasoning_parser="qwen3", tool_call_parser="qwen3_coder")
    assert not wrong
    assert [questions[0].about for questions in model.rounds][3:5] == ["tools", "reasoning"]
    assert "chat_template_kwargs" not in model.rounds[4][0].body


@pytest.mark.parametrize(
    ("full", "context", "expected"),
    [
        (False, "262144", [QUICK]),
        (False, "8192", [2048]),
        (True, "262144", [65536, 131072, 235929]),
        (True, "100", []),
        (True, "2000", [500, 1000, 1800]),
    ],
)
def test_prompts_fill_the_promised_context_as_the_server_counts_it(
    full: bool, context: str, expected: list[int]
) -> None:
    asking, model, _wrong = asked(full, context_length=context)
    prompts = [each for (each, *_others) in model.rounds if each.about == "context"]
    assert [20 * each.rows for each in prompts] == pytest.approx(expected, rel=0.1)
    assert asking.longest <= max(100, 0.95 * int(context))
    # The note stands in the middle, and a longer prompt begins like a shorter one.
    for shorter, longer in pairwise(prompts):
        assert shorter.notes.items() < longer.notes.items()
    for each in prompts:
        assert each.wanted in each.notes[str(each.rows // 2)]


def test_without_a_promise_only_a_short_prompt_is_asked() -> None:
    model = Model()
    Asking({}, True, model).run()
    assert [questions[0].rows for questions in model.rounds][-1] == FIRST_ROWS


GRAPHS, DRAFT, CACHE = "disable_cuda_graph: true", "speculative_algorithm: null", "kv_cache_dtype: auto"
FLASH = ["RadixArk/Qwen3.8-Flash-Next-NVFP4"]


@pytest.mark.parametrize(
    ("broken", "plan", "keys"),
    [
        ("one", {}, [CACHE, DRAFT, GRAPHS]),
        ("streams", {}, ["max_running_requests: 1", CACHE, DRAFT, GRAPHS]),
        ("context", {"models": FLASH}, ["context_length: 98304", DRAFT, CACHE, DRAFT, GRAPHS]),
        (
            "one",
            {"ranks": [{"argv": [*ARGV, "--moe-runner-backend", "flashinfer_mxfp4"]}]},
            ["disable_flashinfer_autotune"],
        ),
        (
            "one",
            {
                "sglang_version": "0.5.12",
                "ranks": [{"argv": ["--quantization", "modelopt_fp4", "--disable-cuda-graph"]}],
            },
            ["disable_cuda_graph: null", "disable_flashinfer_autotune: true"],
        ),
        ("one", {"ranks": [{"argv": ["--disable-cuda-graph"]}]}, []),
    ],
)
def test_the_screen_lists_the_settings_that_are_set_and_suspected(
    broken: str, plan: dict[str, Any], keys: list[str]
) -> None:
    asking, _model, wrong = asked(model=Model(**{broken: "!" * 256 + "\x1b[31m{{ 1 }}"}))
    text = render(answers_screen(PLAN | plan, asking, wrong, 300), 100)
    said = " ".join(text.split())
    assert len(text.splitlines()) <= HEIGHT - 2  # a command and a file follow
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    places = [said.index(f"({number}) {key}") for number, key in enumerate(keys, 1)]
    assert places == sorted(places)
    assert ("gives wrong answers" in said, "'!!!!!" in said) == (True, True)
    assert f"({len(keys) + 1}) " not in said or len(keys) == 1
    if not keys:
        assert "no setting is set that is known for it" in said.lower()
    if broken == "streams":
        assert "(4 of 4 answers)" in said
        assert "Right before that: one stream, the same prompt again" in said


@pytest.mark.parametrize(
    ("about", "error", "remedy"),
    [
        ("one", "HTTP 500: no", "playbooks/logs.yml -e instance=g"),
        ("context", "not complete after 300 s", "needed more than 300 s (nccl_verify_request_timeout)"),
        ("context", "HTTP 400: too long", "Lower context_length"),
    ],
)
def test_no_answer_says_what_was_asked_and_what_to_do(about: str, error: str, remedy: str) -> None:
    wrong = judge(question(about, "42"), answer(error=error))
    assert wrong
    text = " ".join(render(answers_screen(PLAN, Asking({}, False, Model()), [wrong], 300)).split())
    assert text.startswith(f"Group g did not answer a question. Asked: What? ({about}) Came: nothing: {error}")
    assert remedy in text
