# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the work of a container in a child process, and start it again when it ends or hangs.

The kubelet starts a container again that ended, or that does not answer its liveness probe, after 10 seconds, and after
up to five minutes if that happened before. Until then a group that serves would be kept from its clients.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import NoReturn

from .._in_pod import pages

# Seconds between the end of a child and the start of the next one. A readiness probe fails after 15.
_PAUSE = 5.0
# Seconds between two questions, and seconds without an answer after which a child hangs. The liveness probe takes 60.
_ASK, _HANGS = 5.0, 20.0


def lives(port: int) -> bool:
    """Return whether the program at this port of the pod answers ``/live``."""
    try:
        with urllib.request.build_opener().open(f"http://127.0.0.1:{port}/live", timeout=3) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


def keep(work: Callable[[], None], answers: Callable[[], bool], pause: float = _PAUSE) -> NoReturn:
    """Run ``work`` again and again, each time in a child process, until SIGTERM. ``answers`` tells that it lives."""
    # Never a number that means other processes: 0 is the own group, and 1 the init process.
    child: int | None = None

    def stop(*_signal: object) -> None:
        if child:
            os.kill(child, signal.SIGTERM)
        raise SystemExit(0)

    # Process 1 of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, stop)
    while True:
        child = _start(work)
        how = _wait(child, answers, pause)
        child = None
        pages.say(f"gb10.cluster transport: the program {how}; it is started again")
        time.sleep(pause)


def _start(work: Callable[[], None]) -> int:
    """Return the process number of a new child; the child itself does not return."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, answers: Callable[[], bool], pause: float) -> str:
    """Return how a child ended; kill one that answered once and does not any more."""
    answered: float | None = None
    asked = time.monotonic()
    while True:
        # Also the children of an earlier child, which process 1 inherits.
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            return f"ended with status {os.waitstatus_to_exitcode(status)}"
        now = time.monotonic()
        if now - asked >= min(_ASK, pause):
            asked = now
            if answers():
                answered = now
            elif answered is not None and now - answered >= min(_HANGS, 4 * pause):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hung and was killed"
        if not ended:
            time.sleep(min(0.5, pause / 5))
