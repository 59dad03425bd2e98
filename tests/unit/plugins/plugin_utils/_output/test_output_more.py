# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test recorded outputs as text and as a stream: 106 broken ones, and 142 healthy ones that look unusual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._output.guard import StreamGuard, judge_text

TEXTS = json.loads((Path(__file__).resolve().parents[3] / "fixtures/output/more.json").read_text())


@pytest.mark.parametrize("name", TEXTS["garbage"])
def test_garbage_is_caught(name: str) -> None:
    assert judge_text(TEXTS["garbage"][name])


@pytest.mark.parametrize("name", TEXTS["healthy"])
def test_healthy_output_passes_as_text_and_as_a_stream(name: str) -> None:
    text = TEXTS["healthy"][name]
    assert judge_text(text) == []
    for size in (1, 4):
        guard = StreamGuard()
        for i in range(0, len(text), size):
            assert guard.feed(text[i : i + size]) is None
