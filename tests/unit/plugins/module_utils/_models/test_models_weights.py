# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that missing and truncated files of a copied model are found."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models.store import faults

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def safetensors(size: int = 64) -> bytes:
    """Return a file of two tensors with ``size`` bytes together, of which the last one is named in the middle."""
    last = {"dtype": "U8", "shape": [size - 1], "data_offsets": [1, size]}
    tensors = {"first": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "last": last}
    header = json.dumps(
        {**tensors, "empty": {**last, "data_offsets": [0, 0]}, "__metadata__": {"format": "pt"}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A complete model of three shards and their index."""
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {f"layer{place}": name for place, name in enumerate(SHARDS)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in SHARDS:
        (tmp_path / name).write_bytes(safetensors())
    return tmp_path


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_a_complete_model_has_no_faults(model: Path) -> None:
    assert faults(model) == []


def test_a_model_in_one_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    assert faults(tmp_path) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda m: (m / SHARDS[1]).unlink(), [f"{SHARDS[1]} is missing"]),
        (lambda m: cut(m / SHARDS[1], 0), [f"{SHARDS[1]} is empty"]),
        (lambda m: cut(m / SHARDS[2], 5), [f"{SHARDS[2]} does not begin with a safetensors header"]),
        (lambda m: cut(m / SHARDS[2], 40), [f"{SHARDS[2]} does not begin with a safetensors header"]),
        (lambda m: cut(m / SHARDS[2], len(safetensors()) - 9), [f"{SHARDS[2]} has 291 of 300 bytes"]),
        (lambda m: (m / "config.json").unlink(), ["config.json is missing"]),
        *(
            (lambda m, text=text: (m / "model.safetensors.index.json").write_text(text), ["the index of its weights"])
            for text in ("[]", "{", "{}", '{"weight_map": []}')
        ),
    ],
)
def test_what_is_missing_or_cut_off_is_named(model: Path, spoil: Callable[[Path], None], said: list[str]) -> None:
    spoil(model)
    found = faults(model)
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True)), found


def test_without_an_index_the_shards_names_tell_how_many_there_are(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    assert faults(model) == []
    (model / SHARDS[2]).unlink()
    assert faults(model) == [f"{SHARDS[2]} is missing"]


def test_files_of_other_formats_are_checked_for_presence_and_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert faults(tmp_path) == []
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert faults(tmp_path) == ["pytorch_model.bin is empty"]


def test_a_directory_without_weights_or_none_at_all_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert faults(tmp_path) == ["there are no weights"]
    assert faults(tmp_path / "gone") == ["the directory does not exist"]
