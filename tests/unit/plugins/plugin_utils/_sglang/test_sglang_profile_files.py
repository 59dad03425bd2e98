# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how an image is looked up in the profiles, and which images the shipped profiles have."""

import re
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.filter.serving import FilterModule
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import plan_serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import (
    Image,
    bare,
    known_images,
    load_profile,
    look_up,
    newest,
    official_images,
    release_of,
)
from role_samples import role_values
from serving_samples import fabric
from shipped_profiles import SHIPPED, shipped

DIGEST = f"sha256:{'a' * 64}"
IMAGES = (
    Image("docker.io/org/name:1", "0.5.12", "first"),
    Image(f"docker.io/org/name:1@{DIGEST}", "0.5.12", "second", ("sglang#1",), 15),
    Image("docker.io/org/name:2", "0.5.20", "third"),
)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_default_image_of_a_profile_has_a_digest(name: str) -> None:
    assert ("@sha256:" in shipped(name).image) == (SHIPPED[name]["default_preset"] != "")


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_an_image_without_a_digest_is_a_finding(name: str) -> None:
    for preset in SHIPPED[name]["presets"]:
        found = shipped(name, preset)
        told = {finding.rule for finding in found.findings} & {"profile.image.unpinned", "profile.image.local"}
        assert bool(told) != ("@sha256:" in found.image)


def test_an_image_of_sglang_needs_no_entry_in_a_profile_and_says_where_it_ran() -> None:
    bare_profile = {key: value for key, value in SHIPPED["gpt-oss-120b"].items() if key != "images"}
    proven, unproven = (resolve(bare_profile, "current", version) for version in ("0.5.20", "0.5.21"))
    assert proven.image.startswith("docker.io/lmsysorg/sglang:v0.5.20-cu130@sha256:06e4f2ed")
    assert proven.image_note == (
        "SGLang's own, several platforms, arm64 among them; ran on gb10: K2-Horizon on a pair, 2026-10-08"
    )
    assert unproven.image_note.endswith("; no run on gb10 is known")
    own = {"images": [{"sglang": "0.5.20", "image": "mine/x:0.5.20"}]}
    assert resolve(bare_profile | own, "current").image == "mine/x:0.5.20"


def test_the_digest_of_an_image_that_is_given_by_its_tag_is_named() -> None:
    found = resolve(SHIPPED["gpt-oss-120b"], "current", "0.5.21", {"image": "lmsysorg/sglang:v0.5.21"})
    (unpinned,) = (one for one in found.findings if one.rule == "profile.image.unpinned")
    assert unpinned.remedy.startswith("Write docker.io/lmsysorg/sglang:v0.5.21@sha256:b1259f3e")
    assert found.image_gb == 15


def test_a_list_of_images_that_is_malformed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "images.json"
    for text in ("{", "[5]", '[{"image": "x", "sglang": "1", "other": 2}]'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"images\.json: not a list of images"):
            official_images(path)


def test_an_image_is_found_by_its_digest_or_by_its_name() -> None:
    assert bare("docker://docker.io/org/name:1") == bare(f"org/name:1@{DIGEST}") == "org/name:1"
    assert look_up(IMAGES, f"mirror.example/x@{DIGEST}") == IMAGES[1]
    assert look_up(IMAGES, "org/name:1") == IMAGES[1]
    assert look_up(IMAGES, f"org/name:1@sha256:{'b' * 64}") is None
    assert look_up(IMAGES, "org/name") is None
    assert [release_of(IMAGES, text) for text in ("org/name:2", "x/y:v0.5.22-cu130", "x/y:latest", "x/y")] == [
        "0.5.20",
        "0.5.22",
        "",
        "",
    ]
    assert newest(IMAGES) == IMAGES[2]


def test_profiles_of_the_owner_are_searched_and_broken_ones_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("images: [{sglang: 0.5.22, image: 'mine/x:1'}, {sglang: 0.5.9}, text]")
    for name, text in (("odd", "["), ("list", "[]"), ("none", "images: 5")):
        (tmp_path / f"{name}.yml").write_text(text)
    assert release_of(known_images([tmp_path]), "mine/x:1") == "0.5.22"


def test_the_newest_image_of_a_profile_is_named_where_a_release_has_none() -> None:
    found = resolve(load_profile("glm-4.7"), "current", "0.5.23").findings
    (missing,) = (one for one in found if one.rule == "profile.image.missing")
    assert "the newest release with one is 0.5.21" in missing.reason
    assert "gb10_sglang_image" in missing.remedy


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_plan_says_what_is_run_and_downloaded(name: str) -> None:
    platform = SHIPPED[name].get("hardware", "gb10")
    preset = shipped(name).preset
    values = role_values("serving_plan", profile=name, preset=preset, platform=platform, models_dir="/srv/models")
    nodes = [f"spark{number}" for number in range(1, 5)]
    fact, _findings, lines = plan_serving({**values, "fabric": fabric(), "candidates": nodes, "taken": []})
    # Playbooks find the group by the name of its profile.
    assert fact["instance"] == FilterModule().filters()["serving_instance"]("", name)
    said = {line.partition(": ")[0]: line for line in lines}
    wanted = shipped(name)
    size = f"about {wanted.image_gb:g} GB for each node that lacks it" if wanted.image_gb else "size not known"
    note = wanted.image_note and f"; {wanted.image_note}"
    assert said["image"] == f"image: {wanted.image} (SGLang {wanted.sglang_version}, {size}{note})"
    assert wanted.model["repo"] in said["download"]
    assert re.search(r"\(about [\d,.]+ GB\)", said["download"])
