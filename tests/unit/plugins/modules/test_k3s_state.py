# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the state of a server is exchanged as a whole, and comes back whenever the new one does not start."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive
from ansible_collections.gb10.cluster.plugins.modules import k3s_state as exchange

DATA = "/var/lib/rancher/k3s"
SERVER = "var/lib/rancher/k3s/server"
CONFIG = "etc/rancher/k3s/config.yaml"
PASSWORD = "etc/rancher/node/password"
STATE = {f"{SERVER}/{name}" for name in ("db/state.db", "tls/ca.key", "cred/passwd", "token")} | {CONFIG, PASSWORD}
SNAPSHOT = f"{SERVER}/db/snapshots/gb10-a-1700000000"
OLD = {f"{SERVER}/db/snapshots/gb10-a-1{number}00000000" for number in (5, 6)}
OTHERS = {f"{SERVER}/manifests/a.yaml", "etc/rancher/other"}


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a server's root directory; each file contains ``old``."""
    root = tmp_path / "host"
    for name in {*STATE, *OTHERS, *OLD, f"{SERVER}/cred/only-old"}:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("old")
    return root


def backup(tmp_path: Path, names: set[str]) -> Path:
    """Return an archive whose files contain their own names."""
    made = tmp_path / "backup"
    for name in names:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    with tarfile.open(tmp_path / "a.gz", "w:gz", format=tarfile.GNU_FORMAT) as packed:
        for name in sorted(names):
            packed.add(made / name, name)
    return tmp_path / "a.gz"


def run(state: str, host: Path, source: Path | None = None, names: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Run the module's work twice, first in check mode, which must promise the change and leave the files."""
    found = exchange.places(host, DATA, names)[:1] if names else exchange.places(host, DATA)
    before = files(host)
    promised, _snapshot = exchange.converge(state, found, DATA, source, True)
    assert files(host) == before
    changed, snapshot = exchange.converge(state, found, DATA, source, False)
    assert changed == promised
    return changed, snapshot


PLACE = exchange.Place(Path("/"), Path("/s"), ("db", "tls"), whole=True)
B = "/s/.gb10-restore"
OF_DB = {"db": True, "tls": False}


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        ("replaced", {}, [f"record {B}/old/existed.json"]),
        (
            "replaced",
            {"here": {"db"}, "staged": {"db", "tls"}},
            [
                f"record {B}/old/existed.json",
                f"move /s/db {B}/old/db",
                f"move {B}/new/s/db /s/db",
                f"move {B}/new/s/tls /s/tls",
            ],
        ),
        ("aside", {}, []),
        ("aside", {"here": {"tls"}}, [f"record {B}/old/existed.json", f"move /s/tls {B}/old/tls"]),
        ("aside", {"here": {"tls"}, "existed": OF_DB, "beside": True}, ["remove /s/tls"]),
        ("kept", {}, []),
        ("kept", {"here": {"db"}, "beside": True}, [f"remove {B}"]),
        (
            "kept",
            {"here": {"db", "tls"}, "kept": {"db"}, "existed": OF_DB, "beside": True},
            ["remove /s/db", f"move {B}/old/db /s/db", "remove /s/tls", f"remove {B}"],
        ),
        # Interrupted before db moved: it stays.
        ("kept", {"here": {"db"}, "existed": OF_DB, "beside": True}, [f"remove {B}"]),
        ("settled", {}, []),
        (
            "settled",
            {"kept": {"db"}, "existed": OF_DB, "beside": True, "snapshots": ("a-1",)},
            [f"move {B}/old/db/snapshots/a-1 /s/db/snapshots/a-1", f"remove {B}"],
        ),
    ],
)
def test_the_steps_to_a_state(state: str, seen: dict[str, Any], expected: list[str]) -> None:
    todo = exchange.steps(state, [(PLACE, exchange.Seen(**seen))])
    assert [" ".join(map(str, filter(None, step[:3]))) for step in todo] == expected


def test_the_state_of_the_backup_replaces_all_of_the_old_one(host: Path, tmp_path: Path) -> None:
    assert run("replaced", host, backup(tmp_path, STATE)) == (True, "")
    assert run("settled", host)[0]
    assert files(host) == {name: name for name in STATE} | dict.fromkeys(OTHERS, "old")
    assert not run("settled", host)[0]


def test_a_state_that_does_not_start_goes_away_and_the_old_one_returns(host: Path, tmp_path: Path) -> None:
    before = files(host)
    run("replaced", host, backup(tmp_path, STATE))
    (host / SERVER / "tls/new").write_text("written by a K3s that failed")
    shutil.rmtree(host / SERVER / "cred")
    (host / SERVER / "cred").symlink_to("tls")
    assert run("kept", host)[0]
    assert files(host) == before
    assert not run("kept", host)[0]


def test_the_newest_snapshot_is_named_and_those_of_the_host_are_kept(host: Path, tmp_path: Path) -> None:
    names = {
        f"{SERVER}/token",
        SNAPSHOT,
        f"{SERVER}/db/snapshots/gb10-b-999",
        f"{SERVER}/db/snapshots/daily-1800000000",
    }
    before = files(host)
    (host / SNAPSHOT).write_text("old")
    assert run("replaced", host, backup(tmp_path, names)) == (True, str(host / SNAPSHOT))
    # K3s makes certificates and credentials from the snapshot; old ones would be newer than the datastore.
    assert not (host / SERVER / "tls").exists()
    assert not (host / SERVER / "cred").exists()
    (host / SERVER / "tls").mkdir()
    run("settled", host)
    kept = {name: before[name] for name in (CONFIG, PASSWORD, *OLD, *OTHERS)}
    assert files(host) == kept | {name: name for name in names}


def test_a_server_without_a_state_has_none_again(tmp_path: Path) -> None:
    root = tmp_path / "host"
    (root / "etc/rancher").mkdir(parents=True)
    run("replaced", root, backup(tmp_path, STATE))
    assert set(files(root)) > STATE
    assert {mode(root / path) for path in (SERVER, f"{SERVER}/.gb10-restore", "etc/rancher/node")} == {0o700}
    run("kept", root)
    assert files(root) == {}
    names = {f"{SERVER}/token", SNAPSHOT}
    run("replaced", root, backup(tmp_path / "second", names))
    run("settled", root)
    assert set(files(root)) == names


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the host stop before the n-th rename."""
    done: list[Path] = []
    rename: Callable[[Path, Path], Path] = Path.rename

    def counted(self: Path, target: Path) -> Path:
        done.append(self)
        if len(done) > number:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted)


@pytest.mark.parametrize("number", range(17))
def test_an_exchange_that_was_interrupted_anywhere_is_put_back_and_repeated(
    number: int, host: Path, tmp_path: Path
) -> None:
    before, path = files(host), backup(tmp_path, STATE)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(number, patch)
        interrupted = False
        try:
            run("replaced", host, path)
        except KeyboardInterrupt:
            interrupted = True
    assert interrupted == (number < 15)  # 3 plans, and 6 files and directories of which each moves twice
    run("replaced", host, path)
    assert run("kept", host)[0]
    assert files(host) == before


@pytest.mark.parametrize(
    ("error", "names", "size"),
    [(k3s_archive.Refused, STATE | {"etc/cron.d/evil"}, None), (k3s_archive.Damaged, STATE, 100), (OSError, STATE, 0)],
)
def test_an_archive_that_cannot_be_unpacked_leaves_no_trace(
    error: type[Exception], names: set[str], size: int | None, host: Path, tmp_path: Path
) -> None:
    before = sorted(map(str, host.rglob("*")))
    path = backup(tmp_path, names)
    path.write_bytes(path.read_bytes()[:size])
    if not size and size is not None:
        path.unlink()
    with pytest.raises(error):
        run("replaced", host, path)
    assert sorted(map(str, host.rglob("*"))) == before


def test_what_k3s_refuses_on_another_server_is_moved_away_and_the_first_state_is_the_kept_one(host: Path) -> None:
    before = files(host)
    names = ("db", "tls", "cred")
    assert run("aside", host, names=names)[0]
    assert {path.name for path in (host / SERVER).iterdir()} == {".gb10-restore", "token", "manifests"}
    assert not run("aside", host, names=names)[0]
    # A second restore after a failed one: what is there now is only the rest of the failed one.
    (host / SERVER / "cred").mkdir()
    assert run("aside", host, names=names)[0]
    assert not (host / SERVER / "cred").exists()
    assert [mode(host / SERVER / ".gb10-restore" / name) for name in (".", "old")] == [0o700, 0o700]
    assert run("kept", host)[0]
    assert files(host) == before


def test_a_server_that_never_ran_has_nothing_to_move(tmp_path: Path) -> None:
    assert not run("aside", tmp_path, names=("db",))[0]
    assert list(tmp_path.iterdir()) == []
