# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that wrong sweep files are refused offline, with every finding at once."""

from pathlib import Path

import pytest
from sglang_cases import ROOT
from sweep_check import main

HEAD = "profile: gemma-4-31b-it\nbase: {preset: baseline}\n"
ONE = "workloads: [{concurrency: 1}]\n"


def workload(text: str) -> str:
    """Return a sweep with one workload."""
    return f"{HEAD}workloads: [{{{text}}}]\n"


# text of the file, words that the findings must contain
WRONG: list[tuple[str, tuple[str, ...]]] = [
    ("", ("there is nothing in it",)),
    ("# nothing but a comment\n", ("there is nothing in it",)),
    ("- profile\n", ("is not of type 'object'",)),
    ("profile: [a\n", ("not readable as YAML",)),
    (f"{HEAD}{ONE}{ONE}", ("duplicate key 'workloads'",)),
    (f"{HEAD}axes: {{ep: [1], ep: [2]}}\n{ONE}", ("duplicate key 'ep'",)),
    (ONE, ("'profile' is a required property",)),
    (f"profile: 5\n{ONE}", ("profile = 5", "Write the name of the profile")),
    (f"profile: gema-4-31b-it\n{ONE}", ("there is no profile gema-4-31b-it", "Did you mean gemma-4-31b-it?")),
    (HEAD, ("'workloads' is a required property",)),
    (f"{HEAD}workloads: []\n", ("Write a list of 1 to 200 workloads",)),
    (f"{HEAD}workloads: {{concurrency: 1}}\n", ("is not of type 'array'",)),
    (f"{HEAD}workloads: [8]\n", ("Write a workload such as {concurrency: 1",)),
    (f"{HEAD}axes: {{mem_fraction_static: [2026-01-01]}}\n{ONE}", ("'2026-01-01': not a valid float",)),
    (workload("max_tokens: 8"), ("'concurrency' is a required property",)),
    (workload("concurency: 8"), ("'concurency' (did you mean concurrency?)", "required property")),
    (workload("concurrency: 0"), ("0 is less than the minimum of 1", "the number of streams at once")),
    (workload("concurrency: -4"), ("-4 is less than the minimum of 1",)),
    (workload("concurrency: many"), ("'many' is not of type 'integer'",)),
    (workload("concurrency: 1.5"), ("1.5 is not of type 'integer'",)),
    (workload("concurrency: true"), ("True is not of type 'integer'",)),
    (workload("concurrency: 1, repetitions: -3"), ("-3 is less than the minimum of 1", "number of repetitions")),
    (workload("concurrency: 1, max_tokens: 0"), ("0 is less than the minimum of 1",)),
    (workload("concurrency: 1, context_tokens: -1"), ("-1 is less than the minimum of 0",)),
    (workload("concurrency: 1, duration_s: -30"), ("-30 is less than the minimum of 0",)),
    (workload("concurrency: 1, forced: 'yes'"), ("'yes' is not of type 'boolean'",)),
    (f"{HEAD}workloads: [{{concurrency: 1}}, {{concurrency: 1, seed: 2}}]\n", ("c0-n1", "is listed twice")),
    (workload("concurrency: 1, context_tokens: 9000000"), ("the server accepts", "raise context_length")),
    ("profile: nemotron-3-super-120b\nworkloads: [{concurrency: 64}]\n"
     "base: {preset: no-spec, server_args: {max_running_requests: 8}}\n",
     ("the server runs 8 requests at once", "Lower concurrency to 8")),
    (f"name: ../../etc/passwd\n{HEAD}{ONE}", ("'../../etc/passwd' does not match", "letters and digits")),
    (f"name: a..b\n{HEAD}{ONE}", ("'a..b' does not match",)),
    (f"{HEAD}axes: {{attention_backand: [triton, fa3]}}\n{ONE}", ("--attention-backand", "--attention-backend")),
    (f"{HEAD}axes: {{m: [{{name: a}}, {{name: b, page_sise: 2}}]}}\n{ONE}", ("page-sise", "--page-size")),
    (f"{HEAD}axes: {{attention_backend: [trition]}}\n{ONE}", ("trition", "Did you mean triton?")),
    (f"{HEAD}axes: {{ep: []}}\n{ONE}", ("axes.ep", "a list of 1 to 1000 values")),
    (f"{HEAD}axes: {{max_running_requests: [many, [x]]}}\n{ONE}", ("'many'", "Give a value of type int")),
    (f"{HEAD}axes: {{context_length: [long, 2.5]}}\n{ONE}", ("'long'", "neither an integer")),
    (f"{HEAD}axes: {{ep: 4}}\n{ONE}", ("axes.ep = 4", "is not of type 'array'")),
    (f"{HEAD}axes: {{page_size: [1, 1]}}\n{ONE}", ("is listed twice",)),
    (f"{HEAD}axes: {{transport: [rocee]}}\n{ONE}", ("'rocee' is not one of roce, socket (did you mean roce?)",)),
    (f"{HEAD}axes: {{preset: [basline]}}\n{ONE}", ("no preset basline", "did you mean baseline?")),
    (f"{HEAD}axes: {{topology: [{{ep: 0}}]}}\n{ONE}", ("0 is less than the minimum of 1",)),
    (f"{HEAD}axes: {{env: [{{nccl_debug: INFO}}]}}\n{ONE}", ("nccl_debug", "names in capitals")),
    (f"{HEAD}axes: {{page_size: [1]}}\nexclude: [{{page: 1}}]\n{ONE}", ("names no axis", "Did you mean page_size?")),
    (f"{HEAD}axes: {{page_size: [1]}}\nexclude: [{{}}]\n{ONE}", ("exclude.0", "an entry such as")),
    (f"{HEAD}{ONE}stop: {{hours: 0}}\n", ("stop.hours", "hours, more than 0")),
    (f"{HEAD}{ONE}stop: {{hours: .nan}}\n", ("'.nan' is not a finite number",)),
    (workload("concurrency: 1, duration_s: .inf"), ("'.inf' is not a finite number",)),
    (f"{HEAD}axes: {{page_size: [1]}}\nexclude: [{{page_size: 1}}]\n{ONE}", ("no cell is left", "exclude")),
    (f"profile: glm-4.7\nbase: {{topology: {{nodes: 3, tp: 3}}}}\n{ONE}", ("8 KV heads, which 3 ranks", "pp_size")),
    (f"{HEAD}{ONE}stop: {{failures: 1.5}}\n", ("stop.failures", "1 or more")),
    (f"{HEAD}{ONE}cell_minutes: -5\n", ("cell_minutes = -5",)),
    (f"{HEAD}{ONE}cells: 5\n", ("unknown key 'cells'",)),
    (workload("concurrency: 4.0"), ("4.0 is not of type 'integer'",)),
    (workload("concurrency: 1, repetitions: 1000000000"), ("greater than the maximum", "repetitions, 1 to 1000")),
    (workload("concurrency: 1, duration_s: 1.0e+300"), ("greater than the maximum", "seconds of a day")),
    (workload("concurrency: 1, warmup: 1000000"), ("greater than the maximum", "warm-up requests, 0 to 1000")),
    (workload("concurrency: 1, seed: 1" + "0" * 4000), ("(4001 characters)", "a whole number of 0 to 4294967295")),
    (workload("concurrency: 1, draft_tokens: 1000000"), ("greater than the maximum", "the tokens per verify step")),
    (workload("concurrency: 8, requests: 3"), ("keep only 3 of the 8 streams busy", "Write 8 or more")),
    (workload("concurrency: 1, context_tokens: 262000"), ("265072 tokens, but the server accepts 262144",)),
    (f"name: {'a' * 300}\n{HEAD}{ONE}", ("is too long", "at most 80 letters")),
    (f'name: "a\\n"\n{HEAD}{ONE}', ("does not match",)),
    (f"{HEAD}axes: {{{', '.join(f'{key}: {list(range(40))}' for key in ('page_size', 'random_seed'))}}}\n{ONE}",
     ("the axes have 1600 combinations", "Shorten an axis")),
    (f"{HEAD}axes: {{m: [{{name: ''}}, {{name: b, page_size: 1}}]}}\n{ONE}", ("a value without a name",)),
    (f"{HEAD}axes: &axes {{m: [*axes]}}\n{ONE}", ("recursive",)),
    (f"{HEAD}{ONE}include: [{{labels: {{m: [1]}}}}]\n", ("include.0.labels.m", "Write a name")),
    (f"{HEAD}{ONE}stop: {{hours: 1.0e+308}}\n", ("greater than the maximum", "at most 10000")),
    (f"profile: gemma-4-31b-it\nbase: {{sglang_version: latest}}\n{ONE}", ("'latest' does not match",)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_a_wrong_sweep_is_refused(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.yml"
    path.write_text(text)
    assert main([str(path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert not [word for word in words if word not in said], said


def test_all_findings_appear_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yml"
    path.write_text(
        f"name: a..b\n{HEAD}axes: {{attention_backand: [x], page_size: [1]}}\n"
        "workloads: [{concurrency: 0, repetitions: -3}]\nstop: {hour: 3}\n"
    )
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    for word in ("a..b", "attention-backand", "workloads.0.concurrency", "workloads.0.repetitions", "'hour'"):
        assert said.count(f"{word}") >= 1, said


def test_sweeps_that_ship_are_listed_with_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path) for path in sorted((ROOT / "plugins" / "sweeps").glob("*.yml"))]) == 0
    said = capsys.readouterr().out
    assert "nemotron-3-super-mtp.yml: 8 cells: 8 to measure, 0 refused, 0 twice" in said


def test_a_mistake_in_one_cell_is_not_left_out_silently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yml"
    path.write_text(f"{HEAD}axes: {{m: [{{name: a}}, {{name: b, env: {{X: 'y'}}, page_sizes: 2}}]}}\n{ONE}")
    assert main([str(path)]) == 1
    assert "did you mean" in capsys.readouterr().out.lower()
