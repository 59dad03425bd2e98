# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the shell blocks of the documentation, and say where each of their commands is run by a test."""

import re
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "lab/README.md")]
PAGES += sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md"), *ROOT.glob("lab/*/README.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
Place = Literal["unit", "lab", "prepare", "discover", "short", "daily", "all", "elsewhere"]
# Who runs them, as the page "Tested commands" says it.
RUNS: dict[Place, str] = {
    "unit": "`tests/unit/test_documented_blocks.py`, with substitutes for the programs that `make` starts",
    "all": "`make test`",
    "lab": "`tests/lab/test_documented.py`, on four simulated Sparks",
    "short": "`tests/lab/test_inventory_new.py`, on two simulated Sparks",
    "daily": "`tests/lab/test_daily.py`, on two and three simulated Sparks",
    "discover": "`tests/lab/test_discover.py`, on simulated Sparks",
    "prepare": "`tests/lab/test_prepare.py`, on two simulated Sparks as delivered",
    "elsewhere": "none",
}

# The first pattern that a command contains decides. "elsewhere" has the reason why no test runs it word by word.
PLACES: list[tuple[str, Place, str]] = [
    (r"^scripts/sglang_catalogue\.py --check$", "all", ""),
    (r"^scripts/sglang_catalogue\.py", "elsewhere", "needs a release on the package index; `make deep-check`"),
    (r"^scripts/sglang_profiles\.py$", "elsewhere", "takes minutes; a test runs it with one release"),
    (r"inventory_new", "discover", ""),
    (r"monitoring\.yml$", "elsewhere", "needs the Prometheus operator; `tests/lab/test_monitoring.py` installs it"),
    (r"tiny-llama-cpu", "elsewhere", "`tests/lab/test_sglang_cpu.py` runs it with the variables of its lab"),
    (r"doctor\.yml", "elsewhere", "writes a file into the checkout; `test_preflight_report_action.py` writes it"),
    (r"latency\.yml", "elsewhere", "needs PyTorch in the pods; `tests/lab/test_transport.py` simulates it"),
    (r"update\.yml", "elsewhere", "needs a repository with newer packages; `tests/lab/test_update.py` makes one"),
    (r"^ansible localhost|^\$EDITOR|^git clone|^make |scripts/|plan\.yml|profile_new", "unit", ""),
    (r"(rights|render)\.yml", "unit", ""),
    (r"^ansible-playbook|^ANSIBLE_CALLBACKS_ENABLED|^sudo lab/labctl|^kubectl|^curl", "lab", ""),
]  # fmt: skip


def fences() -> list[tuple[str, str, str]]:
    """Return page, language and text of every fenced block, without the indentation that it has in a list."""
    return [
        (str(page.relative_to(ROOT)), language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
        for page in PAGES
        for indent, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def place_of(page: str, command: str, title: str = "") -> tuple[Place, str]:
    """Return where a command is run, and why nowhere; ``title`` begins its block. Raise ValueError if it is new."""
    if title.endswith("real hardware"):
        return "elsewhere", "needs real hardware"
    if page == "docs/prepare.md":
        return "prepare", ""
    if page == "docs/daily.md":
        return "daily", ""
    if title.startswith("# The short way"):
        return "short", ""
    for pattern, place, reason in PLACES:
        if re.search(pattern, command):
            return place, reason
    raise ValueError(f"{page}: say in PLACES of {__file__} where a test runs {command!r}")


def placed() -> list[tuple[str, str, Place, str]]:
    """Return page, command, place and reason of every command, without comments, continued lines joined."""
    found = []
    for page, language, text in fences():
        for line in re.sub(r"\\\n *", "", text).splitlines() if language == "shell" else []:
            command = re.sub(r"(^|\s+)# .*", "", line).strip()
            if command:
                found.append((page, command, *place_of(page, command, text.partition("\n")[0])))
    return found


def commands(place: Place) -> list[tuple[str, str]]:
    """Return page and command of every command that runs there."""
    return [(page, command) for page, command, where, _reason in placed() if where == place]
