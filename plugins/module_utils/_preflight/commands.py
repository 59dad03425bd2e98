# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands for the readers of preflight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The result of a command; ``status`` is None if the host does not have it. A failed command has no output."""

    status: int | None
    output: str = ""
    error: str = ""


Run = Callable[[list[str]], Answer]


def runner(module: Any) -> Run:
    """Return a function that runs commands through an AnsibleModule."""

    def run(command: list[str]) -> Answer:
        program = module.get_bin_path(command[0])
        if program is None:
            return Answer(None)
        status, output, error = module.run_command([program, *command[1:]])
        return Answer(status, str(output) if status == 0 else "", str(error))

    return run
