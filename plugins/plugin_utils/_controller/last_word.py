# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a text for the end of the run, so that it is the last thing on the screen. Private to the collection.

Below a failed task, Ansible prints its own error, the result and the recap of all hosts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ansible.constants import config
from ansible.utils.display import Display

WITHOUT_TERMINAL = 100
_KEY = "last_word"
# What moves the cursor, colours, erases or reorders text, except the ends of lines and tabs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Waiting:
    """Whether the callback ``contact`` is loaded, which prints these texts. Ansible forks its workers after that."""

    loaded = False


def width() -> int:
    """Return the columns of the terminal."""
    columns: Any = Display().columns
    # Display has 79 where it finds no terminal, and one less than the columns of a terminal.
    return int(columns) if columns > 79 or sys.stdout.isatty() else WITHOUT_TERMINAL


def visible(text: str) -> str:
    """Return a text that shows all that it has: a host, a pod or a model could otherwise rewrite the owner's screen."""
    return _UNSEEN.sub("?", text)


def hold(text: str) -> dict[str, Any]:
    """Return the part of a task's result with a text for the end of the run; display it now if nothing else will.

    Ansible shows the key ``invocation`` only with -vvv (CallbackBase._dump_results). ARA keeps and shows it.
    """
    if not Waiting.loaded:
        tell(text)
    return {"invocation": {_KEY: text.splitlines()}}


def held(result: Mapping[str, Any]) -> str:
    """Return the text that a result holds; empty if there is none."""
    invocation = result.get("invocation")
    lines = invocation.get(_KEY) if isinstance(invocation, Mapping) else None
    return "\n".join(map(str, lines or ()))


def tell(text: str, colour: Callable[[str], str] = str, newline: bool = True) -> None:
    """Display a text; on the error output if the standard output is JSON for a program."""
    callback = config.get_config_value("DEFAULT_STDOUT_CALLBACK").rpartition(".")[2]
    Display().display(colour(visible(text)), stderr=callback in {"json", "jsonl"}, newline=newline)
