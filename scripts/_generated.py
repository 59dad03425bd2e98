# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write generated files, and generated text between markers into pages that are otherwise written by hand."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from _collection import ROOT


def with_parts(page: str, parts: Mapping[str, str], where: str) -> str:
    """Return the page with each part between ``<!-- NAME: begin … -->`` and ``<!-- NAME: end -->``."""
    for name, text in parts.items():
        head, begin, rest = page.partition(f"<!-- {name}: begin")
        opening, arrow, rest = rest.partition("-->\n")
        _text, end, tail = rest.partition(f"<!-- {name}: end -->")
        if not (begin and arrow and end):
            markers = f"<!-- {name}: begin --> and <!-- {name}: end -->"
            raise ValueError(f"{where} lacks the markers {markers}: add them where the text belongs")
        page = f"{head}{begin}{opening}{arrow}{text}\n{end}{tail}"
    return page


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    head = list(columns)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script that writes generated files."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="only report which files are out of date")
    return parser


def main(
    description: str | None,
    pages: Callable[[], Mapping[Path, Mapping[str, str] | str]],
    argv: list[str] | None = None,
) -> int:
    """Update the files that differ, or with ``--check`` only list them; return the exit status."""
    return update(pages(), arguments(description).parse_args(argv).check)


def update(pages: Mapping[Path, Mapping[str, str] | str], check: bool) -> int:
    """Update the files that differ, or only list them; a file is generated as a whole, or in parts."""
    stale = []
    for path, content in pages.items():
        now = path.read_text(encoding="utf-8") if path.exists() else ""
        name = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
        wanted = content if isinstance(content, str) else with_parts(now, content, name)
        if wanted != now:
            stale.append(name)
            if not check:
                path.write_text(wanted, encoding="utf-8")
    for name in stale:
        print(f"{'not up to date' if check else 'written'}: {name}")
    if stale and check:
        print(f"Run `{Path(sys.argv[0]).name}` in scripts/ without --check, and commit what it writes.")
    return 1 if stale and check else 0
