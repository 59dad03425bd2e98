# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how the action judges a user's overrides of a preset and the hardware of the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._plan.serving import resolve_options
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang import profile_files, schema


def judged(
    profile: str = "gemma-4-31b-it", platform: str = "gb10", dirs: tuple[Path, ...] = (), **overrides: Any
) -> list[Finding]:
    """Return the errors of a plan's profile."""
    options = {"profile": profile, "preset": "", "sglang_version": "", "image": "", "images_from": ""}
    _unused, findings = resolve_options(
        {**options, "profile_dirs": list(dirs), "platform": platform, "overrides": overrides}
    )
    return [finding for finding in findings if finding.severity == "error"]


def test_all_mistakes_in_the_overrides_are_reported_at_once() -> None:
    wrong = judged(
        server_arg={"context_length": 1},
        topologie={"tp": 2},
        topology={"tp": "two"},
        env={"OMP_NUM_THREADS": 8},
        server_args={"attention_backend": "flashinfer"},
    )
    assert {(f.rule, f.key, f.where) for f in wrong if f.rule == "profile.override"} == {
        ("profile.override", key, "serving_plan_overrides")
        for key in ("overrides", "topology.tp", "env.OMP_NUM_THREADS")
    }
    said = " ".join(f.reason for f in wrong)
    assert "'server_arg' (did you mean server_args?)" in said
    assert "'topologie' (did you mean topology?)" in said
    assert "attn.gemma4.allow" in {f.rule for f in wrong}


@pytest.mark.parametrize(
    "overrides",
    [
        {"server_args": {"context_length": None}, "env": {"A": "1"}, "topology": {"nodes": 2, "tp": 2}},
        {"model": {"revision": "v2"}},
        {"patches": [], "image": "i", "expected": None, "status": "untested"},
    ],
)
def test_overrides_may_have_every_key_of_a_preset(overrides: dict[str, Any]) -> None:
    assert "profile.override" not in {f.rule for f in judged(**overrides)}


@pytest.mark.parametrize(("key", "value"), [("based_on", "mtp-4"), ("images", []), ("presets", {})])
def test_invalid_overrides_are_refused(key: str, value: Any) -> None:
    assert "profile.override" in {f.rule for f in judged(**{key: value})}


def test_a_profile_of_other_machines_is_refused() -> None:
    (found,) = judged("gemma-4-26b-a4b-it-b300", "gb10")
    assert (found.rule, found.value) == ("profile.hardware", "b300")
    assert not judged("gemma-4-26b-a4b-it-b300", "b300")


def test_a_profile_that_is_wrong_in_two_ways_is_told_both_at_once(tmp_path: Path) -> None:
    head = 'name: mine\nmodel: {repo: google/gemma-4-31B-it}\nsglang_version: "0.5.23"\nimage: i\nstatus: untested\n'
    text = head + "topology: {nodes: four, tp: 1}\nserver_args: {attention_backend: flashinfer}\n"
    (tmp_path / "mine.yml").write_text(text)
    wrong = judged("mine", dirs=(tmp_path,))
    assert {f.rule for f in wrong} == {"serving.profile", "attn.gemma4.allow"}
    assert "topology.nodes: 'four' is not of type 'integer'" in wrong[0].reason


@pytest.mark.parametrize(
    ("module", "name", "value", "remedy"),
    [
        (schema, "jsonschema", None, "-m pip install jsonschema"),
        (profile_files, "PROFILES", Path("/none"), "ansible-galaxy collection install gb10.cluster --force"),
    ],
)
def test_a_broken_installation_is_not_a_mistake_in_the_profile(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any, remedy: str
) -> None:
    monkeypatch.setattr(module, name, value)
    (finding,) = judged()
    assert (finding.rule, finding.key) == ("serving.installation", "gb10.cluster")
    assert remedy in finding.remedy
