# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the tags of a run's playbooks are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible import context
from ansible.utils.context_objects import CLIArgs
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.tags import tags_of_run

BOOK = """
- hosts: localhost
  tags: [play]
  tasks:
    - tags: [outer]
      block: [{debug: {msg: a}, tags: [inner]}]
      rescue: [{debug: {msg: a}, tags: [rescue]}]
"""


def tags(monkeypatch: pytest.MonkeyPatch, *playbooks: str) -> set[str] | None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"args": playbooks}))
    return tags_of_run()


def test_the_tags_of_plays_blocks_and_tasks_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "book.yml").write_text(BOOK)
    assert tags(monkeypatch, str(tmp_path / "book.yml")) == {"play", "outer", "inner", "rescue", "always"}


def test_the_tags_of_imported_playbooks_and_roles_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tags(monkeypatch, "gb10.cluster.site") or set()
    assert {"preflight", "fabric", "serve", "verify", "netplan", "health", "summary", "plan"} <= found


def test_nothing_is_known_about_the_playbooks_of_other_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tags(monkeypatch, "other.collection.site") is None
