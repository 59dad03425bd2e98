# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which plays there are, what they cover, which are chosen, and what their record says."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plays
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def result(**values: Any) -> plays.Result:
    passed = {"commit": "0123abcd", "date": "2026-11-01T00:00Z", "result": "passed", "seconds": 100, "covered": "same"}
    return plays.Result(**(passed | values))


@pytest.mark.parametrize("name", plays.plays())
def test_a_play_covers_files_that_exist(name: str) -> None:
    for path in plays.plays()[name].covers:
        assert plays.files_below([path]), f"{name} covers {path}, which has no file"


def test_every_role_playbook_package_module_and_action_is_covered() -> None:
    covered = plays.with_modules(plays.files_below(path for play in plays.plays().values() for path in play.covers))
    subjects = [*ROOT.glob("roles/*/tasks/main.yml"), *ROOT.glob("playbooks/*.yml")]
    subjects += [*ROOT.glob("plugins/modules/*.py"), *ROOT.glob("plugins/action/*.py")]
    subjects += [path for path in ROOT.glob("plugins/*_utils/_*/*.py") if path.name != "__init__.py"]
    assert {str(path.relative_to(ROOT)) for path in subjects} - covered == set()


# Modules that change no host and no cluster: they read, send packets, keep the counters of a health check, or write on
# the controller.
READS = re.compile(
    r"\w+_info|assert|fail|(import|include)_tasks|set_fact|setup|show|k8s_exec|serving_plan|cabling_report"
    r"|fabric_(plan|ping|bandwidth|health)|inventory_new|support_bundle"
)


def modules(tasks: list[dict[str, Any]]) -> set[str]:
    """Return the short names of the modules that tasks run on hosts."""
    found = set()
    for task in tasks:
        if task.get("delegate_to") != "localhost":
            found |= {name.rpartition(".")[2] for name in task if name.count(".") == 2}
        for part in ("block", "rescue", "always"):
            found |= modules(task.get(part, []))
    return found


def test_a_role_without_a_scenario_changes_neither_a_host_nor_a_cluster() -> None:
    scenarios = {path.parent.name for path in ROOT.glob("molecule/*/molecule.yml")}
    (book,) = yaml.safe_load((ROOT / "playbooks/profile_new.yml").read_text(encoding="utf-8"))
    assert book["hosts"] == "localhost"  # the role writes files there
    for role in sorted({path.name for path in ROOT.glob("roles/*")} - scenarios - {"profile_new"}):
        for file in ROOT.glob(f"roles/{role}/tasks/*.yml"):
            found = modules(yaml.safe_load(file.read_text(encoding="utf-8")))
            assert [name for name in found if not READS.fullmatch(name)] == [], file


def test_the_record_names_only_plays_that_exist_and_only_known_results() -> None:
    record = plays.read_record()
    assert set(record) <= set(plays.plays())
    for entry in record.values():
        assert set(entry) == plays.Result.__required_keys__
        assert entry["result"] in {"passed", "failed"}


DIGESTS = dict.fromkeys([plays.ALWAYS, "lab/failed", "lab/touched", "lab/never", "lab/old", "lab/new"], "same")
RECORD = {
    plays.ALWAYS: result(date="2026-11-09T00:00Z"),
    "lab/failed": result(date="2026-11-08T00:00Z", result="failed"),
    "lab/touched": result(date="2026-11-07T00:00Z", covered="other"),
    "lab/old": result(date="2026-11-01T00:00Z", seconds=5000),
    "lab/new": result(date="2026-11-02T00:00Z"),
}


def test_the_demo_comes_first_then_failed_touched_never_played_and_oldest_plays() -> None:
    assert plays.ordered(DIGESTS, RECORD) == list(DIGESTS)
    assert [plays.state(name, "same", RECORD) for name in DIGESTS] == [
        "passed", "failed", "touched", "never", "passed", "passed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "slower", "chosen"),
    [
        (0, 1, [plays.ALWAYS]),
        (199, 1, [plays.ALWAYS]),
        (200, 1, [plays.ALWAYS, "lab/failed"]),
        (399, 2, [plays.ALWAYS]),
        (400, 2, [plays.ALWAYS, "lab/failed"]),
        (300 + plays.UNKNOWN_S + 100, 1, [plays.ALWAYS, "lab/failed", "lab/touched", "lab/never", "lab/new"]),
        (9999, 1, list(DIGESTS)),
    ],
)
def test_plays_are_played_as_long_as_the_budget_lasts_by_the_clock(budget: int, slower: int, chosen: list[str]) -> None:
    now = 0.0

    def play(name: str) -> bool:
        nonlocal now
        now += slower * (RECORD[name]["seconds"] if name in RECORD else plays.UNKNOWN_S)
        return name != "lab/failed"

    played, failed = plays.play_selection(plays.ordered(DIGESTS, RECORD), RECORD, budget, play, lambda: now)
    assert played == chosen
    assert failed == [name for name in chosen if name == "lab/failed"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a checkout with a scenario and a play that passes unless the role has a file called ``broken``."""
    files = {
        "molecule/x/molecule.yml": "---\n# Covers: roles/x\n",
        "roles/x/tasks/main.yml": "[]\n",
        "roles/x/README.md": "generated\n",
        "tests/artifact": "#!/bin/sh\n# Covers: roles/x\n[ ! -e roles/x/broken ]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tests/artifact").chmod(0o755)
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(plays, "ROOT", tmp_path)
    forget()
    yield tmp_path
    # A test after this one, in any order, asks about the real checkout.
    forget()


def forget() -> None:
    plays._files.cache_clear()
    plays._content.cache_clear()


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    forget()
    assert plays.main(["list"]) == 0
    return dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[:-2])


def test_a_play_is_recorded_then_touched_then_failed(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert states(capsys) == {"artifact": "never", "molecule/x": "never"}
    assert plays.main(["run", "artifact"]) == 0
    entry = json.loads((checkout / plays.RECORD).read_text())["artifact"]
    assert (entry["result"], len(entry["commit"])) == ("passed", 8)
    assert states(capsys)["artifact"] == "passed"
    (checkout / "roles/x/README.md").write_text("generated again\n")
    assert states(capsys)["artifact"] == "passed"
    (checkout / "roles/x/broken").touch()
    assert states(capsys)["artifact"] == "touched"
    assert plays.main(["run", "art*"]) == 1
    assert states(capsys) == {"artifact": "failed", "molecule/x": "never"}
    assert json.loads((checkout / plays.RECORD).read_text())["artifact"]["commit"][8:] == "+"


def test_a_selection_to_a_time_has_only_plays_of_the_lab_that_passed_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[str] = []
    record = RECORD | {"browser/site": result()}
    known = {name: plays.Play(name, Path("tests/artifact"), ()) for name in [*DIGESTS, "browser/site"]}
    monkeypatch.setattr(plays, "plays", lambda: known)
    monkeypatch.setattr(plays, "read_record", lambda: record)
    monkeypatch.setattr(plays, "run", lambda play: not played.append(play.name))
    monkeypatch.setenv(plays.END, "inf")
    assert plays.main(["run", "rotation"]) == 0
    assert set(played) == {plays.ALWAYS, "lab/touched", "lab/old", "lab/new"}
    assert "Failed: none" in capsys.readouterr().out


def test_an_unknown_play_and_a_play_without_a_declaration_are_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plays.main(["run", "lab/unknown"])
    assert "no play has this name: lab/unknown" in capsys.readouterr().err
    (checkout / "molecule/x/molecule.yml").write_text("---\n")
    with pytest.raises(ValueError, match="molecule/x does not declare what it covers"):
        plays.main(["list"])
