# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every rule with a command line to which it applies and a similar one to which it does not."""

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.rules import Rule, evaluate, load_rules
from rule_cases.cases import CASES, Case
from rule_cases.words import QWEN
from sglang_cases import KNOWLEDGE, PROFILES, ask, rules_of


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{case.severity}-{case.version}" for case in CASES])
def test_a_rule_applies_where_it_should_and_only_there(case: Case) -> None:
    assert case.rule in rules_of(ask(case.version, case.line, **case.known), case.severity)
    assert case.rule not in rules_of(ask(case.other_version, case.other_line, **case.other_known), case.severity)


def test_every_rule_has_a_case() -> None:
    tried = {(case.rule, case.severity) for case in CASES}
    assert {(rule.id, rule.severity) for rule in KNOWLEDGE.rules.rules} <= tried


def test_every_rule_has_a_source_and_well_formed_sentences() -> None:
    for rule in KNOWLEDGE.rules.rules:
        assert rule.source
        assert rule.last or rule.verified, rule.id
        assert rule.remedy[0].isupper(), rule.id
        assert not rule.reason.endswith("."), rule.id


def test_messages_are_filled_in() -> None:
    for case in CASES:
        for finding in ask(case.version, case.line, **case.known).findings:
            assert "{" not in finding.reason.replace("{decode,prefill}", ""), finding
            assert "{" not in finding.remedy.replace("{decode,prefill}", ""), finding


def test_a_post_release_belongs_to_its_release() -> None:
    line = "--quantization moe_wna16 --tp-size 4 --ep-size 4"
    assert "moe.wna16.ep_patch" in rules_of(ask("0.5.21.post1", line, **QWEN))
    assert "moe.wna16.ep_patch" not in rules_of(ask("0.5.22.dev3", line, **QWEN))


WHOLE = {"id": "a", "severity": "info", "key": "k", "reason": "r", "remedy": "R", "source": "s", "when": "True"}


def test_an_error_is_a_warning_on_releases_for_which_nobody_checked_the_rule() -> None:
    line = "--moe-runner-backend flashinfer_cutlass"
    for version, severity in (("0.5.23", "error"), ("0.5.24", "warning")):
        (found,) = (f for f in ask(version, f"{line} --quantization fp8", **QWEN).findings
                    if f.rule == "moe.fi_cutlass.quant" and f.severity != "info")  # fmt: skip
        assert found.severity == severity
        assert ("verified until 0.5.23" in found.reason) == (severity == "warning")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"id": "a"}, "needs"),
        ({**WHOLE, "evidence": "derived", "severity": "bad"}, "severity"),
        ({**WHOLE, "evidence": "so"}, "evidence is one of"),
    ],
)
def test_a_malformed_rule_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule.from_dict(raw)


def test_a_missing_rules_file_is_named(tmp_path: Any) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rules": []}))
    with pytest.raises(ValueError, match=r"rules\.json"):
        load_rules(path)


def test_rules_file_is_the_one_that_is_tested() -> None:
    assert load_rules(PROFILES / "rules.json") == KNOWLEDGE.rules


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a > 1", False),
        ("b > 1 and not a", True),
        ("b + 1 == 3", True),
        ("a + 1 == 3", False),
        ("b % 0 == 0", False),
        ("b in (1, 2)", True),
        ("a in (None,)", False),
        ("'x' in c", True),
        ("'x' not in a", True),
        ("1 if b else 2", 1),
        ("-b < 0 < b", True),
        ("a is None or d", True),
    ],
)
def test_expressions(text: str, value: Any) -> None:
    assert evaluate(text, {"a": None, "b": 2, "c": "xyz", "d": False}) == value


@pytest.mark.parametrize("text", ["e", "b.real", "b()", "b ** 2", "b +", "~b", "[x for x in c]"])
def test_expressions_allow_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"b|e|x"):
        evaluate(text, {"b": 2, "c": "x"})


@pytest.mark.parametrize(("asked", "tokens"), [("", 12), (" --speculative-num-draft-tokens 5", 5)])
def test_drafts_by_n_grams_have_twelve_tokens_unless_another_number_is_given(asked: str, tokens: int) -> None:
    assert ask("0.5.23", f"--speculative-algorithm NGRAM{asked}").context["draft_tokens"] == tokens


@pytest.mark.parametrize(("carries", "version"), [((), "5.6.0"), (("transformers>=5.9",), "5.9")])
def test_the_transformers_of_the_release_count_where_the_image_carries_no_other(
    carries: tuple[str, ...], version: str
) -> None:
    assert ask("0.5.12", "", carries=carries).context["transformers"] == version
