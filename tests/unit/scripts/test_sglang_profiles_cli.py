# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the command line of scripts/sglang_profiles.py."""

from functools import partial
from pathlib import Path

import sglang_profiles
from script_runs import called
from sglang_cases import LATEST

run = partial(called, sglang_profiles.main)


def test_memory_is_shown_once_for_presets_with_the_same_memory() -> None:
    done = run("--memory", "nemotron-3-super-120b")
    assert done.returncode == 0
    heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    on = "nemotron-3-super-120b on 0.5.13-dev, one GPU: "
    assert heads[:3] == [
        f"{on}no-spec, ep4-no-spec",
        f"{on}mtp-3-4, ep4-mtp-3-4",
        f"{on}mtp-5-5, mtp-5-7, ep4-mtp-5-5, ep4-mtp-5-7",
    ]
    assert "  Mamba states: 407 // 5 per request = 81 requests at once\n" in done.stdout


def test_one_preset_on_one_release() -> None:
    done = run("--memory", "--preset", "winner", "--sglang", "latest", "glm-4.7")
    assert done.stdout.startswith(f"glm-4.7 on {LATEST}, one GPU: winner\n  available before the load: ")
    assert " = 50.3 GiB" in done.stdout


def test_a_preset_that_failed_elsewhere_is_not_called_ok() -> None:
    table = run("glm-4.7", "--sglang", "0.5.11").stdout
    marks = {line.split()[0]: line.split()[-1] for line in table.splitlines() if line.startswith("glm-4.7/")}
    assert [marks[f"glm-4.7/{name}"] for name in ("latency", "flashinfer-cutlass-flashinfer")] == ["ok", "??"]


def test_reasons_name_remedy_and_source_once_with_all_versions() -> None:
    lines = run("glm-4.7", "--preset", "winner", "--reasons", "--sglang", "0.5.16", "--sglang", "0.5.17").stdout
    found = [line for line in lines.splitlines() if "[moe.nvfp4.runner]" in line]
    assert len(found) == 1
    assert found[0].startswith("glm-4.7/winner on 0.5.16, 0.5.17: error: ")
    assert "moe_runner_backend to flashinfer_cutlass" in found[0]
    assert "(source: derived: " in found[0]


def test_mistakes_against_the_schema_and_of_flags_are_shown_together(tmp_path: Path) -> None:
    head = 'name: mine\nmodel: {repo: google/gemma-4-31B-it}\nsglang_version: "0.5.23"\nimage: i\nstatus: untested\n'
    text = head + "topology: {nodes: 1}\nserver_args: {attention_backend: flashinfer}\nsampling: {temprature: 1}\n"
    (tmp_path / "mine.yml").write_text(text)
    done = run("--dir", str(tmp_path), "--sglang", "0.5.23", "--reasons", "mine")
    assert done.returncode == 2
    assert "unknown key 'temprature' (did you mean temperature?)" in done.stderr
    assert "[attn.gemma4.allow]" in done.stdout


def test_no_preset_of_a_file_that_is_refused_is_ok_and_equal_reasons_are_said_once(tmp_path: Path) -> None:
    head = 'name: mine\nmodel: {repo: google/gemma-4-31B-it}\nsglang_version: "0.5.23"\nimage: i\nstatus: untested\n'
    presets = "topology: {nodes: 1}\nserver_args: {mem_fraction_static: 0.5}\npresets: {a: {}, b: {}}\n"
    (tmp_path / "mine.yml").write_text(f"{head}{presets}sampling: {{temprature: 1}}\n")
    done = run("--dir", str(tmp_path), "--sglang", "0.5.23", "mine")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("mine/")]
    assert [row[-1] for row in rows] == ["--", "--"]
    (tmp_path / "mine.yml").write_text(head + presets.replace("mem_fraction", "mem_fraktion"))
    told = run("--dir", str(tmp_path), "--sglang", "0.5.23", "mine").stderr.splitlines()
    assert [line.partition(":")[0] for line in told] == ["mine/a, b"]


def test_no_empty_table_precedes_an_error() -> None:
    done = run("nothere")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "there is no profile nothere" in done.stderr
