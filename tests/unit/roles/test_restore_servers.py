# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a wrong backup, or a restore of only some servers, is refused before any server is stopped."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]
SINGLE = ["server/db/state.db", "server/tls/server-ca.crt", "server/token"]
SEVERAL = ["server/db/snapshots/gb10-control-1", "server/token"]


def restored(tmp_path: Path, files: list[str], servers: int, *options: str, cut: int | None = None) -> str:
    """Play the restore in check mode on this machine; return the output on one line."""
    backup = tmp_path / "backup.tar.gz"
    with tarfile.open(backup, "w:gz") as archive:
        for file in files:
            archive.addfile(tarfile.TarInfo(f"var/lib/rancher/k3s/{file}"))
    backup.write_bytes(backup.read_bytes()[:cut])
    names = [f"s{number}" for number in range(1, servers + 1)]
    role = {"name": "gb10.cluster.k3s", "tasks_from": "restore"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": role}]}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gb10_servers": {"hosts": {name: {} for name in names}}}))
    asked = {"k3s_backup_file": str(backup), "k3s_restore_confirm": "yes", "ansible_connection": "local"}
    words = ["--check", "-i", tmp_path / "hosts.yml", "-e", json.dumps(asked), *options]
    words.append(tmp_path / "book.yml")
    done = ansible("ansible-playbook", *words)
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("files", "servers", "told"),
    [
        (
            SINGLE,
            3,
            "is a backup of a single server, and gb10_servers has s1, s2, s3; nothing was changed. Leave only",
        ),
        (SEVERAL, 1, "is a backup of several servers, and gb10_servers has s1; nothing was changed. Leave only"),
    ],
)
def test_a_backup_of_another_number_of_servers_is_refused(
    files: list[str], servers: int, told: str, tmp_path: Path
) -> None:
    output = restored(tmp_path, files, servers)
    assert told in output
    assert "Stop every server" not in output


@pytest.mark.parametrize(("files", "servers"), [(SINGLE, 1), (SEVERAL, 3)])
def test_a_backup_of_as_many_servers_is_not_refused(files: list[str], servers: int, tmp_path: Path) -> None:
    assert "Stop every server" in restored(tmp_path, files, servers)


@pytest.mark.parametrize(
    ("files", "cut", "told"),
    [
        (["server/db/x"], None, "it lacks var/lib/rancher/k3s/server/token, the datastore; nothing was changed."),
        ([*SINGLE, "data/model.bin"], None, "'var/lib/rancher/k3s/data/model.bin' is none of the files of K3s's state"),
        (["server/token"], None, "it lacks the datastore; nothing was changed."),
        (SEVERAL, 60, "is damaged or not an archive: "),
    ],
)
def test_a_file_that_is_no_whole_backup_is_not_unpacked(
    files: list[str], cut: int | None, told: str, tmp_path: Path
) -> None:
    output = restored(tmp_path, files, 3, cut=cut)
    assert told in output
    assert "Stop every server" not in output


def test_a_restore_of_only_some_servers_is_refused(tmp_path: Path) -> None:
    output = restored(tmp_path, SEVERAL, 3, "--limit", "s1,s2")
    assert "leaves out s3, and a restore replaces the state of all servers; nothing was changed." in output
    assert "Stop every server" not in output


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"k3s_restore_confirm": "no"},
            "and k3s_restore_confirm is no; nothing was changed. Add -e k3s_backup_file=/b ",
        ),
        ({"k3s_backup_file": "/gone"}, "k3s_backup_file is /gone, and this machine has no such file; nothing was"),
        ({"k3s_backup_file": ""}, "k3s_backup_file is empty, and this machine has no such file; nothing was"),
    ],
)
def test_only_the_missing_option_of_a_restore_is_asked_for(tmp_path: Path, given: dict[str, str], told: str) -> None:
    loader = DataLoader()
    (tmp_path / "one.tar.gz").write_text("")
    path = str(ROOT / "roles" / "k3s" / "tasks" / "restore_check.yml")
    known = {"k3s_restore_confirm": "yes", "k3s_backup_file": "/b", "__k3s_backup_dir": str(tmp_path), **given}
    for task in loader.load_from_file(path, trusted_as_template=True)[:2]:
        templar = Templar(loader=loader, variables=known | task.get("vars", {}))
        if not templar.evaluate_conditional(task["ansible.builtin.assert"]["that"]):
            message = templar.template(task["ansible.builtin.assert"]["fail_msg"])
            break
    assert told in message
    if "k3s_backup_file" in given:
        assert f"The backups in {tmp_path} are: one.tar.gz. [k3s.restore.no_file]" in message
