# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a finding names the file and line in which its variable was set."""

from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import command
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import place_of


def test_the_place_of_a_variable_is_its_line_in_the_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "group_vars" / "all.yml"
    path.parent.mkdir()
    path.write_text("---\na: 1\nb: true\nc: '{{ a }}'\n")
    values = DataLoader().load_from_file(str(path))
    assert [place_of(name, values) for name in "abc"] == [f"{path}:{line}" for line in (2, 3, 4)]
    monkeypatch.chdir(tmp_path)
    assert place_of("b", values) == "group_vars/all.yml:3"


def test_a_variable_without_a_known_place_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (place_of("a", {"a": 1}), place_of("a", {})) == ("", "")
    monkeypatch.setattr(command, "ORIGIN", None)
    assert place_of("a", {"a": 1}) == ""
