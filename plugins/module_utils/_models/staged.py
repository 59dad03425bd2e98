# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List, verify and remove the models in a directory of this node. Private to the collection; standard library only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from . import store, weights


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
        return f"{self.repo}: {store.human(self.size)}, {origin}, {self.fault or 'complete'}"


def read_models(root: Path) -> list[Staged]:
    """Return the models in ``root``, by name, also what a stopped download or removal left of one. Raise OSError."""
    return [_read(path) for path in sorted(root.iterdir()) if path.is_dir() and _is_model(path)]


def _is_model(path: Path) -> bool:
    return "--" in path.name or (path / store.MARKER).is_file() or (path / "config.json").is_file()


def _read(directory: Path) -> Staged:
    marker = store.read_marker(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    recorded = dict(marker.get("files") or {})
    repo = str(marker.get("repo") or directory.name.replace("--", "/", 1))
    size = sum(path.stat().st_size for path in files)
    if not recorded:
        fault = "; ".join(weights.faults(directory))
    else:
        lacking = [name for name in recorded if not (directory / name).is_file()]
        fault = "" if marker.get("complete") else "the download is not finished"
        fault = f"missing: {', '.join(sorted(lacking))}" if lacking else fault
    return Staged(directory, repo, str(marker.get("commit") or ""), size, recorded, fault)


def verify(model: Staged, checked: Collection[str], alive: Callable[[], bool]) -> tuple[list[str], list[str], bool]:
    """Compare files with their digests; return those that match, those that do not, and whether none is left.

    ``checked`` are names to leave out. At least one file is read, even if ``alive`` returns False at once.
    """
    good: list[str] = []
    damaged: list[str] = []
    for name, expected in sorted(model.recorded.items()):
        if name in checked:
            continue
        if (good or damaged) and not alive():
            return good, damaged, False
        # A SHA-256 has 64 digits, the SHA-1 of a git blob 40.
        algorithm = "sha256" if len(expected) == 64 else "git"
        path = model.directory / name
        right = path.is_file() and store.digest(path, algorithm) == expected
        (good if right else damaged).append(name)
    return good, damaged, True


def forget(model: Staged, damaged: Collection[str]) -> None:
    """Record files without a digest, so that the next download fetches them again."""
    kept = {name: "" if name in damaged else value for name, value in model.recorded.items()}
    store.write_marker(model.directory, model.repo, model.commit, kept, complete=False)


def users(model: Staged, commands: Iterable[list[str]]) -> list[str]:
    """Return the programs whose command line names the directory of the model, in the host's or a pod's file system."""
    name = model.directory.name
    using = (argv for argv in commands if any(name in PurePosixPath(word).parts for word in argv))
    return sorted({" ".join(argv[:3]) for argv in using})
