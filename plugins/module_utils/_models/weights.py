# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a model which was copied to this node is complete. Private to the collection; standard library only.

A copied directory has no list of digests, but its own files show what belongs to it: the index names every shard, a
shard's name contains the number of shards, and a safetensors file begins with the offset of each of its tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from .store import is_inside

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_SHARD = re.compile(
    r"(?P<stem>.+-)(?P<number>\d+)(?P<of>-of-(?P<count>\d{1,5})\.\w+)"
)  # model-00001-of-00046.safetensors
# The format limits the header to so many bytes; a larger number is not the length of a header.
_HEADER_LIMIT = 100_000_000
_INDEX_LIMIT = 100_000_000  # bytes; the largest on the hub have some MB
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def faults(directory: Path) -> list[str]:
    """Return one sentence per missing or truncated file; an empty list for a complete model. Raise OSError."""
    if not directory.is_dir():
        return ["the directory does not exist"]
    found = [] if (directory / "config.json").is_file() else ["config.json is missing"]
    try:
        names = sorted(_expected(directory))
    except _UNREADABLE as error:
        return [*found, f"the index of its weights can't be read ({error!r})"]
    if not names:
        return [*found, "there are no weights"]
    wrong = ((name, _wrong(directory / name)) for name in names)
    return found + [f"{name} {what}" for name, what in wrong if what]


def _expected(directory: Path) -> set[str]:
    """Return the names of all weight files that this directory should contain."""
    names = {path.name for pattern in WEIGHTS for path in directory.glob(pattern)}
    for index in directory.glob("*.index.json"):
        if index.stat().st_size > _INDEX_LIMIT:
            raise ValueError(f"more than {_INDEX_LIMIT} bytes")
        listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if others := sorted(name for name in listed if not is_inside(name)):
            raise ValueError(f"{others[0][:100]!a} is no file of the model")
        names |= listed
    return names | {name for known in names for name in _siblings(known)}


def _siblings(name: str) -> Iterator[str]:
    shard = _SHARD.fullmatch(name)
    if shard is not None:
        for number in range(1, int(shard["count"]) + 1):
            yield f"{shard['stem']}{number:0{len(shard['number'])}}{shard['of']}"


def _wrong(path: Path) -> str:
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size == 0:
        return "is empty"
    if path.suffix != ".safetensors":
        return ""
    try:
        whole = _safetensors_size(path)
    except _UNREADABLE:
        return "does not begin with a safetensors header"
    return "" if size == whole else f"has {size} of {whole} bytes"


def _safetensors_size(path: Path) -> int:
    """Return the file size that a safetensors header states; raise ValueError, KeyError, … for an invalid header."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= _HEADER_LIMIT:
            raise ValueError(f"a header of {length} bytes")
        tensors = {name: tensor for name, tensor in json.loads(stream.read(length)).items() if name != "__metadata__"}
    return 8 + length + max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
