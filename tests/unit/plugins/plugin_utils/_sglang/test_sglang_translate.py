# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that flags are translated between releases and that versions find their catalogues."""

import shlex
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.argv import parse_flags
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import History, load_history, translate
from sglang_cases import KNOWLEDGE, LATEST, PROFILES
from shipped_profiles import PRESETS, shipped

HISTORY = KNOWLEDGE.history


def carry(version: str, line: str, written_for: str | None = None) -> tuple[str, list[str]]:
    """Return a line in a version's spelling, and the ids of the findings on it."""
    catalogue, source = (HISTORY.nearest(Version.parse(text))[0] for text in (version, written_for or version))
    items, notes = translate(parse_flags(source, HISTORY, shlex.split(line)).items, catalogue, HISTORY, source)
    return shlex.join(word for item in items for word in item.argv), [f"{n.severity}:{n.rule}" for n in notes]


CHANGED, REFUSED = ["info:translate.changed"], ["error:translate.refused"]


@pytest.mark.parametrize(
    ("version", "line", "expected", "notes"),
    [
        ("0.5.23", "--disable-piecewise-cuda-graph", "--cuda-graph-backend-prefill=disabled", CHANGED),
        ("0.5.14", "--disable-piecewise-cuda-graph", "--cuda-graph-backend-prefill=disabled", CHANGED),
        ("0.5.12", "--disable-piecewise-cuda-graph", "--disable-piecewise-cuda-graph", []),
        ("0.5.9", "--disable-piecewise-cuda-graph", "", CHANGED),
        ("0.5.12", "--cuda-graph-backend-prefill=disabled", "--disable-piecewise-cuda-graph", CHANGED),
        ("0.5.9", "--cuda-graph-backend-prefill disabled", "", CHANGED),
        ("0.5.12", "--cuda-graph-backend-prefill tc_piecewise", "--enforce-piecewise-cuda-graph", CHANGED),
        ("0.5.12", "--cuda-graph-backend-prefill full", "--cuda-graph-backend-prefill full", REFUSED),
        ("0.5.19", "--enforce-piecewise-cuda-graph", "--cuda-graph-backend-prefill=tc_piecewise", CHANGED),
        ("0.5.23", "--cuda-graph-max-bs 8", "--cuda-graph-max-bs-decode 8", CHANGED),
        ("0.5.23", "--cuda-graph-max-bs=8", "--cuda-graph-max-bs-decode=8", CHANGED),
        ("0.5.10", "--cuda-graph-max-bs-decode 8", "--cuda-graph-max-bs 8", CHANGED),
        ("0.5.23", "--cuda-graph-bs 1 2 4", "--cuda-graph-bs-decode 1 2 4", CHANGED),
        ("0.5.23", "--mamba-scheduler-strategy extra_buffer", "--mamba-radix-cache-strategy extra_buffer", CHANGED),
        ("0.5.10", "--mamba-radix-cache-strategy no_buffer", "--mamba-scheduler-strategy no_buffer", CHANGED),
        ("0.5.23", "--disable-cuda-graph",
         "--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled", CHANGED),
        ("0.5.13", "--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled",
         "--disable-cuda-graph --disable-piecewise-cuda-graph", CHANGED * 2),
        ("0.5.13", "--cuda-graph-backend-decode disabled", "--disable-cuda-graph", CHANGED),
        ("0.5.13", "--cuda-graph-backend-decode full", "", CHANGED),
        ("0.5.22", "--dp-size 2 --enable-dp-attention", "--attn-dp-size 2", CHANGED),
        ("0.5.13", "--attn-dp-size 2", "--dp-size 2 --enable-dp-attention", []),
        ("0.5.13", "--nsa-prefill-backend fa3", "--dsa-prefill-backend fa3", CHANGED),
        ("0.5.23", "--nsa-prefill-cp-mode in-seq-split", "--cp-strategy in-seq-split", CHANGED),
        ("0.5.23", "--tp 4", "--tp-size 4", []),
        ("0.5.23", "--model m --ep 4", "--model m --ep 4", []),
        ("0.5.23", "--enable-double-sparsity", "--enable-double-sparsity", REFUSED),
        ("0.5.23", "--frobnicate", "--frobnicate", REFUSED),
    ],
)  # fmt: skip
def test_translation(version: str, line: str, expected: str, notes: list[str]) -> None:
    assert carry(version, line) == (expected, notes)


@pytest.mark.parametrize(
    ("written_for", "line", "version", "expected"),
    [
        ("0.5.10", "--disable-cuda-graph", "0.5.23", "--cuda-graph-backend-decode=disabled"),
        ("0.5.13", "--disable-cuda-graph", "0.5.14", "--cuda-graph-backend-decode=disabled"),
        ("0.5.14", "--disable-cuda-graph", "0.5.13", "--disable-cuda-graph --disable-piecewise-cuda-graph"),
        ("0.5.23", "--disable-cuda-graph", "0.5.9", "--disable-cuda-graph"),
        ("0.5.10", "--disable-cuda-graph", "0.5.13", "--disable-cuda-graph"),
        ("0.5.10", "--disable-cuda-graph --disable-piecewise-cuda-graph", "0.5.23",
         "--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled"),
    ],
)  # fmt: skip
def test_a_flag_keeps_the_meaning_of_the_release_it_was_written_for(
    written_for: str, line: str, version: str, expected: str
) -> None:
    assert carry(version, line, written_for)[0] == expected


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_translation_there_and_back_keeps_every_shipped_preset(name: str, preset: str) -> None:
    resolved = shipped(name, preset)
    home, line = resolved.sglang_version, shlex.join(resolved.argv)
    for version in ("0.5.10", "0.5.14", "0.5.23"):
        there, notes = carry(version, line, home)
        if "error:translate.refused" not in notes:
            back = carry(home, there, version)[0]
            assert sorted(shlex.split(back.replace("=", " "))) == sorted(shlex.split(line.replace("=", " "))), version


@pytest.mark.parametrize(
    "line", ["--cuda-graph-max-bs 8 --disable-piecewise-cuda-graph --mamba-scheduler-strategy no_buffer"]
)
def test_there_and_back_is_the_same(line: str) -> None:
    assert sorted(shlex.split(carry("0.5.13", carry("0.5.23", line)[0])[0])) == sorted(shlex.split(line))


@pytest.mark.parametrize(
    ("asked", "judged_by", "rules"),
    [
        ("0.5.15", "0.5.15", []),
        ("0.5.12.post1", "0.5.12.post1", []),
        ("0.5.14.post1", "0.5.14", ["version.nearest"]),
        ("0.5.13-dev", "0.5.13", ["version.nearest"]),
        ("0.5.12.dev155+gbcf8d100d", "0.5.12", ["version.nearest"]),
        ("v0.5.23", "0.5.23", []),
        ("0.9.0", LATEST, ["version.nearest"]),
        ("0.5.8", "0.5.9", ["version.unsupported"]),
        ("0.5.10rc0", "0.5.10", ["version.nearest"]),
    ],
)
def test_the_nearest_catalogue_judges(asked: str, judged_by: str, rules: list[str]) -> None:
    catalogue, findings = HISTORY.nearest(Version.parse(asked))
    assert str(catalogue.version) == judged_by
    assert [finding.rule for finding in findings] == rules


def test_a_version_between_catalogues_is_judged_by_the_one_before() -> None:
    gap = History([c for c in HISTORY.catalogues if c.version.release != (0, 5, 15)])
    assert str(gap.nearest(Version.parse("0.5.15"))[0].version) == "0.5.14"


def test_newer_is_a_warning_and_older_an_error() -> None:
    assert HISTORY.nearest(Version.parse("0.9.0"))[1][0].severity == "warning"
    assert HISTORY.nearest(Version.parse("0.5.8"))[1][0].severity == "error"


def test_a_broken_catalogue_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no flag catalogue here"):
        load_history(tmp_path)
    (tmp_path / "0.5.99.json").write_text("{")
    with pytest.raises(ValueError, match=r"0\.5\.99\.json"):
        load_history(tmp_path)


def test_all_supported_versions_ship() -> None:
    names = {path.stem for path in (PROFILES / "catalogue").glob("*.json")}
    assert {"0.5.10", "0.5.12.post1", "0.5.15", "0.5.23"} <= names
    assert len(HISTORY.catalogues) == len(names)
