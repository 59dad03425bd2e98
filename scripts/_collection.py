# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the directory from which ``ansible_collections.gb10.cluster`` can be imported without Ansible.

An installed collection is in ``ansible_collections/gb10/cluster``; a checkout has a link of that name below
``collections/``. Scripts add ``IMPORT_ROOT`` to ``sys.path`` and then use the same import name as plugins and tests.
"""

import argparse
import io
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
_INSTALLED = ROOT.parts[-3:] == ("ansible_collections", "gb10", "cluster")
IMPORT_ROOT = str(ROOT.parents[2] if _INSTALLED else ROOT / "collections")


def directory(text: str) -> Path:
    """Return the path of a directory for argparse; a misspelt one would silently contain nothing."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a directory")
    return path


def columns() -> int:
    """Return the width of the terminal, for findings; 100 where there is none, as in a run of Ansible."""
    return shutil.get_terminal_size((100, 24)).columns


def run(main: Callable[[], int]) -> NoReturn:
    """Exit with the status of ``main``; end silently when the reader of the output ends (``| head``).

    A terminal whose encoding lacks a character shows a question mark instead.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    raise SystemExit(main())
