# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module that saves a server's state, and that nothing of a backup stops K3s."""

import os
import shutil
import sqlite3
import tarfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.modules import k3s_backup as save
from ansible_collections.gb10.cluster.plugins.modules import k3s_state as exchange
from module_runs import Step, steps_of

ROOT = Path(__file__).resolve().parents[4]


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


def write(root: Path, *names: str) -> Path:
    """Write files that contain their names; return the directory above the root."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).parent.chmod(0o755)
        (root / name).mkdir() if name.endswith("/") else (root / name).write_text(name)
        (root / name).chmod(0o755 if name.endswith("/") else 0o644)
    return root.parent


def connect(root: Path) -> sqlite3.Connection:
    """Open the database as K3s does (kine 0.16.3: WAL)."""
    found = sqlite3.connect(root / SERVER / save.DATABASE, timeout=30)
    found.execute("PRAGMA journal_mode=WAL")
    found.execute("CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY, name TEXT, value BLOB)")
    found.commit()
    return found


def rows(database: Path) -> int:
    with closing(sqlite3.connect(database)) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(found.execute("SELECT count(*) FROM kine").fetchone()[0])


class Server:
    """A server after a crash, so that only the log of its database has the rows, and the archive of the module."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.dest, self.patch = place / "host", place / "a.gz", patch
        self.hides = r"\d{5,}|long(long)+|\*\*\*(.|\n)*(?=\. K3s)"
        self.options = {"data_dir": DATA, "dest": str(self.dest), "root": str(self.root), "single": True}
        write(self.root, *FILES, f"{SERVER}/db/")
        with closing(connect(self.root)) as found:
            found.executemany("INSERT INTO kine (value) VALUES (?)", [(bytes(500),) for _row in range(500)])
            found.commit()
            files = {path: path.read_bytes() for path in self.of("db").iterdir() if not path.name.endswith("-shm")}
        for path, content in files.items():
            path.write_bytes(content)

    def of(self, name: str) -> Path:
        return self.root / SERVER / name

    def shows(self) -> dict[str, Any]:
        shown = {"here": sorted(path.name for path in self.root.parent.iterdir()), "archive": list[str]()}
        if self.dest.exists():
            with tarfile.open(self.dest) as found:
                shown["archive"] = [f"{one.mode:o} {one.name}{'/' * one.isdir()}" for one in found]
            shown["archive"] = [*sorted(shown["archive"]), f"{self.dest.stat().st_mode & 0o777:o}"]
        return shown


def with_etcd(server: Server) -> None:
    server.of("db").rename(server.of("away"))
    write(server.root, f"{SERVER}/db/etcd/member", f"{SERVER}/db/snapshots/gb10-control-1700000000")


def with_special_files(server: Server) -> None:
    (server.root / "etc/rancher/k3s/registries.yaml").symlink_to("config.yaml")
    os.link(server.of("cred/passwd"), server.of("cred/same"))
    os.mkfifo(server.of("tls/fifo"))
    server.of("cred").chmod(0o2700)


def with_another_file(server: Server) -> None:
    shutil.rmtree(server.of("db"))
    write(server.root, f"{SERVER}/db/")
    server.of("db/state.db").write_bytes(b"?" * 5000)


def with_damage(server: Server) -> None:
    with closing(connect(server.root)) as found:
        found.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with server.of("db/state.db").open("r+b") as file:
        file.seek(server.of("db/state.db").stat().st_size // 2)
        file.write(b"\xff" * 8192)


def vanish(times: int) -> Step:
    """Let a file vanish while it is read, since K3s renames files of certificates."""

    def step(server: Server) -> None:
        add, failed = tarfile.TarFile.add, list[Path]()

        def once(self: tarfile.TarFile, name: Path, *arguments: object, **options: object) -> None:
            if "passwd" in str(name) and len(failed) < times:
                failed.append(name)
                raise FileNotFoundError(str(name))
            add(self, name, *arguments, **options)  # type: ignore[arg-type]

        server.patch.setattr(tarfile.TarFile, "add", once)

    return step


CASES: dict[str, list[Step]] = {
    "no database": [lambda server: shutil.rmtree(server.of("db")), {"check": True}, {}],
    "several servers, and then one of them": [with_etcd, {"single": False}, {}],
    "links and special files": [with_special_files, {}],
    "no SQLite": [{}, with_another_file, {}],
    "a damaged database": [with_damage, {}],
    "no room": [lambda server: server.patch.setattr(save, "_SPARE", 2**60), {}],
    "no token": [lambda server: server.of("token").rename(server.of("tls/token")), {}],
    "a file vanishes twice": [vanish(2), {}],
    "a file vanishes each time": [vanish(3), {}],
    "no settings": [lambda server: shutil.rmtree(server.root / "etc"), {}],
    "a backup was killed": [lambda server: write(server.root.parent / "a.gz.part", "state.db"), {}],
}
test_each_backup = steps_of(k3s_backup=(save, Server, CASES))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, monkeypatch)


def test_a_server_is_saved_and_restored(server: Server) -> None:
    save.write(server.root, DATA, server.dest, single=True)
    with closing(connect(server.root)) as database:
        database.execute("DELETE FROM kine")
        database.commit()
    server.of("tls/server-ca.key").write_text("of another cluster")
    exchange.converge("replaced", exchange.places(server.root, DATA), DATA, server.dest, False)
    assert rows(server.of(save.DATABASE)) == 500
    assert server.of("tls/server-ca.key").read_text() == f"{SERVER}/tls/server-ca.key"
    assert not list(server.of("db").glob("state.db-*"))


def test_the_copy_is_the_database_at_one_moment(server: Server, tmp_path: Path) -> None:
    """Each transaction adds two rows, so a torn copy would have an odd number of them."""
    stop, written = threading.Event(), threading.Event()

    def add() -> None:
        with closing(connect(server.root)) as found:
            while not stop.is_set():
                found.executemany("INSERT INTO kine (name, value) VALUES (?, ?)", [("x", bytes(3000))] * 2)
                found.commit()
                written.set()

    writer = threading.Thread(target=add)
    writer.start()
    try:
        for turn in range(4):
            assert written.wait(30), "the writer goes on"
            written.clear()
            save.copy_database(server.of(save.DATABASE), tmp_path / f"{turn}.db")
            assert rows(tmp_path / f"{turn}.db") % 2 == 0
    finally:
        stop.set()
        writer.join()
