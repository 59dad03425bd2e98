# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a token with which K3s could not start again is refused before any host is changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]
CA = f"K10{'0123456789abcdef' * 4}::server:"


@pytest.mark.parametrize(
    ("known", "wanted", "accepted"),
    [
        (f"{CA}the-first-one\n", "the-first-one", True),
        (f"{CA}the-first-one\n", f"{CA}the-first-one", True),
        (f"{CA}the-first-one\n", "the-second-one", False),
        # An installation that was interrupted before the first start
        (None, "the-second-one", True),
    ],
)
def test_only_the_token_of_the_cluster_is_accepted(
    known: str | None, wanted: str, *, accepted: bool, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    if known is not None:
        (tmp_path / "server" / "token").write_text(known)
    role = {"name": "gb10.cluster.k3s", "tasks_from": "token"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": role}]}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gb10_servers": {"hosts": {"spark1": {}}}}))
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    asked = {"k3s_token": wanted, "k3s_data_dir": str(tmp_path)} | local
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    extra = f"@{tmp_path / 'asked.json'}"
    words = ["--check", "-i", tmp_path / "hosts.yml", "-e", extra, tmp_path / "book.yml"]
    done = ansible("ansible-playbook", *words)
    output = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode == 0) == accepted, output
    assert ("k3s_token is not the token of the cluster" in output) != accepted
    assert "the-first-one" not in output
    assert "the-second-one" not in output
