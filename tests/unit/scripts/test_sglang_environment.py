# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which packages a release requires according to its metadata."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import _sglang_environment as environment

METADATA = """\
Requires-Dist: tokenizers==0.22.2
Requires-Dist: transformers==5.12.1
Requires-Dist: uvicorn
Requires-Dist: transformers-extras==1
"""


def test_the_pins_are_read_line_by_line() -> None:
    pins = environment.requirements(METADATA)
    assert pins == {"tokenizers": "tokenizers==0.22.2", "transformers": "transformers==5.12.1"}


@pytest.mark.parametrize("text", ["tokenizers<=0.23.0,>=0.22.0", "tokenizers (<=0.23.0,>=0.22.0)"])
def test_ranges_are_understood(text: str) -> None:
    assert environment.requirements(f"Requires-Dist: {text}; extra\n")["tokenizers"] == "tokenizers<=0.23.0,>=0.22.0"


def test_another_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "PYTHON", (3, 9))
    with pytest.raises(environment.SetupError, match=r"use 3\.13"):
        environment.prepare(tmp_path, tmp_path)
