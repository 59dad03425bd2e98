# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change installed Python sources before a server starts, or stop because they are not what a patch expects.

Runs in the server's image, with its Python and nothing else. Text is replaced in the installed file, since SGLang's
worker processes import it anew. Every change is looked up again afterwards; a file that is neither as before nor as
after ends the start, because a server without a patch that it needs answers garbage or dies under load.
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


def run(name: str, edits: Sequence[Edit]) -> None:
    """Apply one patch and say so; end the process with a reason when that fails."""
    try:
        state = apply(edits)
    except (PatchError, OSError, SyntaxError, UnicodeDecodeError) as problem:
        sys.exit(f"{name}: not applied: {problem}")
    print(f"{name}: {state}", flush=True)
