# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the callback prints of a run and of the next one, and that it is silent where nobody watches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.utils.context_objects import CLIArgs
from ansible_collections.gb10.cluster.plugins.callback import progress

FILES = ("check", "plan", "check", "fabric", "fabric", "check", "verify")


def made(name: str) -> Any:
    """Return a play of a file; its tag is the name of the file, and that of its task is "task"."""
    task = SimpleNamespace(tags=["task"])
    return SimpleNamespace(get_path=lambda: f"/x/playbooks/{name}.yml:3", tags=[name], compile=lambda: [task])


class Run:
    """One run whose plays take ten seconds each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path, show: str, **options: Any) -> None:
        self.time = 0.0
        self.shown: list[str] = []
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.time)
        monkeypatch.setattr(progress.context, "CLIARGS", CLIArgs({"inventory": ("mine",), "tags": ("all",)} | options))
        self.callback = progress.CallbackModule()
        self.warned: list[str] = []
        self.callback._display = SimpleNamespace(
            display=lambda text, **_options: self.shown.append(text), warning=self.warned.append
        )
        monkeypatch.setattr(self.callback, "get_option", {"file": str(file), "show": show}.__getitem__)

    def play(self, failed: bool = False) -> list[str]:
        plays = [made(name) for name in FILES]
        self.callback.v2_playbook_on_start(SimpleNamespace(get_plays=lambda: plays, _file_name="/x/playbooks/site.yml"))
        for one in plays:
            self.callback.v2_playbook_on_play_start(one)
            self.time += 10
        self.callback.v2_playbook_on_stats(SimpleNamespace(failures={"spark1": 1} if failed else {}, dark={}))
        return self.shown


def test_a_second_run_knows_what_the_first_one_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "progress.json"
    assert Run(monkeypatch, file, "always").play() == [
        "==> stage 1 of 3, plan, after 0:10",
        "==> stage 2 of 3, fabric, after 0:30",
        "==> stage 3 of 3, verify, after 1:00",
        "==> ended after 1:10; longest: fabric 0:30, plan 0:20, verify 0:10",
    ]
    assert Run(monkeypatch, file, "always").play()[:3] == [
        "==> stage 1 of 3, plan, after 0:10, about 1:00 left",
        "==> stage 2 of 3, fabric, after 0:30, about 0:40 left",
        "==> stage 3 of 3, verify, after 1:00, about 0:10 left",
    ]


@pytest.mark.parametrize("other", [{"inventory": ("other",)}, {"subset": "spark1"}, {"check": True}])
def test_a_run_of_another_kind_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: dict[str, Any]
) -> None:
    Run(monkeypatch, tmp_path / "file", "always").play()
    assert "left" not in "".join(Run(monkeypatch, tmp_path / "file", "always", **other).play())


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({"tags": ("fabric",)}, ["stage 1 of 1, fabric, after 0:30"]),
        ({"skip_tags": ("plan", "verify")}, ["stage 1 of 1, fabric, after 0:30"]),
        ({"tags": ("nothing",)}, []),
    ],
)
def test_only_stages_with_the_tags_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any], stages: list[str]
) -> None:
    shown = Run(monkeypatch, tmp_path / "file", "always", **options).play()
    assert [line.removeprefix("==> ") for line in shown if "stage" in line] == stages


def test_a_task_with_the_tag_makes_a_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert len(Run(monkeypatch, tmp_path / "file", "always", tags=("task",)).play()) == 4


def test_a_second_playbook_of_the_run_begins_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path / "file", "always")
    first = list(run.play())
    assert first[-1].startswith("==> ended after 1:10")
    assert run.play()[4] == "==> stage 1 of 3, plan, after 0:10, about 1:00 left"


def test_a_play_without_a_file_is_no_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path / "file", "always").callback
    play = made("")
    play.get_path = str
    run.v2_playbook_on_start(SimpleNamespace(get_plays=lambda: [play], _file_name="__adhoc_playbook__"))
    assert run._stages == []


def test_a_file_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "directory").write_text("a file")
    run = Run(monkeypatch, tmp_path / "directory" / "file", "always")
    assert run.play()[-1].startswith("==> ended after")
    assert len(run.warned) == 1
    assert str(tmp_path / "directory") in run.warned[0]
    assert "on the machine that runs Ansible" in run.warned[0]


def test_a_failed_run_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Run(monkeypatch, tmp_path / "file", "always").play(failed=True)[-1].startswith("==> ended after")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "kept",
    [
        "",
        "[]",
        "[1]",
        "{}",
        "{}}",
        "7",
        '{"a": 1}',
        '{"a": {"plan": "x"}}',
        '{"a": {"plan": NaN}}',
        '{"a": {"plan": 1e999}}',
    ],
)
def test_a_damaged_file_is_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: str) -> None:
    (tmp_path / "file").write_text(kept)
    Run(monkeypatch, tmp_path / "file", "always").play()
    assert "left" in Run(monkeypatch, tmp_path / "file", "always").play()[0]


@pytest.mark.parametrize(("show", "terminal", "lines"), [("auto", False, 0), ("auto", True, 4), ("never", True, 0)])
def test_it_is_silent_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, show: str, terminal: bool, lines: int
) -> None:
    monkeypatch.setattr(progress.sys, "stdout", SimpleNamespace(isatty=lambda: terminal))
    assert len(Run(monkeypatch, tmp_path / "file", show).play()) == lines
    assert (tmp_path / "file").exists() == (lines > 0)


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        ("ansible.builtin.get_url", ["==> Download K3s: 0:31 so far", "==> Download K3s: 1:02 so far"]),
        ("gb10.cluster.netplan_transaction", ["==> Download K3s: 0:31 so far", "==> Download K3s: 1:02 so far"]),
        ("gb10.cluster.image_pull", []),  # runs in time slices and prints after each
        ("gb10.cluster.load_cell", []),  # an action
    ],
)
def test_a_task_without_a_result_is_named_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str, lines: list[str]
) -> None:
    run = Run(monkeypatch, tmp_path / "file", "always")
    task = SimpleNamespace(resolved_action=action, action=action, get_name=lambda: "Download K3s")
    run.callback.v2_playbook_on_task_start(task, False)
    for seconds in (20, 11, 20, 11):
        run.time += seconds
        run.callback._beat()
    assert run.shown == lines


def test_a_result_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path / "file", "always")
    task = SimpleNamespace(resolved_action=None, action="command", get_name=lambda: "Wait")
    run.callback.v2_playbook_on_handler_task_start(task)
    for heard in (run.callback.v2_runner_retry, run.callback.v2_runner_on_ok):
        run.time += 25
        heard(SimpleNamespace())
        run.callback._beat()
    assert run.shown == []


def test_the_thread_ends_with_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run(monkeypatch, tmp_path / "file", "always")
    run.play()
    assert run.callback._over.is_set()
