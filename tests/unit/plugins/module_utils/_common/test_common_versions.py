# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the grammar and the order of versions."""

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version


@pytest.mark.parametrize(
    ("text", "release", "rest"),
    [
        ("0.5.23", (0, 5, 23), (0, 0, 0)),
        ("0.5", (0, 5), (0, 0, 0)),
        (" 0.5.12.post1 ", (0, 5, 12), (1, 1, 0)),
        ("0.5.13-dev", (0, 5, 13), (-2, 0, 0)),
        ("0.5.12.dev155+gbcf8d100d", (0, 5, 12), (-2, 155, 0)),
        ("v1.36.4+k3s2", (1, 36, 4), (0, 0, 2)),
        ("v1.37.0-rc1+k3s1", (1, 37, 0), (-1, 1, 1)),
        ("2.28.9+cuda13.0", (2, 28, 9), (0, 0, 0)),
        ("v2.30.7-1", (2, 30, 7), (0, 0, 0)),
        ("6.17.0-1014-nvidia", (6, 17, 0), (0, 0, 0)),
    ],
)
def test_one_grammar(text: str, release: tuple[int, ...], rest: tuple[int, int, int]) -> None:
    version = Version.parse(text)
    assert (version.release, (version.stage, version.number, version.revision)) == (release, rest)
    assert str(version) == text.strip()


@pytest.mark.parametrize("text", ["latest", "", "5", "0.5.x", "0.5.12 post1", "1.2.3.4.5"])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a version; write it like v1\.36\.4"):
        Version.parse(text, "v1.36.4+k3s1")
    assert Version.find(text) is None


def test_find_takes_an_unknown_version() -> None:
    assert Version.find(None) is None
    found = Version.find("2.28.9+cuda13.0")
    assert found is not None
    assert found.release == (2, 28, 9)


def test_versions_are_ordered_as_they_came_out() -> None:
    names = ["0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.12.dev155+g1", "0.5.12", "0.5.12.post1", "0.5.13"]
    assert sorted(map(Version.parse, reversed(names))) == [Version.parse(name) for name in names]
    assert Version.parse("v1.36.4+k3s1") < Version.parse("v1.36.4+k3s2")
    assert len({Version.parse("0.5.12"), Version.parse("v0.5.12")}) == 1


def test_ranges_count_post_and_development_builds_as_their_release() -> None:
    assert Version.parse("0.5.12.post1").within("0.5.12", "0.5.12")
    assert not Version.parse("0.5.11").within("0.5.12", None)


def test_a_development_build_means_every_build_of_its_release() -> None:
    assert Version.parse("0.5.13-dev").means(Version.parse("0.5.13.dev155+g1"))
    assert not Version.parse("0.5.13-dev").means(Version.parse("0.5.13"))
