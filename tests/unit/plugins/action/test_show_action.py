# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what action show prints with Ansible's own settings, which put a result of many lines on one line."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
TWO_LINES = {"text": "one:\n  two, and three\n"}


def printed(directory: Path, task: dict[str, object], hosts: str = "a,b,") -> list[str]:
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"name": "Show", **task}]}
    playbook = directory / "play.yml"
    playbook.write_text(yaml.safe_dump([play]))
    done = ansible("ansible-playbook", "-i", hosts, "--check", playbook)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("TASK [Show]")[2].partition("PLAY RECAP")[0].splitlines()[1:]


def test_a_text_is_printed_line_by_line(tmp_path: Path) -> None:
    lines = printed(tmp_path, {"gb10.cluster.show": TWO_LINES, "run_once": True})
    assert lines[:3] == ["one:", "  two, and three", "ok: [a]"]


def test_one_host_needs_no_heading(tmp_path: Path) -> None:
    assert printed(tmp_path, {"gb10.cluster.show": TWO_LINES}, "a,")[0] == "one:"


def test_each_of_several_hosts_prints_its_name_above_its_text(tmp_path: Path) -> None:
    text = "\n".join(printed(tmp_path, {"gb10.cluster.show": TWO_LINES}))
    assert "a:\none:\n  two, and three" in text
    assert "b:\none:\n  two, and three" in text


def test_rows_are_aligned_below_the_text(tmp_path: Path) -> None:
    rows = [{"bytes": 8192, "p50": 31.5}, {"bytes": 1048576, "p50": 260.0}]
    lines = printed(tmp_path, {"gb10.cluster.show": {"text": "latency", "rows": rows}, "run_once": True})
    assert lines[:4] == ["latency", "bytes    p50", "8192     31.5", "1048576  260.0"]


def test_a_failure_is_the_last_word_and_its_whole_text_goes_to_a_file(tmp_path: Path) -> None:
    text = "\n".join(["2 of 4 directions fail", "from  a    b", *(f"a     -    {n}" for n in range(60)), "the end"])
    task = {"gb10.cluster.show": {"text": text, "failed_as": "pings"}, "run_once": True}
    play = {"hosts": "all", "gather_facts": False, "vars": {"gb10_results_dir": str(tmp_path)}, "tasks": [task]}
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump([play]))
    done = ansible("ansible-playbook", "-i", "a,b,", playbook)
    assert done.returncode == 2
    assert "2 of 4 directions fail" in done.stdout
    kept = tmp_path / "failed-pings.txt"
    assert kept.read_text().startswith(text)
    shown = done.stdout[done.stdout.index("from  a    b") :]
    assert "a     -    0" in shown
    assert shown.count("a     -    ") < 25
    assert f"All details: {kept}" in " ".join(shown.split())


def test_roles_and_playbooks_print_with_this_action() -> None:
    files = [*ROOT.glob("roles/*/*/*.yml"), *ROOT.glob("playbooks/*.yml")]
    assert len(files) > 100
    assert [path for path in files if "builtin.debug" in path.read_text()] == []
