# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download a model's files with resumption and verification. Private to the collection; standard library only."""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse
from io import BufferedIOBase
from pathlib import Path
from socket import SHUT_RDWR
from typing import IO, Any

from .store import PART, File, digest, is_copied, partial_size

_BLOCK = 1 << 20
LISTING_BYTES = 64 << 20  # a listing has about 300 bytes per file
READ_SECONDS = 120.0  # for a whole listing, whose largest have some MB
_REPO = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.A)
_HINTS = {
    401: "the token is missing or wrong",
    403: "the token's owner has not accepted the model's licence, or may not read it",
    404: "the repository, revision or file does not exist",
}
# Request time-out and too many requests: a later request may succeed, as after any error of the server.
_LATER = {408, 429}

HUB_SPEC: dict[str, Any] = {
    "url": {"type": "str", "default": "https://huggingface.co"},
    "token": {"type": "str", "default": "", "no_log": True},
}
"""Argument spec of the options of the documentation fragment ``hub``."""

STORAGE_SPEC: dict[str, Any] = {
    "skip": {"type": "list", "elements": "str", "default": ["*.pth", "*.gguf", "original/*"]},
    "reserve_gb": {"type": "float", "default": -1},
}
"""Argument spec of the options of the documentation fragment ``hub.storage``."""


class FetchError(RuntimeError):
    """A download that a retry will not complete; the text says what failed and why. It never contains the token."""


class AbsentError(FetchError):
    """The server does not have the file."""


def check_repo(repo: str) -> None:
    """Raise FetchError for what is not the name of a model: it becomes a part of addresses and paths."""
    if not _REPO.fullmatch(repo):
        raise FetchError(f"{repo!r} is not the name of a model, such as google/gemma-4-31B-it")


class _KeepToken(urllib.request.HTTPRedirectHandler):
    """Send the token to the hub only: downloads are redirected to a content delivery network of another owner."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        # Another scheme, too: everybody on the way reads what is sent to http.
        if following is not None and urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            following.remove_header("Authorization")
        return following


class _Limited:
    """Waits a limited time for a connection and the head of an answer, beside the time without a byte.

    A server may send a byte of a header now and then, or one "100 Continue" after another.
    """

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> HTTPResponse:
        opened: list[HTTPConnection] = []
        seconds, over = 2 * (req.timeout or 60), threading.Event()

        def connect(*words: Any, **more: Any) -> HTTPConnection:
            opened.append(http_class(*words, **more))
            return opened[0]

        def close() -> None:
            over.set()
            for socket in (each.sock for each in opened if each.sock):
                with suppress(OSError):
                    socket.shutdown(SHUT_RDWR)

        limit = threading.Timer(seconds, close)
        limit.daemon = True
        limit.start()
        try:
            answer: HTTPResponse = super().do_open(connect, req, **options)  # type: ignore[misc]
        finally:
            limit.cancel()
        if over.is_set():
            raise TimeoutError(f"no whole head of an answer within {seconds:g} s")
        return answer


class Plain(_Limited, urllib.request.HTTPHandler):
    """Opens http."""


class _Tls(_Limited, urllib.request.HTTPSHandler):
    """Opens https."""


def path_of(repo: str, commit: str, file: File) -> str:
    """Return the path of a file at a hub."""
    return f"{repo}/resolve/{commit}/{urllib.parse.quote(file.name)}"


class Hub:
    """A hub, a mirror, or a node of a transfer. ``timeout`` is in seconds, without a byte."""

    def __init__(
        self, url: str, token: str = "", timeout: float = 60, opener: urllib.request.OpenerDirector | None = None
    ) -> None:
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout
        self._opener = opener or urllib.request.build_opener(_KeepToken(), Plain(), _Tls())

    def _open(self, path: str, offset: int = 0) -> Any:
        request = urllib.request.Request(f"{self._url}/{path}")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            if error.code in _LATER or error.code >= 500:
                raise ConnectionError(f"{self._url}/{path}: HTTP {error.code}, {error.reason}") from error
            hint = _HINTS.get(error.code, "the server refused")
            kind = AbsentError if error.code == 404 else FetchError
            raise kind(f"{self._url}/{path}: HTTP {error.code}, {hint}") from error

    def listing(self, repo: str, revision: str) -> bytes:
        """Return the listing of a model; raise FetchError or OSError."""
        check_repo(repo)
        path = f"api/models/{repo}/revision/{urllib.parse.quote(revision, safe='')}?blobs=true"
        try:
            return self.read(path, LISTING_BYTES)
        except HTTPException as error:
            raise FetchError(f"{self._url} ended its answer about {repo}: {error!r}") from error

    def read(self, path: str, limit: int) -> bytes:
        """Return an answer. Raise OSError, HTTPException or FetchError: also if it is longer or takes much longer."""
        content, deadline = bytearray(), time.monotonic() + READ_SECONDS
        with self._open(path) as answer:
            while block := answer.read1(min(_BLOCK, limit + 1 - len(content))):
                content += block
                if time.monotonic() > deadline:
                    raise FetchError(f"{self._url}/{path}: not complete after {READ_SECONDS} s")
        if len(content) > limit:
            raise FetchError(f"{self._url}/{path}: more than {limit} bytes")
        return bytes(content)

    def fetch(
        self,
        repo: str,
        commit: str,
        file: File,
        directory: Path,
        alive: Callable[[], bool],
        received: Callable[[int], None] = lambda _count: None,
    ) -> bool:
        """Download one file, or continue an earlier download; return False if ``alive`` returned False.

        ``received`` is called with the size of each block. The file gets its final name only if its digest is right.
        Otherwise it is deleted, and FetchError is raised unless a part of it was there before: that may be damaged, as
        by a power cut, or of another revision, so the whole file is downloaded.
        """
        part, done = start_part(directory, file)
        if done < file.size:
            with self._open(path_of(repo, commit, file), done) as answer:
                # A server that does not support ranges sends the whole file again.
                resumed = done and answer.status == 206
                limit = file.size - done if resumed else file.size
                if not save(answer, part, "ab" if resumed else "wb", limit, alive, received):
                    return False
        try:
            settle(repo, file, directory)
        except FetchError:
            if not done:
                raise
            return self.fetch(repo, commit, file, directory, alive, received)
        return True


def start_part(directory: Path, file: File) -> tuple[Path, int]:
    """Return the partial file of an earlier run, or a new one, and its size.

    A file that somebody copied here counts as a part without an end, so only its digest is compared.
    """
    part = directory / (file.name + PART)
    part.parent.mkdir(parents=True, exist_ok=True)
    if not part.exists() and is_copied(directory, file):
        (directory / file.name).replace(part)
    part.touch()
    return part, partial_size(directory, file)


def save(
    answer: BufferedIOBase,
    part: Path,
    mode: str,
    limit: int,
    alive: Callable[[], bool],
    received: Callable[[int], None],
) -> bool:
    """Write an answer to a partial file in blocks; return False if ``alive`` returned False before its end.

    A block is what has arrived, so ``received`` is called while a server sends little; ``alive`` is asked every MiB.
    An answer with more than ``limit`` bytes is another file: raise FetchError without writing more, and remove it.
    """
    unasked = _BLOCK
    with part.open(mode) as stream:
        while block := answer.read1(min(unasked, limit + 1)):
            if len(block) > limit:
                part.unlink()
                raise FetchError(f"{part.name.removesuffix(PART)} is longer than its listing says; it was removed")
            limit -= len(block)
            stream.write(block)
            received(len(block))
            unasked -= len(block)
            if not unasked:
                unasked = _BLOCK
                if not alive():
                    return False
    return True


def settle(repo: str, file: File, directory: Path) -> None:
    """Give a partial file its final name if its digest is right, and its content is on the disk.

    Raise OSError, and keep the file, if bytes are missing; delete it and raise FetchError if it is damaged.
    """
    part = directory / (file.name + PART)
    size = part.stat().st_size
    if size < file.size:
        raise ConnectionError(f"{repo}: {file.name} ended after {size} of {file.size} bytes")
    found = digest(part, file.algorithm)
    if size != file.size or found != file.digest:
        part.unlink()
        raise FetchError(
            f"{repo}: {file.name} is damaged ({size} of {file.size} bytes, digest {found[:12]}…, expected"
            f" {file.digest[:12]}…); it was removed"
        )
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.replace(directory / file.name)
