# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine which files of a model are on this node and which are missing. Private to the collection.

The listing has the form of the Hugging Face Hub (``/api/models/REPO/revision/REVISION?blobs=true``), which mirrors
use too: ``siblings`` with ``rfilename``, ``size``, ``blobId`` (git's SHA-1) and, for large files, ``lfs.sha256``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

MARKER = ".gb10-staged.json"
PART = ".part"
_BLOCK = 1 << 20
_DIGEST = re.compile(r"[0-9A-Za-z]{1,128}")
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_LONGEST = 1024  # characters of a name; a part of it may have 255 bytes
FILES = 100_000  # of a model; the largest on the hub have some hundred
ALGORITHMS = ("sha256", "git")


class ListingError(ValueError):
    """An unusable listing; the text says why."""


@dataclass(frozen=True)
class File:
    """One file of a model: its path inside the model, its size in bytes, and its digest (``sha256`` or ``git``).

    Raise ListingError for what no file of a model can be: root writes where the name says, as much as the size says.
    """

    name: str
    size: int
    digest: str
    algorithm: str

    def __post_init__(self) -> None:
        if not is_inside(self.name):
            raise ListingError(f"the listing names {_shown(self.name)}, which is no file in the model's directory")
        if not isinstance(self.size, int) or not 0 <= self.size < 2**50:
            raise ListingError(f"{self.name} has {_shown(self.size)} as its size")
        if not isinstance(self.digest, str) or not _DIGEST.fullmatch(self.digest) or self.algorithm not in ALGORITHMS:
            raise ListingError(f"{self.name} has {_shown(self.digest)} ({_shown(self.algorithm)}) as its digest")


def _shown(value: object) -> str:
    return ascii(value)[:100]


def check_commit(commit: object) -> str:
    """Return a commit, which becomes a part of addresses; raise ListingError if it can be none."""
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise ListingError(f"{_shown(commit)} is not a commit")
    return commit


def check_files(files: Sequence[File]) -> None:
    """Raise ListingError if a model can't have these files together."""
    names = {file.name for file in files}
    above = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    if len(names) < len(files) or len(files) > FILES or names & above:
        raise ListingError(f"the listing has a name twice, or more than {FILES} files")


def parse_listing(text: bytes | str, skip: Iterable[str] = ()) -> tuple[str, list[File]]:
    """Return the commit and the files of a listing; raise :class:`ListingError`.

    ``skip`` are patterns of names to omit (``*.pth``). A name that points outside the directory is rejected.
    """
    try:
        listing = json.loads(text)
        commit = check_commit(listing["sha"])
        files = [_file(entry) for entry in listing["siblings"]]
    except ListingError:
        raise
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ListingError(f"not the listing of a model ({repr(error)[:200]})") from error
    patterns = list(skip)
    wanted = [f for f in files if not any(PurePosixPath(f.name).match(pattern) for pattern in patterns)]
    if not wanted:
        raise ListingError("the listing names no files")
    check_files(wanted)
    return commit, wanted


def is_inside(name: object) -> bool:
    """Return whether a name is that of a file inside the directory of its model, and not of one of this package."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST:
        return False
    parts = name.split("/")
    plain = all(part not in {"", ".", ".."} and len(part.encode()) <= 240 for part in parts)
    return plain and "\\" not in name and not name.endswith((MARKER, PART))


def _file(entry: Mapping[str, Any]) -> File:
    name, lfs = str(entry["rfilename"]), entry.get("lfs")
    if lfs:
        return File(name, int(lfs["size"]), str(lfs["sha256"]), "sha256")
    return File(name, int(entry["size"]), str(entry["blobId"]), "git")


def digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file in the form of the listing: SHA-256 of the content, or git's SHA-1 of the blob."""
    if algorithm == "sha256":
        hasher = hashlib.sha256()
    else:
        hasher = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


def missing(directory: Path, files: Iterable[File], recorded: Mapping[str, str]) -> list[File]:
    """Return the files that are absent or incomplete; ``recorded`` maps names to digests that were verified before."""
    return [
        file
        for file in files
        if recorded.get(file.name) != file.digest or not _has_size(directory / file.name, file.size)
    ]


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except FileNotFoundError:
        # It got another name meanwhile.
        return False


def needed_bytes(directory: Path, files: Iterable[File]) -> int:
    """Return how many bytes are still missing; partial downloads count as present."""
    return sum(file.size - min(file.size, partial_size(directory, file)) for file in files)


def partial_size(directory: Path, file: File) -> int:
    """Return how many bytes of a file an earlier run downloaded, or its size if somebody copied it here.

    The download may give the file its final name at any time, so it is not asked first whether it is there.
    """
    try:
        return (directory / (file.name + PART)).stat().st_size
    except FileNotFoundError:
        return file.size if is_copied(directory, file) else 0


def is_copied(directory: Path, file: File) -> bool:
    """Return whether a file of the right size is there that no run has recorded, so its digest is not known yet."""
    return _has_size(directory / file.name, file.size) and file.name not in (read_marker(directory).get("files") or {})


def read_marker(directory: Path) -> dict[str, Any]:
    """Return the record ``{repo, commit, complete, files: {name: digest}}`` of an earlier run, or an empty one.

    A record that names a file outside of the directory counts as damaged: root reads and deletes what records name.
    """
    try:
        marker = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    files = marker.get("files", {}) if isinstance(marker, dict) else None
    return marker if isinstance(files, dict) and all(map(is_inside, files)) else {}


def write_marker(directory: Path, repo: str, commit: str, files: Mapping[str, str], complete: bool) -> None:
    """Record verified files, so that a later run does not read hundreds of gigabytes again."""
    marker = {"repo": repo, "commit": commit, "complete": complete, "files": dict(sorted(files.items()))}
    temporary = directory / (MARKER + PART)
    temporary.write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    temporary.replace(directory / MARKER)


def drop_former(directory: Path, files: Iterable[File], recorded: dict[str, str]) -> None:
    """Delete the recorded files that this revision of a model does not have, and forget them; raise OSError.

    SGLang would load the shards or the index of the former revision if their names differ.
    """
    for name in recorded.keys() - {file.name for file in files}:
        (directory / name).unlink(missing_ok=True)
        del recorded[name]


def human(size: float) -> str:
    """Return a size in readable form: ``59.3 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.1f} TB"


def progress(total: int, left: int, fetched: int, seconds: float) -> str:
    """Return how far a download is, with the rate of the last slice and the remaining time at this rate."""
    there = total - left
    text = f"{100 * there // max(total, 1)} % ({human(there)} of {human(total)})"
    rate = fetched / max(seconds, 0.001)
    if not left or rate <= 0:
        return text
    minutes, rest = divmod(round(left / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{text}, {human(rate)}/s, {f'{hours} h {minutes} min' if hours else f'{minutes} min {rest} s'} left"


# Check that a model which was copied to this node is complete.
#
# A copied directory has no list of digests, but its own files show what belongs to it: the index names every shard, a
# shard's name contains the number of shards, and a safetensors file begins with the offset of each of its tensors.

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
        if length > _HEADER_LIMIT:
            raise ValueError(f"a header of {length} bytes")
        tensors = {name: tensor for name, tensor in json.loads(stream.read(length)).items() if name != "__metadata__"}
    return 8 + length + max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)


# What is in the directory of the models.


@dataclass(frozen=True)
class Staged:
    """One model. ``size`` is in bytes; ``fault`` says what is missing or damaged, and is empty for a complete model.

    ``recorded`` maps the files that were verified at the download to their digests. It is empty for a copied model.
    """

    directory: Path
    repo: str
    commit: str
    size: int
    recorded: dict[str, str]
    fault: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, without the digests."""
        return {
            "repo": self.repo,
            "directory": str(self.directory),
            "commit": self.commit,
            "bytes": self.size,
            "downloaded": bool(self.recorded),
            "fault": self.fault,
        }

    def __str__(self) -> str:
        origin = f"commit {self.commit[:12]}" if self.commit else "copied, no digests"
        return f"{self.repo}: {human(self.size)}, {origin}, {self.fault or 'complete'}"


def read_models(root: Path) -> list[Staged]:
    """Return the models in ``root``, by name, also what a stopped download or removal left of one. Raise OSError."""
    return [
        _read(path)
        for path in sorted(root.iterdir())
        if path.is_dir() and ("--" in path.name or (path / MARKER).is_file() or (path / "config.json").is_file())
    ]


def _read(directory: Path) -> Staged:
    marker = read_marker(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    recorded = dict(marker.get("files") or {})
    repo = str(marker.get("repo") or directory.name.replace("--", "/", 1))
    size = sum(path.stat().st_size for path in files)
    if not recorded:
        fault = "; ".join(faults(directory))
    else:
        lacking = [name for name in recorded if not (directory / name).is_file()]
        fault = "" if marker.get("complete") else "the download is not finished"
        fault = f"missing: {', '.join(sorted(lacking))}" if lacking else fault
    return Staged(directory, repo, str(marker.get("commit") or ""), size, recorded, fault)


def unknown(root: Path, repo: str, found: Iterable[Staged]) -> str:
    """Return the message for a model that is not in ``root``, with the names of those that are."""
    return f"{repo} is not in {root}. There: {', '.join(model.repo for model in found) or 'no models'}."


def unreadable(root: Path, error: OSError) -> str:
    """Return the message for a directory of models that can't be read or changed."""
    if isinstance(error, FileNotFoundError):
        advice = "Set gb10_models_dir to the directory with the models; the first download creates it"
        return f"{root} does not exist. {advice}."
    return f"The models can't be read: {error}. Set ansible_become: true, and check the disk of {root}."
