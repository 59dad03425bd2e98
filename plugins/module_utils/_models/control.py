# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start, watch and stop a transfer's process on a node. Private to the collection; standard library only.

The process and the modules share a directory: ``lock`` is locked while the process lives, ``status`` is what it did and
whose it is, and the modules touch ``contact``. None of the files contains a token.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

# The name of the directory beside the models, which role models gives.
DIRECTORY = ".gb10-share"
# Seconds within which a process ends by itself after it was asked to.
_PATIENCE = 10


class Control:
    """The directory of one node's transfer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: Any = None

    def acquire(self) -> bool:
        """Lock the directory for this process and its children; return False if another process has it."""
        while True:
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = (self.directory / "lock").open("w", encoding="utf-8")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._lock.fileno()), (self.directory / "lock").stat()):
                    # That of a killed process has the number of another one by now.
                    (self.directory / "status").unlink(missing_ok=True)
                    return True
            except BlockingIOError:
                self.release()
                return False
            except FileNotFoundError:
                pass
            except FileExistsError:
                # mkdir also says so of a directory that is gone before it looks whether it is one.
                if self.directory.exists() and not self.directory.is_dir():
                    raise
            # A process that ended removed the directory between two calls.
            self.release()

    def release(self) -> None:
        """Close the lock; the directory stays locked while a child has it open."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def is_locked(self) -> bool:
        """Return whether a process of a transfer lives."""
        try:
            with (self.directory / "lock").open(encoding="utf-8") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def remove(self) -> None:
        """Remove the directory; the caller has the lock."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def is_of_another(self, secret: str) -> bool:
        """Return whether a process lives that a run with another secret started."""
        return self.is_locked() and self.read().get("owner") != digest(secret)

    def touch(self) -> None:
        """Tell the process that the controller is there."""
        (self.directory / "contact").touch()

    def contact(self) -> int:
        """Return a number that changes with each touch."""
        try:
            return (self.directory / "contact").stat().st_mtime_ns
        except OSError:
            return 0

    def write(self, status: dict[str, Any]) -> None:
        """Write the status; raise OSError."""
        temporary = self.directory / "status.new"
        temporary.write_text(json.dumps(status), encoding="utf-8")
        temporary.replace(self.directory / "status")

    def read(self) -> dict[str, Any]:
        """Return the status, or an empty one."""
        try:
            found: dict[str, Any] = json.loads((self.directory / "status").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    def stop(self) -> bool:
        """End the process and remove the directory; return whether there was a process. Raise OSError."""
        was_there = self.is_locked()
        if was_there and not self._ends(signal.SIGTERM) and not self._ends(signal.SIGKILL):
            raise OSError(f"process {self.read().get('pid')} does not end")
        # Under the lock: another run may have started meanwhile.
        if self.directory.exists() and self.acquire():
            self.remove()
            self.release()
        return was_there

    def _ends(self, number: int) -> bool:
        """Send a signal; return whether the process ended in time. While the lock is held, no other one has its pid."""
        with suppress(ProcessLookupError, KeyError):
            os.kill(int(self.read()["pid"]), number)
        deadline = time.monotonic() + _PATIENCE
        while self.is_locked():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


def digest(secret: str) -> str:
    """Return what a status says of a secret: whose transfer it is."""
    return hashlib.sha256(secret.encode()).hexdigest()


def detach(work: Callable[[Callable[[str], None]], None]) -> str:
    """Run ``work`` in a process of its own, which outlives this one and the login; return what it reports first.

    ``work`` gets a function that reports one text: empty after a good start, else what is wrong. The process has no
    terminal, no open files of this one, and ends with ``work``. What it needs to know, it has in its memory.
    """
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "r", encoding="utf-8") as stream:
            return stream.read()
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.chdir("/")
        reported = False

        def report(text: str) -> None:
            nonlocal reported
            if not reported:
                reported = True
                os.write(writing, text.encode()[:4000])
                os.close(writing)

        try:
            work(report)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            report(f"the transfer ended: {error!r}")
    finally:
        os._exit(0)
