# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands for the readers of preflight."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any, NamedTuple

# nvidia-smi never returns while the driver waits for a GPU that does not answer.
LIMIT_S = 30
NO_ANSWER = 124


class Answer(NamedTuple):
    """The result of a command; ``status`` is None if the host does not have it. A failed command has no output."""

    status: int | None
    output: str = ""
    error: str = ""


Run = Callable[[list[str]], Answer]


def runner(module: Any, limit_s: float = LIMIT_S) -> Run:
    """Return a function that runs commands, each for at most ``limit_s`` seconds; ``module`` finds their programs."""

    def run(command: list[str]) -> Answer:
        program = module.get_bin_path(command[0])
        return Answer(None) if program is None else _run([program, *command[1:]], limit_s)

    return run


def _run(command: list[str], limit_s: float) -> Answer:
    # A process that the kernel cannot end would block AnsibleModule.run_command and subprocess.run: both wait for its
    # end after they killed it. Files, unlike pipes, need no reader.
    with TemporaryFile() as output, TemporaryFile() as error:
        try:
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function,consider-using-with
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
            status = process.wait(limit_s)
        except OSError as failure:
            return Answer(127, "", str(failure))
        except subprocess.TimeoutExpired:
            process.kill()
            return Answer(NO_ANSWER, "", f"no answer within {limit_s:g} s")
        output.seek(0)
        error.seek(0)
        said = output.read().decode(errors="replace") if status == 0 else ""
        return Answer(status, said, error.read().decode(errors="replace"))
