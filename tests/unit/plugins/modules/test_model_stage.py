# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a copied model is checked, and refused with what it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.modules import model_stage
from module_runs import run_module


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_copied_model_is_checked_and_left_alone(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run_module(model_stage, capsys, repo="org/tiny", dest=str(copied))
    assert status == 1
    assert result["msg"].startswith("org/tiny can't be served: ")
    assert result["msg"].endswith(" is not a complete model: there are no weights. Copy it there again.")
    (copied / "pytorch_model.bin").write_bytes(b"x" * 10)
    status, result = run_module(model_stage, capsys, repo="org/tiny", dest=str(copied))
    assert (status, result["changed"], result["msg"]) == (0, False, f"org/tiny is complete: 12 B in {copied}.")


def test_a_few_missing_shards_stand_for_many(copied: Path) -> None:
    index = {"weight_map": {str(n): f"model-{n:05}.bin" for n in range(9)}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    text, complete = model_stage.check(copied)
    assert not complete
    assert "model-00004.bin is missing and 4 more" in text


def test_a_directory_that_cannot_be_read_has_a_remedy(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_arguments: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store, "faults", refuse)
    status, result = run_module(model_stage, capsys, repo="org/tiny", dest=str(copied))
    assert status == 1
    assert "Set ansible_become: true" in result["msg"]
