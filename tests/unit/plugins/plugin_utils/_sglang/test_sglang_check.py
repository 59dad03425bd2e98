# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what published launches say of a command line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import (
    Run,
    as_row,
    load_published,
    log_of,
    search,
    weigh,
)
from sglang_cases import PROFILES, ask, rules_of

KERNELS = {"moe_runner_backend": "triton", "attention_backend": "flashinfer"}


def run(works: bool = True, source: str = "log.md:1@abc", **settings: Any) -> Run:
    """Return a launch of one model."""
    outcome = "" if works else "illegal instruction"
    return Run(source, "gb10", "A", "fp8", {**KERNELS, "tp_size": 4, **settings}, works, outcome)


def test_launches_are_counted_and_the_nearest_says_how_it_differs() -> None:
    runs = (run(), run(works=False, tp_size=2), run(source="other.md:3@abc", kv_cache_dtype="fp8_e4m3"))
    found = search(runs, run(kv_cache_dtype="fp8_e4m3", tp_size=8))
    assert found.lines == [
        "published runs of A (fp8), runner triton, attention flashinfer on gb10: 2 of 3 worked (illegal instruction)",
        "the nearest differ in tp_size: 1 of 1 worked; other.md:3@abc",
    ]
    assert found.finding is None
    assert search(runs, run()).lines[1] == "the nearest have the same settings: 1 of 1 worked; log.md:1@abc"
    (line, nearest) = search((replace(run(), gpu="b200"),), replace(run(), gpu="b300")).lines
    assert "on b200: 1 of 1 worked" in line
    assert nearest.startswith("the nearest differ in gpu: ")


@pytest.mark.parametrize(
    "other",
    [{"gpu": "h200"}, {"arch": "B"}, {"quant": None}, {"settings": {"moe_runner_backend": "marlin"}}, {"arch": ""}],
)
def test_another_gpu_model_or_kernel_is_no_evidence(other: dict[str, Any]) -> None:
    assert search((run(), run()), replace(run(), **other)).lines == []


@pytest.mark.parametrize(
    ("runs", "warned"),
    [
        ((run(False, tp_size=1), run(False, tp_size=2), run(False, tp_size=8)), True),
        ((run(False, tp_size=1),), True),
        ((run(False, tp_size=1), run(False, tp_size=2), run(True, tp_size=8)), False),
        ((run(False), run(False), run(True, tp_size=8)), True),
        ((run(False), run(True), run(True, tp_size=8)), False),
        ((run(False), run(True, tp_size=8)), True),
        ((run(False, tp_size=1), run(False, tp_size=2), run(True, tp_size=2)), False),
        ((), False),
    ],
)
def test_settings_with_which_nothing_worked_are_warned_of(runs: tuple[Run, ...], warned: bool) -> None:
    finding = search(runs, run()).finding
    assert (finding is not None) == warned
    if finding is not None:
        assert (finding.severity, finding.rule) == ("warning", "published.failed")
        assert "illegal instruction" in finding.reason


def test_one_failure_with_another_speculation_is_a_note() -> None:
    one, other = run(False, spec="DSPARK"), run(False, source="b.md:1@abc", spec="DSPARK")
    for runs, severity in (((one,), "info"), ((one, one), "info"), ((one, other), "warning")):
        finding = search(runs, run()).finding
        assert finding is not None
        assert finding.severity == severity


def other(model: str, works: bool, **settings: Any) -> Run:
    """Return a launch of another model, each in a log of its own."""
    return replace(run(works, f"{model}.md:1@abc", **settings), arch=model)


@pytest.mark.parametrize(
    ("runs", "warned"),
    [
        ((other("B", False), other("C", False)), True),
        ((other("B", False), other("C", False), other("D", True)), True),
        ((other("B", False), other("C", False), other("D", True), other("E", True)), False),
        ((other("B", False), other("B", False)), False),
        ((other("B", False), other("C", False), run(tp_size=1, attention_backend="fa3")), False),
        ((other("B", False), other("C", False, moe_runner_backend="marlin")), False),
        ((other("B", False), replace(other("C", False), gpu="h200")), False),
    ],
)
def test_a_kernel_with_which_most_launches_of_other_models_failed_is_warned_of(
    runs: tuple[Run, ...], warned: bool
) -> None:
    evidence = search(runs, run(attention_backend="fa3"))
    found = weigh([], runs, evidence)
    assert [(one.rule, one.key, one.value) for one in found] == (
        [("published.kernel", "moe_runner_backend", "triton")] if warned else []
    )
    told = Finding("error", "rule", "--moe-runner-backend", "triton", "reason", "remedy")
    assert weigh([told], runs, evidence) == [told]


def test_a_warning_is_a_note_where_several_logs_show_that_it_works() -> None:
    told = [Finding("warning", "rule", "key", 1, "reason", "remedy", source="measured")]
    first, second = run(source="a.md:1@abc"), run(source="b.md:1@abc")
    for runs, severity in (((first, second), "info"), ((first, first), "warning"), ((first, run(False)), "warning")):
        assert weigh(told, runs, search(runs, run()))[0].severity == severity
    (refused,) = weigh([replace(told[0], severity="error")], (first, second), search((first, second), run()))
    assert refused.severity == "error"


def test_a_value_that_a_changed_image_accepted_is_not_refused() -> None:
    line = "--dsa-paged-mqa-logits-backend torch"
    found = ask("0.5.21", line)
    assert found.accepted
    (finding,) = (one for one in found.findings if one.rule == "flag.choice")
    assert "the changed image of a published run does (" in finding.reason
    assert not ask("0.5.21", "--dsa-paged-mqa-logits-backend tensor").accepted


def test_the_check_searches_the_published_launches() -> None:
    gemma = {"arch": "Gemma4ForConditionalGeneration"}
    found = ask("0.5.10", "--attention-backend flashinfer --moe-runner-backend triton --tp-size 4", **gemma)
    assert "published.failed" in rules_of(found, "warning")
    assert found.as_dict()["published"][0].startswith("published runs of Gemma4ForConditionalGeneration, runner triton")
    assert ask("0.5.10", "").published == []


def test_launches_of_one_log_have_one_name() -> None:
    assert log_of("a/b.md:54@9db57fa983ef") == log_of("a/b.md:55@9db57fa983ef") == "a/b.md"
    assert log_of("sglang#32119, GB10") == "sglang#32119, GB10"


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    for text in ("[", "[{}]", '[{"no": 1}]'):
        path.write_text(text)
        load_published.cache_clear()
        with pytest.raises(ValueError, match=r"published\.json: not a list of published launches"):
            load_published(path)


def test_the_shipped_launches_are_written_as_they_are_read() -> None:
    path = PROFILES / "published.json"
    rows = [as_row(each) for each in load_published(path)]
    assert json.loads(json.dumps(rows)) == json.loads(path.read_text(encoding="utf-8"))
