# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which digest of an image a node has."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import images

REPO = "docker.io/lmsysorg/sglang"
TAG = f"{REPO}:v0.5.14"
OLD, NEW = "sha256:0ld", "sha256:4e3"


def node(*names: list[str]) -> dict[str, Any]:
    return {"metadata": {"name": "spark1"}, "status": {"images": [{"names": each} for each in names]}}


@pytest.mark.parametrize(
    ("names", "pinned", "found"),
    [
        ([[f"{REPO}@{OLD}", TAG]], "", OLD),
        ([[f"{REPO}@{OLD}", TAG]], OLD, OLD),
        ([[f"{REPO}@{OLD}"], [f"{REPO}@{NEW}", TAG]], OLD, NEW),
        ([[f"{REPO}@{OLD}"]], OLD, OLD),
        ([[f"{REPO}@{OLD}"]], "", ""),
        ([[TAG]], "", ""),
        ([["docker.io/other/sglang@sha256:0", "docker.io/other/sglang:v0.5.14"]], "", ""),
        ([], "", ""),
    ],
)
def test_a_tag_counts_before_the_pinned_digest(names: list[list[str]], pinned: str, found: str) -> None:
    assert images.held(node(*names), TAG, pinned) == found


def test_an_explicit_digest_ignores_the_tag() -> None:
    names = [[f"{REPO}@{OLD}", TAG], [f"{REPO}@{NEW}"]]
    assert images.held(node(*names), f"{TAG}@{NEW}", NEW) == NEW
    assert images.held(node(names[0]), f"{TAG}@{NEW}", NEW) == ""


@pytest.mark.parametrize(
    ("image_id", "digest"),
    [(f"{REPO}@{NEW}", NEW), ("sha256:1d", "id:sha256:1d"), ("", "")],
)
def test_the_digest_that_a_pod_pulled(image_id: str, digest: str) -> None:
    assert images.pulled({"status": {"containerStatuses": [{"imageID": image_id}]}}) == digest


@pytest.mark.parametrize(
    ("image", "digest", "name"),
    [
        (TAG, NEW, f"{TAG}@{NEW}"),
        (TAG, "", TAG),
        (TAG, "id:sha256:1d", TAG),
        (f"{TAG}@{OLD}", NEW, f"{TAG}@{OLD}"),
    ],
)
def test_pods_get_a_name_with_the_digest(image: str, digest: str, name: str) -> None:
    assert images.reference(image, digest) == name


def test_the_repository_of_a_registry_with_a_port_is_not_its_tag() -> None:
    names = ["registry.lan:5000/sglang@sha256:0", "registry.lan:5000/sglang"]
    assert images.held(node(names), "registry.lan:5000/sglang", "") == "sha256:0"


def test_a_record_s_key_is_allowed_in_a_config_map() -> None:
    assert images.record_key(TAG) == "docker.io_lmsysorg_sglang_v0.5.14"
