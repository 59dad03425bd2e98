# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play mistakes of owners (samples/mistakes.yml): each is one finding on one screen, and no other finding follows."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import HEIGHT
from ansible_plays import ROOT, ansible

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "samples" / "mistakes.yml").read_text())
# Mistakes of one play do not hide each other. The others have a play of their own.
PLAYS: dict[str, dict[str, Any]] = {}
for name, case in CASES.items():
    play = PLAYS.setdefault(case.pop("play", name), {"with": {}, "put": {}, "write": {}, "options": [], "finds": []})
    for key in ("with", "put"):
        for file, change in case.pop(key, {}).items():
            play[key].setdefault(file, []).extend([change] if key == "put" else change)
    play["write"] |= case.pop("write", {})
    play["options"] += case.pop("options", [])
    play["finds"] += case.pop("finds")
    play |= case
WIDTH = 100
FILES = {"group": "group_vars/gb10_cluster.yml", "hosts": "hosts.yml"}
BEGIN = re.compile(r"^(?:\[WARNING\]|error|warning):\s", re.M)


def broken(path: Path, case: dict[str, Any]) -> list[str | Path]:
    """Write the inventory of a case; return the words of its command."""
    shutil.copytree(ROOT / "inventory" / case.get("example", "2x-gb10-direct"), path)
    for file, pairs in case["with"].items():
        text = (path / FILES[file]).read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (path / FILES[file]).write_text(text)
    for file, texts in case["put"].items():
        with (path / FILES[file]).open("a") as out:
            out.writelines(f"{text}\n" for text in texts)
    for file, text in case["write"].items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_text(text)
    for old, new in case.get("move", {}).items():
        shutil.move(path / old, path / new)
    return ["-i", case.get("inventory", path), "playbooks/plan.yml", *case["options"]]


def screen(output: str) -> list[str]:
    """Return what a run says below its recap, or all of it if Ansible did not start the play."""
    below = output.rpartition("\nPLAY RECAP")[2].splitlines()[1:]
    return [line for line in below if line and not re.match(r"\S+ +: ok=", line)]


def findings(text: str, path: Path) -> list[str]:
    """Return each finding on one line, its paths without the directory of the test."""
    starts = [match.start() for match in BEGIN.finditer(text)]
    parts = [text[one:other] for one, other in pairwise([*starts, len(text)])]
    kept = [part for part in parts if re.search(r"\[[a-z_0-9]+(\.\w+)+\]", part)]
    words = [" ".join(part.partition("[ERROR]: ")[0].split()) for part in kept]
    plain = [text.replace(f"{path}/", "").replace(f"{ROOT}/", "") for text in words]
    return [text.replace("[WARNING]: ", "warning: ") for text in plain]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with a short name, as owners have one: with that of pytest, findings have more lines."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("name", PLAYS)
def test_a_mistake_is_one_finding_on_one_screen(name: str, directory: Path) -> None:
    path = directory / "mine"
    done = ansible("ansible-playbook", *broken(path, PLAYS[name]))
    shown = screen(done.stdout)
    assert len(shown) <= HEIGHT
    # A path is one word, and a command is to be copied.
    assert [line for line in shown if len(line) > WIDTH and " " in line.strip() and "Next: " not in line] == []
    found = findings(done.stdout + done.stderr, path)
    wanted = PLAYS[name]["finds"]
    assert (done.returncode == 0) is all(text.startswith("warning: ") for text in wanted)
    assert len(found) == len(wanted), found
    if done.returncode == 0:
        assert f"0 errors, {len(wanted)} warning" in done.stdout
    for begin in wanted:
        head, _space, rule = begin.replace("{above}", str(directory)).rpartition(" ")
        assert [text for text in found if text.startswith(head) and f"[{rule}]" in text], (begin, found)


def test_a_finding_names_its_place_also_under_a_short_name_and_about_an_entry(directory: Path) -> None:
    case = {"with": {}, "put": {"group": ["serving_plan_env: {NCCL_DEBUG: WARN}"]}, "write": {}}
    words = broken(directory / "mine", case | {"options": ["-e", "instance=my_group"]})
    said = " ".join(ansible("ansible-playbook", *words).stdout.split())
    assert "[serving.instance.name] Set in option -e of the command." in said
    assert f"[serving.env.silent] Set in {directory}/mine/group_vars/gb10_cluster.yml:26." in said
