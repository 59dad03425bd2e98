# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change installed Python sources before a server starts; stop if they are not what a patch expects.

This runs in the server's image with only its Python. It replaces text in the installed file, because SGLang's worker
processes import it again, and verifies every change afterwards. A file that has neither the old nor the new text, and
is not known to be correct without the patch, stops the start: a server without a patch that it needs gives wrong
answers or crashes under load.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Replace every occurrence of ``old`` by ``new`` in a file below the installed packages."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Right:
    """A file that needs no patch if it contains ``text`` (or lacks it, if not ``has``); ``why`` gives the reason."""

    file: str
    text: str
    why: str
    has: bool = True


class PatchError(Exception):
    """A patch can't be applied; the message says where and why."""


def find(name: str, search: Sequence[str]) -> Path:
    """Return the installed file; raise PatchError if no directory of the search path contains it."""
    for entry in search:
        path = Path(entry) / name
        if path.is_file():
            return path
    raise PatchError(f"{name} is not installed")


def change(text: str, edit: Edit) -> str:
    """Return the changed text, or the same text if it was changed before; raise PatchError if it is neither."""
    if edit.new in text:
        rest = text.replace(edit.new, "")
        if edit.old not in rest:
            return text
    if edit.old not in text:
        raise PatchError(f"{edit.file} holds neither the old nor the new text; is this another release?")
    return text.replace(edit.old, edit.new)


def apply(edits: Sequence[Edit], search: Sequence[str] | None = None) -> str:
    """Apply all edits or none; return "applied" or "already there", or raise PatchError."""
    search = sys.path if search is None else search
    before: dict[Path, str] = {}
    after: dict[Path, str] = {}
    for edit in edits:
        path = find(edit.file, search)
        before.setdefault(path, path.read_text(encoding="utf-8"))
        after[path] = change(after.get(path, before[path]), edit)
    for path, text in after.items():
        ast.parse(text, filename=str(path))
        if text != before[path]:
            temporary = path.with_name(f".{path.name}.gb10")
            temporary.write_text(text, encoding="utf-8")
            temporary.chmod(path.stat().st_mode)
            temporary.replace(path)
        if path.read_text(encoding="utf-8") != text:
            raise PatchError(f"{path} did not keep the change")
    return "applied" if before != after else "already there"


def settle(ways: Sequence[Sequence[Edit]], right: Sequence[Right] = (), search: Sequence[str] | None = None) -> str:
    """Apply the first variant that fits the installed release; return the result.

    ``ways`` has one variant of the change per release. If none fits, an entry of ``right`` can show that the file needs
    no patch; otherwise raise PatchError with the problem of each variant.
    """
    problems: list[str] = []
    for edits in ways:
        try:
            return apply(edits, search)
        except PatchError as problem:
            problems.append(str(problem))
    for sign in right:
        path = find(sign.file, sys.path if search is None else search)
        if (sign.text in path.read_text(encoding="utf-8")) is sign.has:
            return f"not needed: {sign.why}"
    raise PatchError("; ".join(dict.fromkeys(problems)))


def run(name: str, *ways: Sequence[Edit], right: Sequence[Right] = ()) -> None:
    """Apply one patch, which has one variant or several, and print the result; end the process if that fails."""
    try:
        state = settle(ways, right)
    except (PatchError, OSError, SyntaxError, UnicodeDecodeError) as problem:
        sys.exit(f"{name}: not applied: {problem}")
    print(f"{name}: {state}", flush=True)
