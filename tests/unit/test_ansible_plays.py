# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a play has the same result in a process of the tests' server as in a program of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ansible_plays
import pytest
import yaml
from ansible_plays import ansible

SHOWN = "{{ [mine, here, lookup('env', 'MINE'), lookup('pipe', 'pwd'), ran.stdout_lines, ran.stderr_lines] }}"
# A module: what it reads, where it runs, both of its outputs.
RAN: dict[str, Any] = {"ansible.builtin.shell": "cat; pwd; echo of module: $MINE; echo trouble >&2"}
RAN |= {"register": "ran", "run_once": True}


def both(monkeypatch: pytest.MonkeyPatch, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in both ways; return its result, which must be the same."""
    done = {}
    for forks in ("1", "0"):
        monkeypatch.setenv("GB10_TEST_FORKS", forks)
        done[forks] = ansible("ansible-playbook", *words, **options)
    assert vars(done["1"]) == vars(done["0"])
    return done["1"]


def write(directory: Path, *tasks: dict[str, object]) -> list[Path | str]:
    """Write an inventory with group_vars and a playbook; return the words of the command."""
    (directory / "group_vars").mkdir()
    (directory / "group_vars" / "all.yml").write_text("mine: from group_vars\n")
    (directory / "hosts.yml").write_text("all: {hosts: {one: {here: of one}, two: {here: of two}}}\n")
    (directory / "book.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}]))
    return ["-i", directory / "hosts.yml", "-c", "local", directory / "book.yml"]


def test_a_play_has_the_status_the_output_and_the_variables_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = {"name": "Show", "ansible.builtin.debug": {"msg": SHOWN}, "run_once": True}
    # Run in the process of the play: a value of the first host must not become one of the second.
    # One after the other, because a program shows first whichever host is done first.
    each = {"ansible.builtin.debug": {"msg": "{{ here }} in {{ mine }}"}, "throttle": 1}
    words = write(tmp_path, RAN, show, each, {"ansible.builtin.assert": {"that": "false"}, "run_once": True})
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ansible_plays.SETTINGS), "MINE": "of the environment"}
    done = both(monkeypatch, *words, cwd=tmp_path, env=environment)
    assert done.returncode == 2, done.stdout
    for shown in (
        "of one in from group_vars",
        "of two in from group_vars",
        "of module: of the environment",
        str(tmp_path),
        "trouble",
    ):
        assert shown in done.stdout


def test_a_module_is_forked_and_its_archive_has_what_it_imports_of_collections(tmp_path: Path) -> None:
    parent = {"ansible.builtin.shell": "tr '\\0' ' ' </proc/$PPID/cmdline", "register": "ran"}
    crash = {"ansible.builtin.ping": {"data": "crash"}, "register": "crashed", "failed_when": "crashed is not failed"}
    own = {"gb10.cluster.pf_info": {}, "register": "own", "failed_when": "own.pfs is undefined"}
    words = write(tmp_path, parent, crash, own, {"ansible.builtin.debug": {"var": "ran.stdout"}})
    done = ansible("ansible-playbook", *words, "-e", f"ansible_python_interpreter={sys.executable}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ansible_modules.py") == 2


def test_plays_do_not_see_what_an_earlier_play_imported_or_removed(tmp_path: Path) -> None:
    copy = {"ansible.builtin.copy": {"content": "{{ mine }}", "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}"}}
    words = write(tmp_path, copy)
    for changed in ("changed=1", "changed=0"):
        done = ansible("ansible-playbook", *words)
        assert (done.returncode, done.stdout.count(changed)) == (0, 2), done.stdout + done.stderr
    assert (tmp_path / "two").read_text() == "from group_vars"


def test_a_play_that_takes_too_long_ends_the_server(tmp_path: Path) -> None:
    server = ansible_plays.Server()
    server.program = tmp_path / "mute.py"
    server.program.write_text("import sys; sys.stdin.read()\n")
    with pytest.raises(subprocess.TimeoutExpired):
        server.run([], tmp_path, {}, 0.1)
    assert server.process is None


@pytest.mark.parametrize(
    "own", [{"ANSIBLE_FORKS": "1"}, {"HOME": "/nonexistent"}, {"PYTHONPATH": "/x"}, {"LC_ALL": "C"}]
)
def test_a_play_with_settings_that_are_read_early_is_a_program(own: dict[str, str]) -> None:
    server = ansible_plays.SERVER
    assert server.serves(ansible_plays.ROOT, server.environment)
    assert not server.serves(ansible_plays.ROOT, server.environment | own)
