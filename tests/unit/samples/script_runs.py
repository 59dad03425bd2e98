# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the command line of a script in this process: a process of its own imports the collection anew.

tests/unit/scripts/test_collection.py runs every script as a program.
"""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch


def called(main: Callable[[list[str]], int], *words: str, text: str = "") -> CompletedProcess[str]:
    """Return the exit status and the output of main() with these words, and this text as standard input."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", io.StringIO(text)):
        try:
            status = main(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
    return CompletedProcess(words, status, out.getvalue(), err.getvalue())
