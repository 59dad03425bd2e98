# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the state of a server is exchanged as a whole, and comes back whenever the new one does not start."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import k3s_state as exchange
from module_runs import Step, steps_of

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


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return server(tmp_path / "host")


def server(root: Path) -> Path:
    """Return a server's root directory; each file contains ``old``."""
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


class Server:
    """A server whose backup is an archive of ``STATE``, or what the step names."""

    def __init__(self, place: Path, _patch: pytest.MonkeyPatch) -> None:
        self.root, self.place = server(place / "host"), place
        self.options = {"root": str(self.root), "data_dir": DATA, "src": str(backup(place, STATE))}
        self.hides = r"var/lib/rancher/k3s/(?=server)"

    def shows(self) -> dict[str, Any]:
        modes = {path: path.stat().st_mode & 0o7777 for path in sorted(self.root.rglob("*")) if path.exists()}
        private = [f"{path.relative_to(self.root)}/" for path, mode in modes.items() if mode == 0o700]
        shown = {name: ("of the backup" if text == name else text) for name, text in files(self.root).items()}
        news = [f"{name}: {text}" for name, text in shown.items() if text != "old"]
        return {"files": news, "old": [name for name, text in shown.items() if text == "old"], "private": private}


def break_state(server: Server) -> None:
    (server.root / SERVER / "tls/new").write_text("written by a K3s that failed")
    shutil.rmtree(server.root / SERVER / "cred")
    (server.root / SERVER / "cred").symlink_to("tls")


def empty(server: Server) -> None:
    shutil.rmtree(server.root)
    (server.root / "etc/rancher").mkdir(parents=True)


def back_up(*names: str, size: int | None = None) -> Step:
    """Make the backup one of these files; cut it off at a size."""

    def step(server: Server) -> None:
        path = backup(server.place / "others", {*names})
        path.write_bytes(path.read_bytes()[:size])
        server.options["src"] = str(path)

    return step


def write(name: str) -> Step:
    """Write a file whose directory K3s has made."""

    def step(server: Server) -> None:
        (server.root / SERVER / name).parent.mkdir(exist_ok=True)
        (server.root / SERVER / name).write_text("later")

    return step


def to(*states: str) -> list[Step]:
    """Return each run with one in check mode before."""
    return [{"state": state, "check": check} for state in states for check in (True, False)]


SNAPSHOTS = (
    f"{SERVER}/token",
    SNAPSHOT,
    f"{SERVER}/db/snapshots/gb10-b-999",
    f"{SERVER}/db/snapshots/daily-1800000000",
)
CASES: dict[str, list[Step]] = {
    "replaced and settled": to("replaced", "settled", "settled"),
    "K3s does not start": [*to("replaced"), break_state, *to("kept", "kept")],
    # K3s makes certificates and credentials from the snapshot; old ones would be newer than the datastore.
    "snapshots": [
        write("db/snapshots/gb10-a-1700000000"),
        back_up(*SNAPSHOTS),
        *to("replaced"),
        write("tls/new"),
        *to("settled"),
    ],
    "a server without a state": [empty, *to("replaced", "kept"), back_up(*SNAPSHOTS[:2]), *to("replaced", "settled")],
    "a hostile archive": [back_up(*STATE, "etc/cron.d/evil"), *to("replaced")],
    "half an archive": [back_up(*STATE, size=100), *to("replaced")],
    "no archive": [lambda server: Path(server.options["src"]).unlink(), *to("replaced")],
    # A second restore after a failed one: what is there now is only the rest of the failed one.
    "aside": [*to("aside", "aside"), write("cred/rest"), *to("aside", "kept", "settled")],
    "aside and settled": [*to("aside", "settled", "settled")],
    "a server that never ran": [empty, *to("aside")],
}
test_each_step_of_an_exchange = steps_of(k3s_state=(exchange, Server, CASES))


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
    before, path, found = files(host), backup(tmp_path, STATE), exchange.places(host, DATA)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(number, patch)
        interrupted = False
        try:
            exchange.converge("replaced", found, DATA, path, False)
        except KeyboardInterrupt:
            interrupted = True
    assert interrupted == (number < 15)  # 3 plans, and 6 files and directories of which each moves twice
    exchange.converge("replaced", found, DATA, path, False)
    assert exchange.converge("kept", found, DATA, None, False)[0]
    assert files(host) == before
