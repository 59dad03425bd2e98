# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the callback prints of a run and of the next one, and that it is silent where nobody watches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.utils.context_objects import CLIArgs
from ansible_collections.gb10.cluster.plugins.callback import progress

FILES = ("check", "plan", "check", "fabric", "fabric", "check", "verify")


class Run:
    """One run whose plays take ten seconds each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path, show: str, inventory: str = "mine") -> None:
        self.time = 0.0
        self.shown: list[str] = []
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.time)
        monkeypatch.setattr(progress.context, "CLIARGS", CLIArgs({"inventory": (inventory,), "tags": ("all",)}))
        self.callback = progress.CallbackModule()
        self.callback._display = SimpleNamespace(display=lambda text, **_options: self.shown.append(text))
        monkeypatch.setattr(self.callback, "get_option", {"file": str(file), "show": show}.__getitem__)

    def play(self, failed: bool = False) -> list[str]:
        plays: list[Any] = [SimpleNamespace(get_path=lambda f=f: f"/x/playbooks/{f}.yml:3") for f in FILES]
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
    assert "left" not in "".join(Run(monkeypatch, file, "always", inventory="other").play())


def test_a_failed_run_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Run(monkeypatch, tmp_path / "file", "always").play(failed=True)[-1].startswith("==> ended after")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("kept", ["", "[]", "[1]", "{}"])
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
