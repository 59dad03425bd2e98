# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what Ansible prints when an action fails with findings, with the repository's settings and with Ansible's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
SENTENCE = "gb10_fabirc_mtu: nothing reads it. Did you mean gb10_fabric_mtu?"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_failure_prints_each_finding_once_on_a_line_of_its_own(tmp_path: Path, form: str) -> None:
    settings = tmp_path / "ansible.cfg"
    settings.write_text(f"[defaults]\ncollections_path = {ROOT}/collections\ncallback_result_format = {form}\n")
    inventory = ROOT / "inventory" / "4x-gb10-switch"
    words = [PLAYBOOK, "-i", inventory, "gb10.cluster.preflight", "-e", "gb10_fabirc_mtu=1", "-e", "gb10_fabric_mtu=no"]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "ANSIBLE_CONFIG": str(settings)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"error: all hosts: {SENTENCE} [variables.unknown]" in done.stdout.splitlines()
    assert (done.stdout + done.stderr).count(SENTENCE) == 1
    # The message of the task still names both errors, for callbacks and for records of failed tasks.
    message = " ".join(done.stdout.partition("fatal: ")[2].split())
    assert "gb10_fabirc_mtu [variables.unknown]" in message
    assert "gb10_fabric_mtu [variables.value]" in message
    assert "explained in the output" in message
