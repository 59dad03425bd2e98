# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which groups share compiled kernels."""

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules.jit_cache import KEY
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import pods
from serving_samples import plan

OWN = pods.cache_key(plan(), "arm64", "id:1")


def test_a_key_names_release_and_architecture() -> None:
    assert OWN.startswith("0.5.12.post1-arm64-")
    assert KEY.fullmatch(OWN)
    assert pods.cache_key(replace(plan(), instance="other", preset="other"), "arm64", "id:1") == OWN


@pytest.mark.parametrize(
    "change",
    [
        {"image": "localhost/gb10/sglang-standin:dev@sha256:0"},
        {"sglang_version": "0.5.13"},
        {"rdma_mode": "restricted"},
    ],
)
def test_another_image_never_reads_these_kernels(change: dict[str, Any]) -> None:
    assert pods.cache_key(replace(plan(), **change), "arm64", "id:1") != OWN


def test_an_image_that_was_imported_under_the_same_name_never_reads_these_kernels() -> None:
    assert pods.cache_key(plan(), "arm64", "id:2") != OWN
    named = replace(plan(), image="localhost/gb10/sglang-standin:dev@sha256:0")
    assert pods.cache_key(named, "arm64", "sha256:0") == pods.cache_key(named, "arm64", "")


def test_another_architecture_never_reads_these_kernels() -> None:
    assert pods.cache_key(plan(), "amd64", "id:1") != OWN


def test_every_compiler_has_a_directory_of_its_own() -> None:
    env = pods.cache_env()
    named = {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TVM_FFI_CACHE_DIR"}
    named |= {"TORCHINDUCTOR_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "TILELANG_CACHE_DIR"}
    assert named < set(env)
    assert len(set(env.values())) == len(env)
    assert all(path.startswith(f"{pods.CACHE}/") for path in env.values())
