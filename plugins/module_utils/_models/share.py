# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One slice of a node's downloads from the hub, or of its copies from the nodes that serve their files.

Names, sizes and digests come from the plan alone: a hub or a peer gives bytes. Private to the collection; standard
library only.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import http.client
import os
import random
import re
import signal
import socketserver
import threading
import time
import urllib.request
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from . import store
from .fetch import AbsentError, FetchError, Hub, Plain, path_of

TIMEOUT = 10.0  # seconds without a byte
# Seconds without a byte of anybody after which a slice gives up: a router may restart before a hub answers again.
PATIENCE_HUB, PATIENCE_NODES = 300.0, 60.0
PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before the next try: half of those without a byte, within these limits
# A node that sends fewer bytes in a second, over so many seconds, does not keep the others waiting.
SLOWEST, SLOW_SECONDS = 64_000, 10.0
LONGEST = 300  # characters of what is said about a failure
# Another try can't help against these.
OF_THE_DISK = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EIO}


@dataclass(frozen=True)
class Item:
    """One file of one model."""

    repo: str
    commit: str
    directory: Path
    file: store.File

    @property
    def name(self) -> str:
        """Return ``organisation/name/file``."""
        return f"{self.repo}/{self.file.name}"

    @property
    def path(self) -> str:
        """Return the path of the file at a hub, and at a node that serves it."""
        return f"/{path_of(self.repo, self.commit, self.file)}"

    def is_here(self) -> bool:
        """Return whether the verified file is on this node."""
        recorded = store.read_marker(self.directory).get("files") or {}
        return not store.missing(self.directory, [self.file], recorded)

    def drop_cache(self) -> None:
        """Give the memory that caches the file back: a GPU that shares the memory needs it to load models."""
        with suppress(OSError), (self.directory / self.file.name).open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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


def _opener(via: str) -> urllib.request.OpenerDirector:
    """Return what asks a node from one address of this one.

    It asks no proxy and follows no redirect: root would ask whatever address a peer names. build_opener() would also
    read all certificates of the system, for https.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (_Via(via), urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor()):
        opener.add_handler(handler)
    return opener


@dataclass
class Source:
    """The hub, or one path to another node; ``failed`` is when it failed last, ``running`` how many files it sends."""

    name: str
    hub: Hub
    failed: float = 0.0
    running: int = 0


def peers_of(peers: Iterable[Mapping[str, Any]], port: int, secret: str) -> list[Source]:
    """Return the paths to the nodes ``{name, paths: [{to, via}]}``."""
    return [
        Source(peer["name"], Hub(f"http://{way['to']}:{port}", secret, TIMEOUT, _opener(way["via"])))
        for peer in peers
        for way in peer["paths"]
    ]


@dataclass
class Progress:
    """What the next slice needs to know: ``bad`` are files that a node does not deliver, with the reason."""

    hub_bytes: int = 0
    peer_bytes: int = 0
    seconds: float = 0.0
    silent: float = 0.0
    bad: dict[str, dict[str, str]] = field(default_factory=dict)


class Slice:
    """Fetches files of ``items`` from the hub, or from other nodes, for some seconds."""

    def __init__(self, items: Sequence[Item], sources: Sequence[Source], is_hub: bool, progress: Progress) -> None:
        self.items, self.sources, self.is_hub, self.progress = items, sources, is_hub, progress
        self.error, self.changed = "", False
        self.why: dict[str, str] = {}  # why a file is missing, by its name
        self._queue, self._lock, self._end = deque[Item](), threading.Lock(), threading.Event()
        self._moved = self._deadline = time.monotonic() - progress.silent
        self._files: dict[Path, list[store.File]] = defaultdict(list)
        for item in items:
            self._files[item.directory].append(item.file)
        self._recorded = {where: dict(store.read_marker(where).get("files") or {}) for where in self._files}

    def missing(self) -> list[Item]:
        """Return the files that are not verified on this node."""
        there = self._recorded
        return [item for item in self.items if store.missing(item.directory, [item.file], there[item.directory])]

    def run(self, wanted: Iterable[Item], streams: int, seconds: float) -> bool:
        """Fetch; return whether nothing is left to try, so that what is missing then stays missing."""
        begun = time.monotonic()
        self._deadline = begun + seconds
        self._queue.extend(wanted)
        threads = [threading.Thread(target=self._work, daemon=True) for _stream in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        now = time.monotonic()
        self.progress.seconds += now - begun
        self.progress.silent = now - self._moved
        self._complete()
        return self._end.is_set() or not self._queue

    def _work(self) -> None:
        try:
            while self._alive() and (item := self._next()):
                self._get(item)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.error = str(error) if isinstance(error, (OSError, FetchError)) else repr(error)
            self._end.set()

    def _next(self) -> Item | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def _alive(self) -> bool:
        return time.monotonic() < self._deadline and not self._end.is_set()

    def _get(self, item: Item) -> None:
        """Fetch a file, first from the source that failed longest ago; queue it again if another try may help."""
        again = False
        for source in sorted(self.sources, key=lambda each: (each.failed, each.running, random.random())):
            bad = self.progress.bad.setdefault(source.name, {})
            if item.name in bad:
                self.why[item.name] = f"on {source.name} ({bad[item.name]})"
                continue
            try:
                if not self._alive() or not self._fetch(item, source):
                    self._queue.appendleft(item)  # the slice is over
                return
            except FetchError as error:
                if self.is_hub:
                    raise
                self.why.setdefault(item.name, f"not on {source.name}")
                if not isinstance(error, AbsentError):
                    bad[item.name] = str(error)[:LONGEST]
                    self.why[item.name] = f"on {source.name} ({bad[item.name]})"
            except (OSError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in OF_THE_DISK:
                    raise
                source.failed, again = time.monotonic(), True
                self.why[item.name] = f"{source.name} does not answer ({str(error)[:LONGEST]})"
        if again:
            self._queue.append(item)
            self._pause()

    def _fetch(self, item: Item, source: Source) -> bool:
        with self._lock:
            source.running += 1
        try:
            arguments = (item.repo, item.commit, item.file, item.directory, self._alive, self._counter(source))
            if done := source.hub.fetch(*arguments):
                self._hold(item)
            return done
        finally:
            with self._lock:
                source.running -= 1

    def _pause(self) -> None:
        """Wait before another try, or give up."""
        now = time.monotonic()
        silent = now - self._moved
        if silent > (PATIENCE_HUB if self.is_hub else PATIENCE_NODES):
            self._end.set()
        else:
            pause = min(max(PAUSE, silent / 2), LONGEST_PAUSE)
            self._end.wait(min(pause, max(0.0, self._deadline - now)))

    def _counter(self, source: Source) -> Callable[[int], None]:
        """Return what counts the bytes of one fetch. It raises FetchError if a node sends too slowly."""
        since, got = 0.0, 0

        def received(size: int) -> None:
            nonlocal since, got
            now = self._moved = time.monotonic()
            with self._lock:
                if self.is_hub:
                    self.progress.hub_bytes += size
                    return
                self.progress.peer_bytes += size
            # The time to the first byte has a limit of its own, and says nothing about the speed of a small file.
            since, got = since or now, got + size
            if now - since > SLOW_SECONDS:
                if got < SLOWEST * (now - since):
                    raise FetchError(f"{got / (now - since) / 1000:.1f} kB/s are too slow")
                since, got = now, 0

        return received

    def _hold(self, item: Item) -> None:
        """Record a verified file, which peers may fetch from now on."""
        with self._lock:
            recorded = self._recorded[item.directory]
            recorded[item.file.name], self.changed = item.file.digest, True
            self._moved = time.monotonic()
            self.why.pop(item.name, None)
            store.write_marker(item.directory, item.repo, item.commit, recorded, complete=False)

    def _complete(self) -> None:
        """Record as complete each model that has all its files."""
        lacking = {item.directory for item in self.missing()}
        for item in {item.directory: item for item in self.items if item.directory not in lacking}.values():
            recorded = self._recorded[item.directory]
            store.drop_former(item.directory, self._files[item.directory], recorded)
            new = {"repo": item.repo, "commit": item.commit, "complete": True, "files": dict(sorted(recorded.items()))}
            if store.read_marker(item.directory) != new:
                self.changed = True
                store.write_marker(item.directory, item.repo, item.commit, recorded, complete=True)


# Serve the verified files of models to the other nodes of a transfer, from a process of its own.
#
# The files have the paths of the hub (``/REPO/resolve/COMMIT/NAME``), so what downloads from the hub copies from a node
# too. A request is looked up among the paths of the plan.

PATIENCE = 10.0  # seconds within which a process ends after it was asked to
THREADS = 1000  # of the process, after which no connection is accepted
_RANGE = re.compile(r"bytes=(\d{1,15})-")


class Serving:
    """The files of one node, on addresses of its own, for peers that have the token of the transfer."""

    poll = 0.5  # seconds between two looks at the clock

    def __init__(self, items: Iterable[Item], peers: Collection[str], secret: str) -> None:
        self.files = {item.path: item for item in items}
        self.peers, self.token = frozenset(peers), f"Bearer {secret}".encode()
        self.touched = time.monotonic()
        self._servers: list[_Server] = []
        self._end = threading.Event()

    def bind(self, addresses: Iterable[str], port: int) -> None:
        """Open the ports; raise OSError if an address can't be used, after closing the others."""
        try:
            for address in addresses:
                self._servers.append(_Server((address, port), self))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the ports."""
        for server in self._servers:
            server.server_close()

    def run(self, orphan: float, longest: float) -> None:
        """Serve until it is stopped, for ``longest`` seconds, or until no peer asked for ``orphan`` seconds."""
        begun = self.touched = time.monotonic()
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(self.poll / 5,), daemon=True).start()
        while not self._end.wait(self.poll):
            now = time.monotonic()
            if now - self.touched > orphan or now - begun > longest:
                break
        self.stop()
        for server in self._servers:
            server.shutdown()
        self.close()
        for item in self.files.values():
            item.drop_cache()

    def stop(self) -> None:
        """End ``run``, and what is being sent."""
        self._end.set()

    def is_alive(self) -> bool:
        """Return whether nobody stopped it."""
        return not self._end.is_set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with 5, which is usual, the sixth node that connects at once waits for a second or more

    def __init__(self, address: tuple[str, int], serving: Serving) -> None:
        self.serving = serving
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of the address, which may take seconds without a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept connections of the group's nodes only, and not without an end."""
        return client_address[0] in self.serving.peers and threading.active_count() < THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that failed; the other node asks again."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds in which a client neither sends nor takes a byte

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: it would go to the terminal of the login."""

    def do_GET(self) -> None:
        serving = self.server.serving
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), serving.token):
            self.send_error(403)
            return
        serving.touched = time.monotonic()
        item = serving.files.get(self.path)
        if item and item.is_here():
            self._send(item)
        else:
            self.send_error(404)

    def _send(self, item: Item) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, size = int(asked[1]) if asked else 0, item.file.size
        if start > size:
            self.send_error(416)
            return
        # A failure ends the connection: the other node notices, and asks another one.
        with suppress(OSError), (item.directory / item.file.name).open("rb") as stream:
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            while start < size and self.server.serving.is_alive():
                sent = self.connection.sendfile(stream, start, min(16 << 20, size - start))
                if not sent:
                    break
                start += sent
                self.server.serving.touched = time.monotonic()


# -- the process -------------------------------------------------------------------------------------------------------


def _locked(path: Path) -> IO[str] | None:
    """Return the locked file of the process, or None while a process has it. Raise OSError."""
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream


def stop(path: Path) -> bool:
    """End the process and remove its file; return whether there was one. Raise OSError."""
    was_there = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline, asked = time.monotonic() + PATIENCE, False
        while path.exists():
            if stream := _locked(path):
                path.unlink()
                stream.close()
                return was_there
            was_there = True
            # While the lock is held, no other process has this number.
            if not asked:
                with suppress(ProcessLookupError, ValueError):
                    os.kill(int(path.read_text(encoding="utf-8")), number)
                asked = True
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    if path.exists():
        raise OSError(f"process {path.read_text(encoding='utf-8')} does not end")
    return was_there


def start(path: Path, serving: Serving, orphan: float, longest: float) -> None:
    """Serve in a process that outlives this one and the login. Raise OSError.

    ``path`` is locked while the process lives, and has its number. What it needs to know, it has in its memory: the
    token is in no file and no argument. The caller has ended an earlier process, and no other run goes on.
    """
    stream = _locked(path)
    if not stream:
        raise OSError(f"process {path.read_text(encoding='utf-8')} serves models on this node")
    if child := os.fork():
        os.waitpid(child, 0)
        serving.close()
        stream.close()
        return
    try:
        os.setsid()
        if process := os.fork():
            stream.truncate(0)
            stream.write(str(process))
            stream.flush()
        else:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.chdir("/")
            signal.signal(signal.SIGTERM, lambda *_arguments: serving.stop())
            serving.run(orphan, longest)
    finally:
        os._exit(0)
