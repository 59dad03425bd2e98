# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module that saves a server's state, and that nothing of a backup stops K3s."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.modules import k3s_backup
from module_runs import run_module

ROOT = Path(__file__).resolve().parents[4]


def test_an_archive_is_written_or_the_reason_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = tmp_path / "host/data/server"
    (server / "db/snapshots").mkdir(parents=True)
    options = {"data_dir": "/data", "dest": str(tmp_path / "a.gz"), "root": str(tmp_path / "host")}
    status, result = run_module(k3s_backup, capsys, single=True, **options)
    assert status == 1
    assert "no SQLite database" in result["msg"] and result["msg"].endswith("K3s was not stopped.")
    (server / "token").write_text("K10")
    (server / "db/snapshots/gb10-control-1700000000").write_text("etcd")
    status, result = run_module(k3s_backup, capsys, single=False, check=True, **options)
    assert (status, result["changed"], result["size"]) == (0, True, 0)
    assert not (tmp_path / "a.gz").exists()
    status, result = run_module(k3s_backup, capsys, single=False, **options)
    assert (status, result["changed"], result["size"]) == (0, True, 7)
    assert (tmp_path / "a.gz").exists()


def test_no_task_of_a_backup_stops_or_starts_a_service() -> None:
    text = (ROOT / "roles/k3s/tasks/backup.yml").read_text()
    assert "k3s_backup" in text
    assert not [word for word in ("systemd", "k3s_service:", "stopped", "restarted") if word in text]


def test_an_upgrade_saves_the_state_before_anything_changes() -> None:
    plays = yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text())
    uses = [
        task["ansible.builtin.import_role"]["tasks_from"]
        for play in plays
        for task in play.get("tasks", [])
        if "ansible.builtin.import_role" in task
    ]
    assert uses[:3] == ["upgrade_plan", "upgrade_backup", "upgrade_mark"]
    (task,) = yaml.safe_load((ROOT / "roles/k3s/tasks/upgrade_backup.yml").read_text())
    assert task["ansible.builtin.include_tasks"] == "backup.yml"
