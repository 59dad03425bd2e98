# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test recorded outputs as text and as a stream: 94 broken ones, and 142 healthy ones that look unusual."""

import base64
import json
import random
import string
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.guard import StreamGuard, judge_text

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


@pytest.mark.parametrize("length", [12, 20, 32])
def test_passwords_and_encoded_bytes_are_healthy(length: int) -> None:
    source = random.Random(length)
    data = source.randbytes(3000)
    passwords = "\n".join("".join(source.choices(string.ascii_lowercase + string.digits, k=length)) for _n in range(80))
    protein = "\n".join("".join(source.choices("ACDEFGHIKLMNPQRSTVWY", k=60)) for _n in range(40))
    encoded = [base64.encodebytes(data), base64.b32encode(data), data.hex().encode(), data.hex().upper().encode()]
    for text in (passwords, protein, *(entry.decode() for entry in encoded)):
        assert judge_text(text) == []
