# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of Sphinx. docs/site/build copies the pages into one tree and starts it there."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pygments.lexers.special import TextLexer

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
html_show_copyright = False

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


_CONTENTS = ".. contents::\n   :local:\n   :depth: 1\n"
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
    text[0] = _LINK.sub(target, text[0].replace(_CONTENTS, "").replace(_CALLBACKS, ""))


def setup(app: Sphinx) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", adapt)
    # A forge draws the picture of the layers. Mermaid is not on the package index, so the site shows the text.
    app.add_lexer("mermaid", TextLexer)
