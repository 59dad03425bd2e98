# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch models from the hub and from other nodes, and serve them, until all is there or nobody watches any more.

One process per node. Private to the collection; standard library only.
"""

from __future__ import annotations

import errno
import http.client
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from .control import Control
from .fetch import FetchError, Hub
from .share_client import Client, Peer
from .share_server import Server
from .share_state import Item, State
from .share_watch import Watch

# Seconds without a byte on any node after which a node that waits gives up; less after a node said that it failed.
STALLED = 180.0
STALLED_AFTER_FAILURE = 10.0
POLL = 1.0
CLOSE_AFTER = 5.0  # several times POLL
LONGEST = 300  # characters of what a peer says about a failure
# Requests without a byte after which a download fails: five minutes with the pauses, so that a router may restart.
HUB_TRIES = 10
LONGEST_PAUSE = 60.0
HUB = "the hub"
# Another try can't help against these.
OF_THE_DISK = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EIO}


@dataclass(frozen=True)
class Order:
    """What one node does in a transfer: options of model_share, and its files.

    ``place`` is its number, with which it begins; ``hub`` names its downloads.
    """

    name: str
    place: int
    items: Sequence[Item]
    hub: frozenset[str]
    peers: Sequence[Peer]
    addresses: Sequence[str]
    port: int
    secret: str
    url: str
    token: str
    streams: int
    orphan_seconds: float


class Share:
    """One node's part of a transfer."""

    def __init__(self, order: Order, control: Control) -> None:
        self._order, self._control = order, control
        self.state = State(order.items, order.hub)
        self._client = Client(order.peers, order.port, order.secret)
        self._hub = Hub(order.url, order.token)
        self._servers: list[Server] = []
        self._end = threading.Event()
        now = time.monotonic()
        self._begun, self._ended = now, 0.0
        self._watch = Watch(order.name, control, [peer.name for peer in order.peers])
        self._offers: dict[str, frozenset[int]] = {}
        self._loads: dict[str, int] = {}
        self._received = {peer.name: 0 for peer in order.peers}
        self._silent: dict[str, str] = {}
        # A node that tries again is not stalled, so the nodes that wait for it count its tries.
        self._tries = 0
        self._moved, self._moved_at = -1, now
        self._error = ""
        self._all_done_at = 0.0

    def listen(self) -> None:
        """Open the servers; raise OSError if an address can't be used, after closing the others."""
        allowed = {theirs for peer in self._order.peers for theirs, _ours in peer.paths}
        try:
            for address in self._order.addresses:
                self._servers.append(
                    Server((address, self._order.port), allowed, self._order.secret, self.state, self._describe)
                )
        except OSError:
            self._close()
            raise
        for server in self._servers:
            server.start()

    def _close(self) -> None:
        for server in self._servers:
            server.server_close()

    def run(self) -> None:
        """Fetch and serve until the modules end it, or the controller is gone."""
        works: list[Callable[[], None]] = [self._download] * self._order.streams if self._order.hub else []
        works += [self._copy] * self._order.streams if self._order.peers else []
        works += [partial(self._ask, peer.name) for peer in self._order.peers]
        threads = [threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        try:
            while not self._control.stop_requested() and self._watch.seconds() <= self._order.orphan_seconds:
                self._judge()
                self._tell()
                self._close_when_done()
                self._end.wait(0.5)
        finally:
            self._end.set()
            for server in self._servers:
                server.end()
            for thread in threads:
                thread.join(2)
            self.state.drop_cache()

    def _tell(self) -> None:
        try:
            self._control.write(self.status())
        except OSError as error:
            # A full disk: keep serving, and say it as soon as there is room for it.
            self._fail(str(error))

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(repr(error))

    def status(self) -> dict[str, Any]:
        """Return what the modules show."""
        state = self.state
        lacking = state.lacking()
        if not lacking and not self._ended:
            self._ended = time.monotonic()
        return {
            "pid": os.getpid(),
            "age": self._watch.seconds(),
            "done": not lacking,
            "error": self._error,
            "seconds": (self._ended or time.monotonic()) - self._begun,
            "changed": state.changed,
            "files": len(state.items),
            "files_left": len(lacking),
            "total_bytes": sum(item.file.size for item in state.items),
            "present_bytes": state.present_bytes(),
            "hub_bytes": state.from_hub,
            "peer_bytes": state.from_peers,
            "sent_bytes": state.sent,
            "silent": dict(self._silent),
        }

    # -- what peers say ------------------------------------------------------------------------------------------------

    def _describe(self, contacts: Mapping[str, int]) -> dict[str, Any]:
        """Return what a peer learns of this node, and learn from it when the controller was there."""
        self._watch.hear(contacts)
        state = self.state
        return {
            "held": state.held_numbers(),
            "load": state.active,
            "contacts": self._watch.counts(),
            "received": state.from_hub + state.from_peers + self._tries,
            "failed": dict(state.failed),
        }

    def _ask(self, peer: str) -> None:
        while not self._end.wait(POLL):
            try:
                self._hear(peer, self._client.state(peer, self._watch.counts()))
                self._silent.pop(peer, None)
            except (OSError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                self._offers.pop(peer, None)
                self._silent[peer] = str(error)[:LONGEST]
            if self._all_done():
                return

    def _hear(self, peer: str, told: Mapping[str, Any]) -> None:
        """Learn what a peer says; names of other nodes and numbers of other files are ignored."""
        self._offers[peer] = frozenset(map(int, told["held"])) & frozenset(range(len(self.state.items)))
        self._loads[peer], self._received[peer] = int(told["load"]), int(told["received"])
        known = {self._order.name, *self._received}
        failed = {str(name): str(why)[:LONGEST] for name, why in told["failed"].items() if name in known}
        self.state.failed.update(failed)
        self._watch.hear({str(name): int(count) for name, count in told["contacts"].items() if name in known})

    def _all_done(self) -> bool:
        """Return whether this node and all its peers have all files, as far as they said."""
        every = frozenset(range(len(self.state.items)))
        return not self.state.lacking() and all(self._offers.get(peer.name) == every for peer in self._order.peers)

    def _close_when_done(self) -> None:
        """Stop listening some seconds after the last node is done, in which the others learn that this one is done."""
        if not self._all_done():
            self._all_done_at = 0.0
        elif not self._all_done_at:
            self._all_done_at = time.monotonic()
        elif time.monotonic() - self._all_done_at > CLOSE_AFTER:
            while self._servers:
                self._servers.pop().end()

    def _judge(self) -> None:
        """Give up if files are missing and nothing moves on any node that we hear of."""
        moved = self.state.from_hub + self.state.from_peers + sum(self._received.values()) + len(self.state.held)
        now = time.monotonic()
        if moved != self._moved or not self.state.lacking():
            self._moved, self._moved_at = moved, now
        limit = STALLED_AFTER_FAILURE if self.state.failed else STALLED
        if now - self._moved_at <= limit or self._error or self.state.downloads():
            return
        reasons = [f"{name} failed: {why}" for name, why in sorted(self.state.failed.items())]
        reasons += [f"{name} does not answer: {why}" for name, why in sorted(self._silent.items())]
        if damaged := self.state.distrusted():
            reasons.append(f"damaged: {', '.join(damaged)}; playbook models with models_state=verified finds them all")
        self._fail(
            f"{len(self.state.lacking())} files are missing and no node has received anything for {limit:.0f} s"
            f" ({'; '.join(reasons) or 'no node offers them'})",
            ours=False,
        )

    def _fail(self, text: str, ours: bool = True) -> None:
        self._error = self._error or text
        if ours:
            self.state.failed[self._order.name] = text

    # -- fetching ------------------------------------------------------------------------------------------------------

    def _alive(self) -> bool:
        return not self._end.is_set()

    def _download(self) -> None:
        tries = 0
        while self._alive() and not self._error:
            number = self.state.claim_hub()
            if number is None:
                return
            item, before = self.state.items[number], self.state.from_hub
            try:
                if self._hub.fetch(
                    item.repo, item.commit, item.file, item.directory, self._alive, self._count_downloaded
                ):
                    self.state.hold(number)
                    tries = 0
            except FetchError as error:
                self._fail(str(error))
            except (OSError, http.client.HTTPException) as error:
                tries = 1 if self.state.from_hub > before else tries + 1
                self._tries += 1
                self._silent[HUB] = f"{item.name}: {error}"
                if tries >= HUB_TRIES or getattr(error, "errno", None) in OF_THE_DISK:
                    self._fail(self._silent[HUB])
                self._end.wait(min(2**tries, LONGEST_PAUSE))
            finally:
                self.state.release(number)

    def _count_downloaded(self, count: int) -> None:
        self.state.count(hub=count)
        self._silent.pop(HUB, None)

    def _copy(self) -> None:
        while self._alive() and not self._error:
            start = self._order.place * len(self.state.items) // (len(self._order.peers) + 1)
            claimed = self.state.claim_peer(dict(self._offers), start)
            if claimed is None:
                if not self.state.lacking():
                    return
                self._end.wait(0.2)
                continue
            number, peers = claimed
            try:
                self._copy_one(number, min(peers, key=lambda peer: (self._loads.get(peer, 0), peer)))
            finally:
                self.state.release(number)

    def _copy_one(self, number: int, peer: str) -> None:
        self._loads[peer] = self._loads.get(peer, 0) + 1
        item = self.state.items[number]
        begun = item.begun()
        try:
            if self._client.fetch(peer, number, item, self._alive, lambda n: self.state.count(peers=n)):
                self.state.hold(number)
        except FetchError:
            if not begun or item.begun():
                self.state.distrust(peer, number)
        except OSError as error:
            if error.errno in OF_THE_DISK:
                self._fail(f"{item.name}: {error}")
            # The peer ended or lost the file. Its next answer to _ask offers its files again.
            self._offers.pop(peer, None)
            self._end.wait(0.5)


def order_of(options: Mapping[str, Any], items: Sequence[Item]) -> Order:
    """Return the order that a module was given."""
    known = {field.name: options[field.name] for field in fields(Order) if field.name in options}
    peers = [Peer.of(peer) for peer in options["peers"]]
    return Order(**known | {"items": items, "hub": frozenset(options["hub"]), "peers": peers})
