# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the running settings with the requested ones."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import summary
from sglang_cases import KNOWLEDGE

START = ["python3", "-m", "sglang.launch_server", "--model-path", "m"]
ARGV = [*START, "--tp-size", "4", "--mem-fraction-static", "0.6"]


def differences(argv: list[str], info: dict[str, Any], version: str = "0.5.11") -> list[str]:
    """Compare with the collection's own catalogues."""
    return summary.differences(argv, info, version, KNOWLEDGE.history)


def test_flags_become_what_sglang_stores() -> None:
    argv = [*ARGV, "--trust-remote-code", "--json-model-override-args={}", "--cuda-graph-bs", "1", "2"]
    assert summary.asked(argv, "0.5.11", KNOWLEDGE.history) == {
        "model_path": "m",
        "tp_size": 4,
        "mem_fraction_static": 0.6,
        "trust_remote_code": True,
        "json_model_override_args": "{}",
        "cuda_graph_bs": [1, 2],
    }


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"model_path": "m", "tp_size": 4, "mem_fraction_static": 0.6}, []),
        ({"tensor_parallel_size": 4}, []),
        ({"tp_size": 2}, ["tp_size: asked for 4, runs 2"]),
        ({"mem_fraction_static": None}, ["mem_fraction_static: asked for 0.6, runs None"]),
        ({"other": 1}, []),
        ({"version": "0.5.12"}, ["version: the profile is for 0.5.11, the image runs 0.5.12"]),
        ({"version": "0.5.11"}, []),
    ],
)
def test_differences(info: dict[str, Any], expected: list[str]) -> None:
    assert differences(ARGV, info) == expected


@pytest.mark.parametrize(
    ("words", "info"),
    [
        (["--cuda-graph-bs", "1", "2", "4"], {"cuda_graph_bs": [1, 2, 4]}),
        (["--context-length", "256k"], {"context_length": 256000}),
        (["--preferred-sampling-params", '{"temperature": 0.6}'], {"preferred_sampling_params": {"temperature": 0.6}}),
        (["--schedule-conservativeness", "1"], {"schedule_conservativeness": 1.0}),
        (["--disable-radix-cache"], {"disable_radix_cache": True}),
    ],
)
def test_another_way_to_write_a_value_is_no_difference(words: list[str], info: dict[str, Any]) -> None:
    assert differences([*START, *words], info) == []
    assert len(differences([*START, *words], dict.fromkeys(info, 7))) == 1


@pytest.mark.parametrize(
    ("profile", "runs", "same"),
    [
        ("0.5.13-dev", "0.5.13.dev42+gabc", True),
        ("0.5.12.dev155+gbcf8d100d", "0.5.12.dev155", True),
        ("0.5.12.dev155", "0.5.12.dev156+gabc", False),
        ("0.5.13-dev", "0.5.13", False),
        ("0.5.13", "0.5.13+local", True),
        ("0.5.12", "0.5.12.post1", False),
        ("0.5.12", "unknown", False),
    ],
)
def test_versions_are_compared_by_their_meaning(profile: str, runs: str, same: bool) -> None:
    assert (differences(START, {"version": runs}, profile) == []) is same


def test_a_setting_that_differs_from_what_the_image_resolved_is_a_finding() -> None:
    resolved = {"page_size": 64, "tp_size": 4, "mem_fraction_static": 0.87, "graphs": {"bs": [1]}, "absent": 1}
    info = {"page_size": 1, "tp_size": 4, "mem_fraction_static": 0.87, "graphs": {"bs": [2]}}
    expected = "the check of the image expected"
    assert summary.unforeseen(resolved, info) == [
        f"graphs: {expected} {{'bs': [1]}}, runs {{'bs': [2]}}",
        f"page_size: {expected} 64, runs 1",
    ]
