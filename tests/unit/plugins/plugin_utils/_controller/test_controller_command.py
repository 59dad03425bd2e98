# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the next command is written as the user wrote the one that runs."""

from pathlib import Path
from typing import Any

import pytest
from ansible import context
from ansible.utils.context_objects import CLIArgs
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import (
    again,
    command,
    has_password,
    tags_of_run,
)

HERE = str(Path.cwd() / "inventory" / "mine")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"args": ("gb10.cluster.site",), "inventory": [HERE]}, "-i inventory/mine gb10.cluster.verify"),
        ({"args": ("playbooks/site.yml",), "become_ask_pass": True}, "-K playbooks/verify.yml"),
        ({"args": ("/srv/c/playbooks/site.yml",), "ask_vault_pass": True}, "-J /srv/c/playbooks/verify.yml"),
        ({"args": ("my/deploy.yml",), "inventory": ["/etc/hosts,"]}, "-i /etc/hosts, gb10.cluster.verify"),
        ({"args": ("gb10.cluster.site",), "subset": "spark1,spark 2"}, "--limit 'spark1,spark 2' gb10.cluster.verify"),
        ({"args": ("gb10.cluster.site",), "extra_vars": ["key=secret"]}, "gb10.cluster.verify -e …"),
        ({"extra_vars": ["profile=glm-4.7", "preset=x"]}, "gb10.cluster.verify -e profile=glm-4.7 -e preset=x"),
        ({"extra_vars": ["profile=glm-4.7", "k=v profile=x"]}, "gb10.cluster.verify -e profile=glm-4.7 -e …"),
        ({}, "gb10.cluster.verify"),
    ],
)
def test_the_next_command_has_the_form_of_this_one(
    arguments: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs(arguments))
    assert again("verify") == command("verify", arguments) == f"ansible-playbook {text}"


@pytest.mark.parametrize(
    ("arguments", "setting", "given"),
    [
        ({"ask_vault_pass": True}, "", True),
        ({"vault_ids": ["mine@file"]}, "", True),
        ({"vault_password_files": ["file"]}, "", True),
        ({}, "ANSIBLE_VAULT_PASSWORD_FILE", True),
        ({}, "ANSIBLE_VAULT_IDENTITY_LIST", True),
        ({}, "ANSIBLE_ASK_VAULT_PASS", True),
        ({"become_ask_pass": True}, "ANSIBLE_BECOME_ASK_PASS", False),
    ],
)
def test_a_password_of_a_vault_is_an_option_or_a_setting(
    arguments: dict[str, Any], setting: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs(arguments))
    if setting:
        monkeypatch.setenv(setting, "true")
    assert has_password() is given


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
