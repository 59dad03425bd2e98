# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the files that the documentation names exist, and the playbooks, tags, variables and flags of its commands.

tests/lab/test_prepare.py also runs the commands of docs/prepare.md.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.cli.playbook import PlaybookCLI
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import _HELP
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import load_known

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "lab/README.md")]
PAGES += sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md")])
# In a block, or between backticks in a sentence or a table; a comment ends it.
COMMAND = re.compile(r"(?:^|`|&& )((?:ansible-playbook|make|scripts/\w+\.py)\b[^`\n#]*[^`\n# ])", re.M)


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Return each page with each of its commands of a program, split into words."""
    found = [
        (str(page.relative_to(ROOT)), text)
        for page in PAGES
        for text in COMMAND.findall(page.read_text(encoding="utf-8"))
        if text.startswith(program)
    ]
    return [(page, shlex.split(text.partition(" && ")[0])) for page, text in sorted(set(found))]


def playbook(name: str) -> Path:
    """Return the file of a playbook that is named by its path or by its full name."""
    return ROOT / name if name.startswith("playbooks/") else ROOT / "playbooks" / f"{name.rpartition('.')[2]}.yml"


def tags(path: Path) -> Iterator[str]:
    """Yield the tags of a playbook, of its roles' tasks, and of the playbooks that it imports."""
    text = path.read_text(encoding="utf-8")
    for role in re.findall(r"gb10\.cluster\.(\w+)", text):
        for tasks in ROOT.glob(f"roles/{role}/tasks/main.yml"):
            yield from tags_of(yaml.safe_load(tasks.read_text(encoding="utf-8")))
    for play in yaml.safe_load(text):
        yield from tags_of(play)
        if imported := play.get("ansible.builtin.import_playbook"):
            yield from tags(path.parent / imported)


def tags_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value.get("tags", [])
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from tags_of(each)


def extra_variables(texts: list[str]) -> list[str]:
    """Return the names of variables that are given with -e."""
    names: list[str] = []
    for text in texts:
        names += (
            json.loads(text)
            if text.startswith("{")
            else [each.partition("=")[0] for each in text.split() if "=" in each]
        )
    return names


@pytest.mark.parametrize(("page", "words"), commands("ansible-playbook"), ids=lambda value: str(value)[:60])
def test_a_playbook_its_tags_and_its_variables_exist(page: str, words: list[str]) -> None:
    cli = PlaybookCLI(words)
    cli.init_parser()
    options = cli.parser.parse_args(words[1:])
    (path,) = map(playbook, options.args)
    assert path.is_file(), page
    assert options.inventory, f"{page}: there is no default inventory"
    assert {tag for text in options.tags for tag in text.split(",")} <= set(tags(path)), page
    known, own = load_known(), set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for name in extra_variables(options.extra_vars):
        assert name in own or name in known.command_line or name in known.names(known.owner(name)), f"{page}: {name}"
    for inventory in options.inventory or []:
        assert "," in inventory or inventory == "inventory/mine" or (ROOT / inventory).exists(), page


# Playbooks that log in to no host, or need no sudo there. A group that stops or answers is reached by the API.
WITHOUT_SUDO = {"chat", "compare", "gateway", "logs", "monitoring", "plan", "profile_new", "render", "report", "rights"}
WITHOUT_SUDO |= {"serve_status", "serve_stop"}


def test_a_command_asks_for_the_password_of_sudo_if_its_playbook_needs_it() -> None:
    asks = {
        (page, playbook(word).stem, bool({"-K", "-bK"} & {*words}))
        for page, words in commands("ansible-playbook")
        for word in words
        if word.startswith(("playbooks/", "gb10.cluster."))
    }
    assert [(page, name) for page, name, asked in sorted(asks) if asked is (name in WITHOUT_SUDO)] == []


@cache
def help_of(script: str) -> str:
    return subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("page", "words"), commands("scripts/"), ids=lambda value: str(value)[:60])
def test_a_script_and_its_flags_exist(page: str, words: list[str]) -> None:
    own = words[: words.index("--")] if "--" in words else words
    for flag in own[1:]:
        if re.match(r"--?[a-z]", flag):
            assert re.search(rf"{re.escape(flag.partition('=')[0])}\b", help_of(words[0])), f"{page}: {flag}"
    assert (ROOT / words[0]).is_file(), page


@pytest.mark.parametrize(("page", "words"), commands("make"), ids=lambda value: str(value)[:60])
def test_a_target_of_make_exists(page: str, words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    known = {name for line in targets for name in line.split()}
    assert {word for word in words[1:] if "=" not in word} <= known, page


def test_the_files_that_pages_name_exist() -> None:
    path = re.compile(r"`((?:benchmarks|playbooks|plugins|roles|tests)/[a-z0-9_./-]+)`")
    named = [(page.name, name) for page in PAGES for name in path.findall(page.read_text(encoding="utf-8"))]
    assert len(named) > 100
    assert [(page, name) for page, name in named if not (ROOT / name).exists()] == []


def test_the_variables_facts_and_metrics_that_pages_name_exist() -> None:
    """A variable that was removed stands in a page for as long as nobody looks, and commands are not the only place."""
    roles = "|".join(sorted(path.name for path in ROOT.glob("roles/*")))
    names, known = re.compile(rf"(?<![\w./-])((?:gb10|{roles})_[a-z0-9_]+)(?![\w/(-])"), load_known()
    named = {(page.name, name) for page in PAGES for name in names.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 300
    others = [(page, name) for page, name in sorted(named) if name not in known.names(known.owner(name))]
    files = [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    # Metrics are put together from parts; scripts and SGLang's package are called like a role.
    parts = {f"gb10_transport_{name}" for name in _HELP} | {path.stem for path in ROOT.glob("scripts/*.py")}
    parts.add("sglang_router")
    assert [(page, name) for page, name in others if name not in text and name not in parts] == []


def test_the_scripts_playbooks_and_pages_that_messages_name_exist() -> None:
    files = [ROOT / "scripts" / "pasted_messages.yml", *ROOT.glob("plugins/plugin_utils/*/rules.yml")]
    files += [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("roles/*/tasks/*.yml")]
    path = re.compile(r"\b(?:scripts/\w+\.py|playbooks/\w+\.yml|docs/[\w/-]+\.md)")
    named = {(file.name, name) for file in files for name in path.findall(file.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert [(file, name) for file, name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_pages_have_commands() -> None:
    assert len(commands("ansible-playbook")) > 40
    assert len(commands("scripts/")) > 10
    assert len(commands("make")) > 5
