# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a wrong backup, or a restore of only some servers, is refused before any server is stopped."""

import tarfile
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_plays import ansible_cases

ROOT = Path(__file__).resolve().parents[3]
SINGLE = ["server/db/state.db", "server/tls/server-ca.crt", "server/token"]
SEVERAL = ["server/db/snapshots/gb10-control-1", "server/token"]


# Files of the backup, number of servers, bytes of the archive that are left, and what is said; empty if all is right
Case = tuple[list[str], int, int | None, str]
CASES: dict[str, Case] = {
    "of a single server": (SINGLE, 1, None, ""),
    "of several servers": (SEVERAL, 2, None, ""),
    "of a single server for several": (
        SINGLE,
        2,
        None,
        "is a backup of a single server, and gb10_servers has s1, s2; nothing was changed. Name the servers",
    ),
    "of several servers for one": (
        SEVERAL,
        1,
        None,
        "is a backup of several servers, and gb10_servers has s1; nothing was changed. Name the servers",
    ),
    "a part": (
        ["server/db/x"],
        1,
        None,
        "it lacks var/lib/rancher/k3s/server/token, the datastore; nothing was changed.",
    ),
    "more": (
        [*SINGLE, "data/model.bin"],
        1,
        None,
        "'var/lib/rancher/k3s/data/model.bin' is none of the files of K3s's state",
    ),
    "damaged": (SEVERAL, 1, 60, "is damaged or not an archive: "),
    # The run leaves out s2.
    "left out": (
        SEVERAL,
        2,
        None,
        "leaves out s2, and a restore replaces the state of all servers; nothing was changed.",
    ),
}


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bool, str]]:
    """Play each restore in check mode on this machine, of the right ones only the check; return the outputs."""
    directory = tmp_path_factory.mktemp("restore")
    plays = {}
    for name, (files, servers, cut, told) in CASES.items():
        backup = directory / f"{name}.tar.gz"
        with tarfile.open(backup, "w:gz") as archive:
            for file in files:
                archive.addfile(tarfile.TarInfo(f"var/lib/rancher/k3s/{file}"))
        backup.write_bytes(backup.read_bytes()[:cut])
        names = [f"s{number}" for number in range(1, servers + 1)]
        role = {"name": "gb10.cluster.k3s", "tasks_from": "restore" if told else "restore_check"}
        plays[name] = {
            "hosts": names[:1] if name == "left out" else names,
            "vars": {"k3s_backup_file": str(backup), "k3s_restore_confirm": "yes", "k3s_servers": names},
            "tasks": [{"ansible.builtin.import_role": role}],
        }
    return ansible_cases(directory, plays, "--check", "-c", "local", "-i", "s1,s2,")


@pytest.mark.parametrize("name", CASES)
def test_only_a_whole_backup_of_as_many_servers_stops_them(restored: dict[str, tuple[bool, str]], name: str) -> None:
    told = CASES[name][3]
    failed, output = restored[name]
    assert told in output
    assert failed is bool(told)
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
