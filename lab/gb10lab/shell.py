# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands and print progress; defines the error type of the lab."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_STARTED = time.monotonic()


class LabError(Exception):
    """An error with a text for the user: what is wrong and what to do."""


def say(message: str) -> None:
    """Print one line of progress on standard error, with the seconds since the command's start."""
    print(f"[{time.monotonic() - _STARTED:5.1f} s] {message}", file=sys.stderr, flush=True)


def command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    timeout: float | None = 120,
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` and return its result with both streams captured.

    ``env`` is added to the current environment. Raise LabError if the exit status is not 0 and ``check`` is set, if
    the program is not installed, or if it takes longer than ``timeout`` seconds.
    """
    try:
        done = subprocess.run(
            list(argv),
            env={**os.environ, **env} if env else None,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed. Run `lab/labctl deps` (as root) and try again.") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"no end after {timeout:.0f} s: {' '.join(argv)}") from None
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no output")[-2000:]
        raise LabError(f"exit status {done.returncode}: {' '.join(argv)}\n{said}")
    return done
