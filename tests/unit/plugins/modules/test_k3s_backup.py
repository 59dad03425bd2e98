# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module that saves a server's state, and that nothing of a backup stops K3s."""

import os
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive
from ansible_collections.gb10.cluster.plugins.modules import k3s_backup
from ansible_collections.gb10.cluster.plugins.modules import k3s_backup as save
from ansible_collections.gb10.cluster.plugins.modules import k3s_state as exchange
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
    assert uses[:3] == ["upgrade_plan", "upgrade_backup", "upgrade"]
    names = [play["name"] for play in plays]
    assert names.index("Back up the cluster's state") < names.index("Stop the model group as a whole")
    (task,) = yaml.safe_load((ROOT / "roles/k3s/tasks/upgrade_backup.yml").read_text())
    assert task["ansible.builtin.include_tasks"] == "backup.yml"


DATA = "/var/lib/rancher/k3s"
SERVER = "var/lib/rancher/k3s/server"
FILES = [
    "etc/rancher/k3s/config.yaml",
    "etc/rancher/node/password",
    f"{SERVER}/tls/server-ca.key",
    f"{SERVER}/tls/{'long' * 40}.key",
    f"{SERVER}/cred/passwd",
    f"{SERVER}/token",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / "host" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "host" / name).write_text(name)
    (tmp_path / "host" / SERVER / "db").mkdir()
    return tmp_path / "host"


def connect(root: Path) -> sqlite3.Connection:
    """Open the database as K3s does (kine 0.16.3: WAL)."""
    found = sqlite3.connect(root / SERVER / save.DATABASE, timeout=30)
    found.execute("PRAGMA journal_mode=WAL")
    found.execute("CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY, name TEXT, value BLOB)")
    found.commit()
    return found


@pytest.fixture
def database(root: Path) -> Iterator[sqlite3.Connection]:
    """Return a database that is open, as that of a K3s that runs."""
    with closing(connect(root)) as found:
        found.executemany("INSERT INTO kine (name, value) VALUES (?, ?)", [(str(n), bytes(500)) for n in range(500)])
        found.commit()
        yield found


def rows(root: Path) -> int:
    with closing(sqlite3.connect(root / SERVER / save.DATABASE)) as found:
        return int(found.execute("SELECT count(*) FROM kine").fetchone()[0])


def test_a_running_server_is_saved_and_restored(root: Path, database: sqlite3.Connection, tmp_path: Path) -> None:
    dest = tmp_path / "a.gz"
    content = save.write(root, DATA, dest, single=True)
    assert set(content.files) == {*FILES, f"{SERVER}/{save.DATABASE}"}
    assert dest.stat().st_mode & 0o777 == 0o600
    database.execute("DELETE FROM kine")
    database.commit()
    database.close()
    (root / SERVER / "tls/server-ca.key").write_text("of another cluster")
    exchange.converge("replaced", exchange.places(root, DATA), DATA, dest, False)
    assert rows(root) == 500
    assert (root / SERVER / "tls/server-ca.key").read_text() == f"{SERVER}/tls/server-ca.key"
    assert not list((root / SERVER / "db").glob("state.db-*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gz", "host"]


def test_the_copy_is_the_database_at_one_moment(root: Path, database: sqlite3.Connection, tmp_path: Path) -> None:
    """Each transaction adds two rows, so a torn copy would have an odd number of them."""
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        with closing(connect(root)) as found:
            while not stop.is_set():
                found.executemany("INSERT INTO kine (name, value) VALUES (?, ?)", [("x", bytes(3000))] * 2)
                found.commit()
                written.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(30)
        for _turn in range(3):
            written.clear()
            save.copy_database(root / SERVER / save.DATABASE, tmp_path / "copy.db")
            assert written.wait(30), "the writer goes on"
            with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
                assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert copy.execute("SELECT count(*) FROM kine").fetchone()[0] % 2 == 0
            (tmp_path / "copy.db").unlink()
    finally:
        stop.set()
        writer.join()


def test_what_only_the_log_has_is_saved_after_a_crash(root: Path, database: sqlite3.Connection, tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    for name in ("state.db", "state.db-wal"):
        (crashed / name).parent.mkdir(exist_ok=True)
        (crashed / name).write_bytes((root / SERVER / "db" / name).read_bytes())
    save.copy_database(crashed / "state.db", tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM kine").fetchone() == (500,)


def test_several_servers_have_the_snapshots_and_the_token(root: Path, tmp_path: Path) -> None:
    snapshot = root / SERVER / k3s_archive.SNAPSHOTS / "gb10-control-1700000000"
    snapshot.parent.mkdir()
    snapshot.write_text("etcd")
    (root / SERVER / "db/etcd").mkdir()
    (root / SERVER / "db/etcd/member").write_text("of this server alone")
    content = save.write(root, DATA, tmp_path / "a.gz", single=False)
    assert {name for name in content.files if name.startswith(SERVER)} == {
        f"{SERVER}/token", f"{SERVER}/{k3s_archive.SNAPSHOTS}/gb10-control-1700000000",
    }  # fmt: skip
    assert not k3s_archive.is_single(content, DATA)


def test_links_and_special_files_do_not_make_it_unusable(
    root: Path, database: sqlite3.Connection, tmp_path: Path
) -> None:
    (root / "etc/rancher/k3s/registries.yaml").symlink_to("config.yaml")
    os.link(root / SERVER / "cred/passwd", root / SERVER / "cred/same")
    os.mkfifo(root / SERVER / "tls/fifo")
    (root / SERVER / "cred").chmod(0o2700)
    content = save.write(root, DATA, tmp_path / "a.gz", single=True)
    assert {"etc/rancher/k3s/registries.yaml", f"{SERVER}/cred/same"} < set(content.files)
    assert f"{SERVER}/tls/fifo" not in content.files


@pytest.mark.parametrize(
    ("names", "told"),
    [([], "no SQLite database"), (["etcd/x"], "the only server has etcd"), (["state.db"], "not a database")],
)
def test_a_server_without_a_good_database_is_refused(root: Path, tmp_path: Path, names: list[str], told: str) -> None:
    for name in names:
        (root / SERVER / "db" / name).parent.mkdir(exist_ok=True)
        (root / SERVER / "db" / name).write_bytes(b"?" * 5000)
    (tmp_path / "a.gz").write_text("of before")
    with pytest.raises((save.Unusable, sqlite3.Error), match=told):
        save.write(root, DATA, tmp_path / "a.gz", single=True)
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_a_database_that_does_not_fit_twice_is_refused(
    root: Path, database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "_SPARE", 2**60)
    with pytest.raises(save.Unusable, match="bytes, and"):
        save.write(root, DATA, tmp_path / "a.gz", single=True)


def test_a_server_without_a_token_is_refused(root: Path, database: sqlite3.Connection, tmp_path: Path) -> None:
    (root / SERVER / "token").rename(root / SERVER / "tls/token")
    with pytest.raises(OSError, match="token"):
        save.write(root, DATA, tmp_path / "a.gz", single=True)
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_a_file_that_vanishes_twice_while_it_is_read_is_no_failure(
    root: Path, database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, failed = tarfile.TarFile.add, list[str]()

    def once(self: tarfile.TarFile, name: Path, *arguments: object, **options: object) -> None:
        if "passwd" in str(name) and len(failed) < 2:
            failed.append(str(name))
            raise FileNotFoundError(str(name))
        add(self, name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tarfile.TarFile, "add", once)
    content = save.write(root, DATA, tmp_path / "a.gz", single=True)
    assert failed and f"{SERVER}/cred/passwd" in content.files


def test_what_a_killed_backup_left_is_removed(root: Path, database: sqlite3.Connection, tmp_path: Path) -> None:
    (tmp_path / "a.gz.part").mkdir()
    (tmp_path / "a.gz.part/state.db").write_text("half")
    save.write(root, DATA, tmp_path / "a.gz", single=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gz", "host"]


def test_a_damaged_database_is_refused(root: Path, database: sqlite3.Connection, tmp_path: Path) -> None:
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    path = root / SERVER / save.DATABASE
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 8192)
    with pytest.raises(save.Unusable, match="is damaged: "):
        save.write(root, DATA, tmp_path / "a.gz", single=True)
    assert [path.name for path in tmp_path.iterdir()] == ["host"]
