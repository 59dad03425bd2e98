# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the content of a secret file does not reach the journal of a host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
TASK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - gb10.cluster.host_files:
        secret_files: [{{path: "{path}", content: "s3cr3t-token\\nof two lines\\n"}}]
"""


def test_no_argument_of_the_module_is_logged_on_the_host(tmp_path: Path) -> None:
    play, token = tmp_path / "play.yml", tmp_path / "token"
    play.write_text(TASK.format(path=token), encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    # The module that stays below this directory has the arguments that Ansible gave to it.
    kept = {
        "ANSIBLE_KEEP_REMOTE_FILES": "1",
        "ANSIBLE_PIPELINING": "0",
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
    }
    words = [
        "-i",
        "localhost,",
        "-c",
        "local",
        "-e",
        f"ansible_python_interpreter={sys.executable}",
        play,
    ]
    done = ansible("ansible-playbook", *words, env={**own, **kept})
    assert done.returncode == 0, done.stdout + done.stderr
    assert token.read_text(encoding="utf-8") == "s3cr3t-token\nof two lines\n"
    (module,) = (tmp_path / "remote").rglob("AnsiballZ_*.py")
    assert '"_ansible_no_log": true' in module.read_text(encoding="utf-8")
    assert "s3cr3t" not in done.stdout + done.stderr
