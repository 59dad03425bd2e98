# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what action show prints with Ansible's own settings, which put a result of many lines on one line."""

from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
TWO_LINES = {"text": "one:\n  two, and three\n"}


def finding(severity: Severity) -> dict[str, object]:
    return Finding(severity, "port.closed", "port", 7, "is closed", "Open it", "a").as_dict()


def test_a_text_is_printed_line_by_line_with_the_name_of_each_of_several_hosts(tmp_path: Path) -> None:
    rows = [{"bytes": 8192, "p50": 31.5}, {"bytes": 1048576, "p50": 260.0}]
    tasks: dict[str, dict[str, object]] = {
        "once": {"gb10.cluster.show": TWO_LINES, "run_once": True},
        "each": {"gb10.cluster.show": TWO_LINES},
        "rows": {"gb10.cluster.show": {"text": "latency", "rows": rows}, "run_once": True},
        "note": {"gb10.cluster.show": {"text": "", "findings": [finding("info")]}, "run_once": True},
    }
    book = [{"hosts": "all", "gather_facts": False, "tasks": [{"name": name, **task} for name, task in tasks.items()]}]
    tasks["one host"] = {"gb10.cluster.show": TWO_LINES}
    wrong = {"gb10.cluster.show": {"text": "No rank can start", "findings": [finding("error")]}}
    last = [{"name": "one host", **tasks["one host"]}, wrong]
    book += [{"hosts": "a", "gather_facts": False, "tasks": last}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(book))
    # With -v the text is not printed again.
    done = ansible("ansible-playbook", "-v", "-i", "a,b,", "--check", tmp_path / "play.yml")
    assert done.returncode == 2, done.stdout + done.stderr
    said = {name: done.stdout.partition(f"TASK [{name}]")[2].partition("\nTASK")[0].splitlines()[1:] for name in tasks}
    assert said["once"][:3] == ["one:", "  two, and three", "ok: [a]"]
    assert said["one host"][0] == "one:"
    for host in ("a", "b"):
        assert f"{host}:\none:\n  two, and three" in "\n".join(said["each"])
    assert said["note"][:2] == ["info: a: port = 7: is closed.", "    Open it [port.closed]"]
    assert "No rank can start: 1 error, each explained at the end of the output." in done.stdout
    assert done.stdout.count("error: a: port = 7: is closed.") == 1
    assert said["rows"][:4] == ["latency", "bytes    p50", "8192     31.5", "1048576  260.0"]


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
