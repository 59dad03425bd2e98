# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how the action judges a user's overrides of a preset and the hardware of the nodes."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import resolve_options
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


def planned_for(image: str, version: str = "") -> tuple[Any, dict[str, Finding]]:
    """Return the resolved profile and the findings by rule, for an owner's image and release."""
    options = {"profile": "gemma-4-31b-it", "preset": "current", "images_from": "", "profile_dirs": [], "overrides": {}}
    resolved, findings = resolve_options({**options, "image": image, "sglang_version": version, "platform": "gb10"})
    return resolved, {finding.rule: finding for finding in findings}


def test_an_image_of_the_owner_is_looked_up_in_all_profiles() -> None:
    digest = "sha256:506b90e295d733137bcbf7af08ee5b8ac059a4e8e7834d967b33981c8e1cf476"
    resolved, findings = planned_for("scitrera/dgx-spark-sglang:0.5.12")
    assert resolved.sglang_version == "0.5.12"
    assert "serving.image.release" not in findings
    # A digest is enough, whatever the name of a mirror is.
    resolved, _findings = planned_for(f"mirror.example/sglang@{digest}")
    assert resolved.sglang_version == "0.5.12"
    resolved, _findings = planned_for("docker.io/lmsysorg/sglang:v0.5.21")
    assert resolved.image_gb == 15


def test_the_tag_of_an_unknown_image_says_its_release() -> None:
    resolved, findings = planned_for("registry.example/own:v0.5.20-cu130")
    assert (resolved.sglang_version, "serving.image.release" in findings) == ("0.5.20", False)
    resolved, findings = planned_for("registry.example/own:v0.5.20-cu130", "0.5.22")
    assert (resolved.sglang_version, findings["profile.image.version"].severity) == ("0.5.22", "warning")


def test_an_image_of_an_unknown_release_is_asked_about() -> None:
    resolved, findings = planned_for("registry.example/own:latest")
    assert resolved.sglang_version == "0.5.20"
    assert findings["serving.image.release"].key == "gb10_sglang_image"
    assert "gb10_sglang_version" in findings["serving.image.release"].remedy
    assert "serving.image.release" not in planned_for("registry.example/own:latest", "0.5.21")[1]
    assert planned_for("localhost/own:v0.5.21")[1]["profile.image.local"].severity == "warning"


def test_what_is_no_release_is_named_as_it_was_typed() -> None:
    resolved, findings = planned_for("", "latest")
    assert (resolved, findings["serving.version"].key) == (None, "gb10_sglang_version")
    assert "0.5.21 is the newest of which a profile has an image" in findings["serving.version"].remedy


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


def test_a_profile_whose_image_has_no_digest_asks_for_a_preset() -> None:
    (found,) = judged("deepseek-v4-flash-vision", "gb10")
    assert (found.rule, found.reason.rpartition("; ")[2]) == ("serving.profile", "set preset to dspark")


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
