# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs against what was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from module_utils import _serving_compare as compare

ARGV = ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp-size", "4", "--mem-fraction-static", "0.6"]


def test_flags_become_sglang_s_names() -> None:
    argv = [*ARGV, "--trust-remote-code", "--json-model-override-args={}", "--enable-metrics"]
    assert compare.asked(argv) == {
        "model_path": "m",
        "tp_size": "4",
        "mem_fraction_static": "0.6",
        "trust_remote_code": True,
        "json_model_override_args": "{}",
        "enable_metrics": True,
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
    assert compare.differences(ARGV, info, "0.5.11") == expected


def test_switches() -> None:
    argv = [*ARGV[:3], "--disable-radix-cache"]
    assert compare.differences(argv, {"disable_radix_cache": True}, "") == []
    assert compare.differences(argv, {"disable_radix_cache": False}, "") == [
        "disable_radix_cache: asked for True, runs False"
    ]
