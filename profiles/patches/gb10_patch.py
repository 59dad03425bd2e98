# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change installed Python sources before a server starts, or stop because they are not what a patch expects.

Runs in the server's image, with its Python and nothing else. Text is replaced in the installed file, since SGLang's
worker processes import it anew. Every change is looked up again afterwards; a file that is neither as before nor as
after, nor known to be right by itself, ends the start, because a server without a patch that it needs answers garbage
or dies under load.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Replace ``old`` by ``new`` in a file below the installed packages, wherever it stands there."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Right:
    """Tells a file that is right by itself: it has a text, or has it not; ``why`` ends the sentence "not needed: …"."""

    file: str
    text: str
    why: str
    has: bool = True


class PatchError(Exception):
    """A patch can't be applied; the text says where and why."""


def find(name: str, search: Sequence[str]) -> Path:
    """Return the installed file; raise PatchError when no directory of the search path has it."""
    for entry in search:
        path = Path(entry) / name
        if path.is_file():
            return path
    raise PatchError(f"{name} is not installed")


def change(text: str, edit: Edit) -> str:
    """Return the changed text, or the same when it is changed already; raise PatchError when it is neither."""
    if edit.new in text:
        rest = text.replace(edit.new, "")
        if edit.old not in rest:
            return text
    if edit.old not in text:
        raise PatchError(f"{edit.file} holds neither the old nor the new text; is this another release?")
    return text.replace(edit.old, edit.new)


def apply(edits: Sequence[Edit], search: Sequence[str] | None = None) -> str:
    """Apply all edits or none; return "applied" or "already there", raise PatchError otherwise."""
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
    """Apply the first of several releases' ways to the same change that fits; return what became of it.

    What no way fits may be right by itself; else raise PatchError with what each way met.
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
    """Apply one patch, written as one release's way or several, and say so; end the process when that fails."""
    try:
        state = settle(ways, right)
    except (PatchError, OSError, SyntaxError, UnicodeDecodeError) as problem:
        sys.exit(f"{name}: not applied: {problem}")
    print(f"{name}: {state}", flush=True)
