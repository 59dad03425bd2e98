# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's part of a transfer of models: download, copy from the other nodes, and serve these.

A node serves its verified files under the paths of the hub (``/REPO/resolve/COMMIT/NAME``), so what downloads from the
hub copies from a node too. ``/state`` says what a node has. Names, sizes and digests come from the plan alone: a peer
gives numbers and bytes, and a request is looked up among the paths of the plan. Private to the collection; standard
library only.
"""

from __future__ import annotations

import errno
import hmac
import http.client
import json
import os
import random
import re
import socketserver
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from . import store
from .control import Control, digest
from .fetch import FetchError, Hub, Plain, path_of

# Seconds without a byte on any node after which a node that waits gives up; less after a node said that it failed.
STALLED = 180.0
STALLED_AFTER_FAILURE = 10.0
POLL = 1.0
CLOSE_AFTER = 5.0  # several times POLL
TIMEOUT = 10.0
# A node that sends fewer bytes in a second, over so many seconds, does not keep the others waiting.
SLOWEST, SLOW_SECONDS = 64_000, 30.0
# Requests without a byte after which a download fails: five minutes with the pauses, so that a router may restart.
HUB_TRIES = 10
PAUSE = 0.5  # seconds before a node is asked again; before the hub is asked again, twice as long after each try
LONGEST_PAUSE = 60.0
LONGEST = 300  # characters of what a peer says about a failure
STATE_BYTES = 4 << 20  # the numbers of the files that a peer has, with seven bytes each
THREADS = 1000  # of the process, after which no connection is accepted
HUB = "the hub"
# Another try can't help against these.
OF_THE_DISK = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EIO}
_RANGE = re.compile(r"bytes=(\d{1,15})-")


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


class _Via(Plain):
    """Connects from one address of this node."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(http.client.HTTPConnection, req, source_address=(self._address, 0))


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: root would ask whatever address a peer names."""

    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class Source:
    """The hub or another node, which has one path or several."""

    def __init__(self, name: str, paths: Sequence[Hub], offers: Collection[int] = ()) -> None:
        self.name, self.offers = name, frozenset(offers)
        self.bad: dict[int, str] = {}  # numbers of files that it does not deliver, with the reason
        self.silent, self.failed, self.received, self.running = "", "", 0, 0
        self._paths = dict.fromkeys(paths, 0.0)  # and when each of them failed last
        self._turn = 0

    def use(self, act: Callable[[Hub], Any]) -> Any:
        """Act on the path that failed longest ago, of several each in turn; raise what ``act`` raises."""
        self._turn += 1
        paths = list(self._paths)
        first = self._turn % len(paths)
        path = min(paths[first:] + paths[:first], key=self._paths.__getitem__)
        try:
            return act(path)
        except (OSError, http.client.HTTPException):
            self._paths[path] = time.monotonic()
            raise


def peer_of(peer: Mapping[str, Any], port: int, secret: str) -> Source:
    """Return the node ``{name, paths: [{to, via}]}``. No proxy and no redirect stands between two nodes."""
    plain = urllib.request.ProxyHandler({})
    return Source(
        peer["name"],
        [
            Hub(f"http://{way['to']}:{port}", secret, TIMEOUT, [plain, _Via(way["via"]), _Stay()])
            for way in peer["paths"]
        ],
    )


class Share:
    """One node's part of a transfer; ``options`` are those of module model_share."""

    def __init__(self, options: Mapping[str, Any], control: Control) -> None:
        self._options, self._control = options, control
        self.items = items_of(options["models"])
        wanted = {number for number, item in enumerate(self.items) if item.name in options["hub"]}
        self._hub = Source(HUB, [Hub(options["url"], options["token"])], wanted)
        self.peers = [peer_of(peer, options["port"], options["secret"]) for peer in options["peers"]]
        # Nodes begin with different files, so that they soon have something for each other.
        self._first = options["place"] * len(self.items) // (len(self.peers) + 1)
        paths = (f"/{path_of(item.repo, item.commit, item.file)}" for item in self.items)
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._servers: list[Server] = []
        self._end, self._lock = threading.Event(), threading.RLock()
        self._begun = self._seen = self._moved_at = time.monotonic()
        self._ended = 0.0
        self._touched = control.contact()
        self._moved = -1
        self._taken: set[int] = set()
        self._held: set[int] = set()
        self._recorded: dict[Path, dict[str, str]] = {}
        self._from_hub = self._from_peers = self._sent = self._tries = 0
        self._changed, self._error, self._failure = False, "", ""
        for directory in {item.directory for item in self.items}:
            self._recorded[directory] = dict(store.read_marker(directory).get("files") or {})
            numbers = self._of(directory)
            lacking = store.missing(directory, [self.items[n].file for n in numbers], self._recorded[directory])
            self._held.update(number for number in numbers if self.items[number].file not in lacking)
            self._mark(directory)

    # -- the process ---------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Open the servers; raise OSError if an address can't be used, after closing the others."""
        allowed = {way["to"] for peer in self._options["peers"] for way in peer["paths"]}
        try:
            for address in self._options["addresses"]:
                self._servers.append(Server((address, self._options["port"]), allowed, self._options["secret"], self))
        except OSError:
            for server in self._servers:
                server.server_close()
            raise
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()

    def run(self) -> None:
        """Fetch and serve until it is stopped, the controller is gone, or the time is over."""
        streams = self._options["streams"]
        works: list[Callable[[], None]] = [partial(self._fetch, [self._hub])] * streams if self._hub.offers else []
        works += [partial(self._fetch, self.peers)] * streams if self.peers else []
        works += [partial(self._ask, peer) for peer in self.peers]
        threads = [threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        all_done_at = 0.0
        try:
            while self.is_alive() and self.age() <= self._options["orphan_seconds"]:
                now = time.monotonic()
                if now - self._begun > self._options["longest_seconds"]:
                    break
                self._judge()
                self._tell()
                all_done_at = (all_done_at or now) if self._all_done() else 0.0
                if all_done_at and now - all_done_at > CLOSE_AFTER:
                    # The others had these seconds to learn that this node is done.
                    self._close()
                self._end.wait(0.5)
        finally:
            self.stop()
            self._close()
            for thread in threads:
                thread.join(2)
            self._drop_cache()

    def stop(self) -> None:
        """End ``run``."""
        self._end.set()

    def is_alive(self) -> bool:
        """Return whether nobody stopped it."""
        return not self._end.is_set()

    def _close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers.clear()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(repr(error))

    def _tell(self) -> None:
        try:
            self._control.write(self.status())
        except OSError as error:
            # A full disk: keep serving, and say it as soon as there is room for it.
            self._fail(str(error))

    def age(self) -> float:
        """Return the seconds since the controller was last known to be there."""
        touched = self._control.contact()
        if touched != self._touched:
            self._touched, self._seen = touched, time.monotonic()
        return time.monotonic() - self._seen

    def status(self) -> dict[str, Any]:
        """Return what the modules show."""
        lacking = self.lacking()
        if not lacking and not self._ended:
            self._ended = time.monotonic()
        present = (
            item.file.size if number not in lacking else store.partial_size(item.directory, item.file)
            for number, item in enumerate(self.items)
        )
        return {
            "pid": os.getpid(),
            "owner": digest(self._options["secret"]),
            "age": self.age(),
            "done": not lacking,
            "error": self._error,
            "seconds": (self._ended or time.monotonic()) - self._begun,
            "changed": self._changed,
            "files": len(self.items),
            "files_left": len(lacking),
            "total_bytes": sum(item.file.size for item in self.items),
            "present_bytes": sum(present),
            "hub_bytes": self._from_hub,
            "peer_bytes": self._from_peers,
            "sent_bytes": self._sent,
            "silent": {source.name: source.silent for source in [self._hub, *self.peers] if source.silent},
        }

    def _drop_cache(self) -> None:
        """Give the memory that caches these files back: a GPU that shares the memory needs it to load them."""
        for number in sorted(self._held):
            item = self.items[number]
            with suppress(OSError), (item.directory / item.file.name).open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    # -- what is here --------------------------------------------------------------------------------------------------

    def lacking(self) -> set[int]:
        """Return the numbers of the files that are not verified on this node yet."""
        with self._lock:
            return set(range(len(self.items))) - self._held

    def _of(self, directory: Path) -> list[int]:
        return [number for number, item in enumerate(self.items) if item.directory == directory]

    def _hold(self, number: int) -> None:
        """Record a verified file, which peers may fetch from now on."""
        item = self.items[number]
        with self._lock:
            self._recorded[item.directory][item.file.name] = item.file.digest
            self._held.add(number)
            self._changed = True
            self._mark(item.directory)

    def _mark(self, directory: Path) -> None:
        """Write the record of a model; it is complete if all its files are there."""
        numbers, recorded = self._of(directory), self._recorded[directory]
        item, complete = self.items[numbers[0]], self._held.issuperset(numbers)
        if complete:
            store.drop_former(directory, [self.items[number].file for number in numbers], recorded)
        elif not self._held.intersection(numbers):
            return
        new = {"repo": item.repo, "commit": item.commit, "complete": complete, "files": dict(sorted(recorded.items()))}
        if store.read_marker(directory) != new:
            self._changed = True
            store.write_marker(directory, item.repo, item.commit, recorded, complete)

    # -- what peers learn and say --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a peer learns. A try counts as received: a node that tries again is not stalled."""
        with self._lock:
            held = sorted(self._held)
        received = self._from_hub + self._from_peers + self._tries
        return {"held": held, "received": received, "failed": self._failure, "age": self.age()}

    def served(self, path: str) -> Item | None:
        """Return the file of a path, if it is one of the plan and is verified here."""
        number = self._numbers.get(path, -1)
        return self.items[number] if number in self._held else None

    def count(self, *, hub: int = 0, peers: int = 0, sent: int = 0) -> None:
        """Add to the numbers of bytes."""
        with self._lock:
            self._from_hub += hub
            self._from_peers += peers
            self._sent += sent

    def _ask(self, peer: Source) -> None:
        while not self._end.wait(POLL):
            asked = time.monotonic()
            try:
                self.hear(peer, json.loads(peer.use(lambda path: path.read("state", STATE_BYTES))), asked)
                peer.silent = ""
            except (
                OSError, http.client.HTTPException, FetchError, AttributeError, KeyError, OverflowError, RecursionError,
                TypeError, ValueError,
            ) as error:  # fmt: skip
                peer.offers, peer.silent = frozenset(), str(error)[:LONGEST]
            if self._all_done():
                return

    def hear(self, peer: Source, told: Mapping[str, Any], asked: float) -> None:
        """Learn what a peer says; numbers of other files are ignored.

        The controller was seen ``age`` seconds before the answer. Counted from ``asked``, before the question, so that
        nodes that ask each other never make it younger.
        """
        offers = frozenset(map(int, told["held"])) & frozenset(range(len(self.items)))
        received, age = int(told["received"]), max(0.0, float(told["age"]))
        peer.offers, peer.received, peer.failed = offers, received, str(told["failed"])[:LONGEST]
        self._seen = max(self._seen, asked - age)

    def _all_done(self) -> bool:
        """Return whether this node and all its peers have all files, as far as they said."""
        return not self.lacking() and all(len(peer.offers) == len(self.items) for peer in self.peers)

    def _judge(self) -> None:
        """Give up if files are missing and nothing moves on any node that we hear of."""
        lacking, now = self.lacking(), time.monotonic()
        moved = self._from_hub + self._from_peers + len(self._held) + sum(peer.received for peer in self.peers)
        if moved != self._moved or not lacking:
            self._moved, self._moved_at = moved, now
        failed = any(peer.failed for peer in self.peers)
        limit = STALLED_AFTER_FAILURE if failed else STALLED
        if now - self._moved_at <= limit or self._error or self._hub.offers & lacking:
            return
        reasons = [f"{peer.name} failed: {peer.failed}" for peer in self.peers if peer.failed]
        reasons += [f"{peer.name} does not answer: {peer.silent}" for peer in self.peers if peer.silent]
        if bad := [
            f"{self.items[n].name} on {peer.name} ({why})" for peer in self.peers for n, why in peer.bad.items()
        ]:
            reasons.append(f"damaged: {', '.join(bad)}; playbook models with models_state=verified finds them all")
        self._error = (
            f"{len(lacking)} files are missing and no node has received anything for {limit:.0f} s"
            f" ({'; '.join(reasons) or 'no node offers them'})"
        )

    def _fail(self, text: str) -> None:
        self._error, self._failure = self._error or text, text

    # -- fetching ------------------------------------------------------------------------------------------------------

    def _fetch(self, sources: Sequence[Source]) -> None:
        tries = 0
        while self.is_alive() and not self._error and self.lacking():
            if (claimed := self._claim(sources)) is None:
                self._end.wait(0.2)
                continue
            number, source = claimed
            item, before = self.items[number], self._from_hub
            fetch = partial(
                Hub.fetch, repo=item.repo, commit=item.commit, file=item.file, directory=item.directory,
                alive=self.is_alive, received=self._counter(source),
            )  # fmt: skip
            try:
                if source.use(fetch):
                    self._hold(number)
                tries = 0
            except FetchError as error:
                if source is self._hub:
                    self._fail(str(error))
                source.bad[number] = str(error)
            except (OSError, http.client.HTTPException) as error:
                tries = 1 if self._from_hub > before else tries + 1
                self._missed(source, f"{item.name}: {error}", tries, getattr(error, "errno", None) in OF_THE_DISK)
            finally:
                with self._lock:
                    self._taken.discard(number)
                    source.running -= 1

    def _claim(self, sources: Sequence[Source]) -> tuple[int, Source] | None:
        """Return a missing file that no thread fetches, and the source from which this node fetches the fewest."""
        with self._lock:
            count = len(self.items)
            for number in sorted(self.lacking() - self._taken, key=lambda n: (n - self._first) % count):
                found = [each for each in sources if number in each.offers and number not in each.bad]
                if found:
                    source = min(found, key=lambda each: (each.running, random.random()))
                    self._taken.add(number)
                    source.running += 1
                    return number, source
        return None

    def _counter(self, source: Source) -> Callable[[int], None]:
        """Return what counts the bytes of one fetch. It raises FetchError if a node sends too slowly."""
        since, got = time.monotonic(), 0

        def received(size: int) -> None:
            nonlocal since, got
            if source is self._hub:
                self.count(hub=size)
                source.silent = ""
                return
            self.count(peers=size)
            got += size
            seconds = time.monotonic() - since
            if seconds > SLOW_SECONDS:
                if got < SLOWEST * seconds:
                    raise FetchError(f"{got / seconds / 1000:.1f} kB/s are too slow")
                since, got = time.monotonic(), 0

        return received

    def _missed(self, source: Source, text: str, tries: int, final: bool) -> None:
        """Fail, or wait for another try: of the hub longer each time, of a node until it says again what it has."""
        self._tries += 1
        if source is self._hub:
            source.silent = text
            final = final or tries >= HUB_TRIES
        else:
            source.offers = frozenset()
        if final:
            self._fail(text)
        self._end.wait(min(PAUSE * 2 ** (tries + 1), LONGEST_PAUSE) if source is self._hub else PAUSE)


class Server(ThreadingHTTPServer):
    """Serves the verified files on one address, to the group's other nodes."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with 5, which is usual, the sixth node that connects at once waits for a second or more

    def __init__(self, address: tuple[str, int], peers: Collection[str], secret: str, share: Share) -> None:
        self.peers, self.token, self.share = frozenset(peers), f"Bearer {secret}".encode(), share
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of the address, which may take seconds without a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept connections of the group's nodes only, and not without an end."""
        return client_address[0] in self.peers and threading.active_count() < THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that failed; the other node asks again."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30  # seconds in which a client neither sends nor takes a byte

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: it would go to the terminal of the login."""

    def do_GET(self) -> None:
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.server.token):
            self.send_error(403)
        elif self.path == "/state":
            content = json.dumps(self.server.share.state()).encode()
            self._begin(200, len(content))
            self.wfile.write(content)
        elif item := self.server.share.served(self.path):
            self._send(item)
        else:
            self.send_error(404)

    def _begin(self, status: int, size: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _send(self, item: Item) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, size = int(asked[1]) if asked else 0, item.file.size
        if start > size:
            self.send_error(416)
            return
        # A failure ends the connection: the other node notices, and asks another one.
        with suppress(OSError), (item.directory / item.file.name).open("rb") as stream:
            self._begin(206 if asked else 200, size - start)
            self.wfile.flush()
            while start < size and self.server.share.is_alive():
                sent = self.connection.sendfile(stream, start, min(16 << 20, size - start))
                if not sent:
                    break
                start += sent
                self.server.share.count(sent=sent)
