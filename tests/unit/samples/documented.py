# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the shell blocks of the documentation, and say where each of their commands is run by a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "lab/README.md")]
PAGES += sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md"), *ROOT.glob("lab/*/README.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
Place = Literal["unit", "lab", "prepare", "elsewhere"]

# The first pattern that a command contains decides. "elsewhere" has the reason why no test runs it word by word.
PLACES: list[tuple[str, Place, str]] = [
    (r"^\$EDITOR", "elsewhere", "is for a person"),
    (r"^git clone|^make |^sudo lab/labctl", "elsewhere", "is what CI and the fixtures of tests/lab do"),
    (r"sglang_catalogue\.py", "elsewhere", "needs the package index: make deep-check"),
    (r"sglang_profiles\.py$", "elsewhere", "takes minutes: make catalogue-check"),
    (r"inventory_new", "elsewhere", "tests/lab/test_discover.py types it with the addresses of its labs"),
    (r"monitoring\.yml$", "elsewhere", "needs the Prometheus operator: tests/lab/test_monitoring.py"),
    (r"^ANSIBLE_CALLBACKS_ENABLED", "elsewhere", "tests/installed runs playbook plan with the callback"),
    (r"tiny-llama-cpu", "elsewhere", "tests/lab/test_sglang_cpu.py types it with the variables of its lab"),
    (r"latency\.yml", "elsewhere", "tests/lab/test_transport.py runs it, with PyTorch simulated"),
    (r"scripts/|plan\.yml|profile_new|cluster\.rights", "unit", ""),
    (r"gb10\.cluster\.sweep ", "elsewhere", "takes hours: tests/lab/test_sweep.py runs two cells"),
    (r"^ansible-playbook|^kubectl|^curl", "lab", ""),
]  # fmt: skip


def fences() -> list[tuple[str, str, str]]:
    """Return page, language and text of every fenced block, without the indentation that it has in a list."""
    return [
        (str(page.relative_to(ROOT)), language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
        for page in PAGES
        for indent, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def place_of(page: str, command: str) -> tuple[Place, str]:
    """Return where a command is run, and why nowhere. Raise ValueError for a command of no known kind."""
    if page == "docs/prepare.md":
        return "prepare", ""
    for pattern, place, reason in PLACES:
        if re.search(pattern, command):
            return place, reason
    raise ValueError(f"{page}: say in PLACES of {__file__} where a test runs {command!r}")


def commands(place: Place) -> list[tuple[str, str]]:
    """Return page and command of every command that runs there, without comments, continued lines joined."""
    found = []
    for page, language, text in fences():
        for line in re.sub(r"\\\n *", "", text).splitlines() if language == "shell" else []:
            command = re.sub(r"(^|\s+)# .*", "", line).strip()
            if command and place_of(page, command)[0] == place:
                found.append((page, command))
    return found
