# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch files from the other nodes of a transfer. Private to the collection; standard library only."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from .fetch import save, settle, start_part
from .share_server import CONTACTS, TOKEN
from .share_state import Item

TIMEOUT = 15
CONNECT = 5
LATELY = 60
STATE_BYTES = 4 << 20  # an answer names the files that a peer has, with seven bytes each; a longer one is not JSON


@dataclass(frozen=True)
class Peer:
    """Another node, with the pairs of its address and ours that reach each other over the fabric."""

    name: str
    paths: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Peer:
        """Return the peer of ``{name, paths: [{to, via}]}``."""
        return cls(value["name"], tuple((path["to"], path["via"]) for path in value["paths"]))


class Client:
    """Asks peers, on all their paths in turn."""

    def __init__(self, peers: Sequence[Peer], port: int, token: str) -> None:
        self._peers, self._port, self._token = {peer.name: peer for peer in peers}, port, token
        self._turn = itertools.count()
        # When a path failed. Such paths are tried last, because an address without a link answers nothing for seconds.
        self._failed: dict[tuple[str, str], float] = {}

    def state(self, peer: str, contacts: Mapping[str, int]) -> dict[str, Any]:
        """Return what a peer has, and tell it which contacts with the controller are known; raise OSError."""
        with self._open(peer, "/state", {CONTACTS: json.dumps(contacts)}) as answer:
            try:
                found: dict[str, Any] = json.loads(answer.read(STATE_BYTES))
            except ValueError as error:
                raise ConnectionError(f"{peer} sent an invalid answer") from error
        return found

    def fetch(
        self, peer: str, number: int, item: Item, alive: Callable[[], bool], received: Callable[[int], None]
    ) -> bool:
        """Copy one file from a peer, or continue an earlier copy; return False if ``alive`` returned False.

        Raise OSError if the peer does not answer or ends early, and FetchError if its copy is damaged.
        """
        part, done = start_part(item.directory, item.file)
        if done < item.file.size:
            wanted = {"Range": f"bytes={done}-"} if done else {}
            with self._open(peer, f"/file/{number}", wanted) as answer:
                if done and answer.status != 206:
                    raise ConnectionError(f"{peer} ignored the range")
                if not save(answer, part, "ab", item.file.size - done, alive, received):
                    return False
        settle(item.repo, item.file, item.directory)
        return True

    def _paths(self, peer: str) -> list[tuple[str, str]]:
        """Return the paths to a peer, each time beginning with another one, those that failed lately last."""
        paths, first = self._peers[peer].paths, next(self._turn)
        turned = [paths[(first + offset) % len(paths)] for offset in range(len(paths))]
        lately = time.monotonic() - LATELY
        return sorted(turned, key=lambda path: self._failed.get(path, lately) > lately)

    @contextmanager
    def _open(self, peer: str, path: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Connect on the next path that works, and send a request; raise OSError."""
        failure: OSError = ConnectionError(f"{peer} has no path")
        for theirs, ours in self._paths(peer):
            connection = http.client.HTTPConnection(theirs, self._port, timeout=CONNECT, source_address=(ours, 0))
            try:
                connection.connect()
                connection.sock.settimeout(TIMEOUT)
            except OSError as error:
                connection.close()
                self._failed[theirs, ours] = time.monotonic()
                failure = ConnectionError(f"{theirs} from {ours}: {error}")
                continue
            with closing(connection):
                try:
                    connection.request("GET", path, headers={TOKEN: self._token, **headers})
                    answer = connection.getresponse()
                    if answer.status not in (200, 206):
                        raise ConnectionError(f"{peer} answers {answer.status}")
                    yield answer
                except http.client.HTTPException as error:
                    raise ConnectionError(f"{peer}: {error!r}") from error
            return
        raise failure
