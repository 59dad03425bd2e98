# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node has, fetches and still needs during a transfer between nodes. Private; standard library only."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import store


@dataclass(frozen=True)
class Item:
    """One file of one model. Its number in the list of the transfer names it between the nodes."""

    repo: str
    commit: str
    directory: Path
    file: store.File

    @property
    def name(self) -> str:
        """Return ``organisation/name/file``."""
        return f"{self.repo}/{self.file.name}"

    def begun(self) -> int:
        """Return the bytes of this file that an earlier attempt left."""
        return store.partial_size(self.directory, self.file)


def items_of(models: Iterable[Mapping[str, Any]]) -> list[Item]:
    """Return the files of models ``{repo, commit, dest, files: [{name, size, digest, algorithm}]}``.

    Raise store.ListingError for files that a model can't have.
    """
    items: list[Item] = []
    for model in models:
        files = [store.File(**file) for file in model["files"]]
        store.check_files(files)
        commit = store.check_commit(model["commit"])
        items += [Item(model["repo"], commit, Path(model["dest"]), file) for file in files]
    return items


class State:
    """The state of one node's transfer; its threads share it."""

    def __init__(self, items: Sequence[Item], hub: Collection[str]) -> None:
        self.items = items
        self._lock = threading.Lock()
        self._recorded: dict[Path, dict[str, str]] = {}
        self._hub = {number for number, item in enumerate(items) if item.name in hub}
        self._taken: set[int] = set()
        # Pairs of a peer and a file of which that peer sent a damaged copy.
        self._bad: set[tuple[str, int]] = set()
        self.held: set[int] = set()
        self.from_hub = self.from_peers = self.sent = self.active = 0
        self.changed = False
        self.failed: dict[str, str] = {}
        self._scan()

    def _scan(self) -> None:
        for directory in {item.directory for item in self.items}:
            recorded = dict(store.read_marker(directory).get("files") or {})
            self._recorded[directory] = recorded
            numbers = [number for number, item in enumerate(self.items) if item.directory == directory]
            lacking = store.missing(directory, [self.items[number].file for number in numbers], recorded)
            self.held |= {number for number in numbers if self.items[number].file not in lacking}
        for directory in self._recorded:
            self._mark(directory)

    def _mark(self, directory: Path) -> None:
        """Write the record of a model; it is complete if all its files are there."""
        numbers = [number for number, item in enumerate(self.items) if item.directory == directory]
        item = self.items[numbers[0]]
        complete = self.held.issuperset(numbers)
        recorded = self._recorded[directory]
        if complete:
            store.drop_former(directory, [self.items[number].file for number in numbers], recorded)
        elif not self.held.intersection(numbers):
            return
        old = store.read_marker(directory)
        new = {"repo": item.repo, "commit": item.commit, "complete": complete, "files": dict(sorted(recorded.items()))}
        if old != new:
            self.changed = True
            store.write_marker(directory, item.repo, item.commit, recorded, complete)

    def held_numbers(self) -> list[int]:
        """Return the numbers of the files that peers may fetch."""
        with self._lock:
            return sorted(self.held)

    def lacking(self) -> set[int]:
        """Return the numbers of the files that are not verified on this node yet."""
        with self._lock:
            return set(range(len(self.items))) - self.held

    def downloads(self) -> bool:
        """Return whether this node still has to download files from the hub."""
        with self._lock:
            return not self._hub <= self.held

    def claim_hub(self) -> int | None:
        """Return a file that this node downloads from the hub and that no thread fetches yet."""
        with self._lock:
            return self._claim(sorted(self._hub - self.held))

    def claim_peer(self, offers: Mapping[str, Collection[int]], start: int) -> tuple[int, list[str]] | None:
        """Return a file that peers offer, with these peers; nodes with different ``start`` begin with other files."""
        with self._lock:
            lacking = set(range(len(self.items))) - self.held - self._hub
            sources = {
                number: [peer for peer, has in offers.items() if number in has and (peer, number) not in self._bad]
                for number in lacking
            }
            count = len(self.items)
            found = [number for number in sorted(lacking, key=lambda n: (n - start) % count) if sources[number]]
            number = self._claim(found)
            return None if number is None else (number, sources[number])

    def _claim(self, numbers: Iterable[int]) -> int | None:
        number = next((number for number in numbers if number not in self._taken), None)
        if number is not None:
            self._taken.add(number)
        return number

    def release(self, number: int) -> None:
        """Let another thread fetch a file."""
        with self._lock:
            self._taken.discard(number)

    def hold(self, number: int) -> None:
        """Record a verified file, which peers may fetch from now on."""
        item = self.items[number]
        with self._lock:
            self._recorded[item.directory][item.file.name] = item.file.digest
            self.held.add(number)
            self.changed = True
            self._mark(item.directory)

    def distrust(self, peer: str, number: int) -> None:
        """Do not fetch this file from this peer again."""
        with self._lock:
            self._bad.add((peer, number))

    def distrusted(self) -> list[str]:
        """Return which peers sent damaged copies of which files."""
        with self._lock:
            return sorted(f"{self.items[number].name} on {peer}" for peer, number in self._bad)

    def count(self, *, hub: int = 0, peers: int = 0, sent: int = 0, active: int = 0) -> None:
        """Add to the numbers of bytes, and to the number of files that are being sent."""
        with self._lock:
            self.from_hub += hub
            self.from_peers += peers
            self.sent += sent
            self.active += active

    def drop_cache(self) -> None:
        """Give the memory that caches these files back: a GPU that shares the memory needs it to load them."""
        for number in self.held_numbers():
            item = self.items[number]
            with suppress(OSError), (item.directory / item.file.name).open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def present_bytes(self) -> int:
        """Return the bytes of verified files and of partial ones."""
        with self._lock:
            held = set(self.held)
        total = 0
        for number, item in enumerate(self.items):
            total += item.file.size if number in held else item.begun()
        return total
