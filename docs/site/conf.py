# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of Sphinx. docs/site/build copies the pages into one tree and starts it there."""

from __future__ import annotations

import html
import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

REPOSITORY = Path(os.environ["GB10_REPOSITORY"])
GALAXY = yaml.safe_load((REPOSITORY / "galaxy.yml").read_text(encoding="utf-8"))

project = f"{GALAXY['namespace']}.{GALAXY['name']}"
author = GALAXY["authors"][0]
version = release = GALAXY["version"]
extensions = ["myst_parser", "sphinx_antsibull_ext"]
myst_heading_anchors = 3
# An example may be YAML with a template in it, or a shell command with placeholders in capitals.
highlight_language = "none"
html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_favicon = "static/favicon.svg"
html_show_copyright = False
html_search_scorer = str(Path(__file__).with_name("search.js"))

DESCRIPTION = 160
# Their tables have the name of a rule or of a cause in the first cell.
_MESSAGES = ("docs/troubleshooting", "docs/launch-rules", "docs/combinations")
# Their tables end with a command to copy.
_MODELS = ("index", "docs/models")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


_CONTENTS = re.compile(r"^\.\. contents::\n   :local:\n   :depth: \d\n", re.M)
# The label is in Ansible's own documentation, which is not a part of this site.
_CALLBACKS = "See :ref:`callback_plugins` for more information on callback plugins.\n"


def adapt(app: Sphinx, page: str, text: list[str]) -> None:
    """Let links to files and directories that have no page lead to the repository; a link to nothing stays an error."""

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[1]))
        if (Path(app.srcdir) / path).is_file() or not (REPOSITORY / path).exists():
            return match[0]
        return f"{GALAXY['repository']}/tree/main/{path}"

    # The theme has a table of contents beside the page, and refuses a second one.
    text[0] = _LINK.sub(target, _CONTENTS.sub("", text[0]).replace(_CALLBACKS, ""))


def name_rows(app: Sphinx, doctree: nodes.document) -> None:
    """Let the search lead to the first row of each message that stands in a first cell, by its name or its words."""
    known = app.env.domains.standard_domain
    if app.env.docname not in _MESSAGES:
        return
    for row in doctree.findall(nodes.row):
        names = [literal.astext() for literal in row[0].findall(nodes.literal)]
        # A cell that says more than messages leads to other tables, as does a name with an ellipsis.
        if row[0].astext() != ", ".join(names) or any("…" in name for name in names):
            continue
        for name in names:
            anchor = nodes.make_id(f"message-{name}")
            if ("message", name) in known.objects:
                continue
            if anchor not in doctree.ids:
                row["ids"].append(anchor)
                doctree.note_explicit_target(row)
            known.note_object("message", name, anchor, location=row)


def label_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Put the heading of its column before each cell: pages.css shows it where a row is a card, as on a phone."""
    if app.env.docname.startswith("reference/plugins"):
        return
    for table in doctree.findall(nodes.table):
        headings = [entry.astext() for head in table.findall(nodes.thead) for entry in head.findall(nodes.entry)]
        if app.env.docname in _MESSAGES:
            table["classes"].append("cards")
        elif app.env.docname in _MODELS:
            table["classes"].append("models")
        for body in table.findall(nodes.tbody):
            for row in body.findall(nodes.row):
                for heading, cell in list(zip(headings, row, strict=False))[1:]:
                    if heading and cell.children and isinstance(cell[0], nodes.paragraph):
                        cell[0].insert(0, nodes.inline("", f"{heading}: ", classes=["label"]))


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Give a page the beginning of its first paragraph as its description, which search engines show."""
    first = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    if first is not None:
        text = html.escape(" ".join(first.astext().split())[:DESCRIPTION])
        context["metatags"] += f'<meta name="description" content="{text}">'


def setup(app: Sphinx) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", adapt)
    app.connect("doctree-read", name_rows)
    app.connect("doctree-read", label_cells)
    app.connect("html-page-context", describe)
    app.add_object_type("message", "message")
