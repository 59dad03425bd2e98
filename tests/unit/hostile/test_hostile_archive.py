# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an archive of a stranger writes nothing on a server, neither beside its state nor elsewhere."""

import gzip
import inspect
import json
import os
import re
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive
from ansible_collections.gb10.cluster.plugins.modules import k3s_backup_info, k3s_state

DATA = "/var/lib/rancher/k3s"
SERVER = "var/lib/rancher/k3s/server"
SINGLE = [
    "etc/rancher/k3s/config.yaml",
    "etc/rancher/k3s/config.yaml.d/more.yaml",
    "etc/rancher/k3s/server-token",
    "etc/rancher/node/password",
    *(f"{SERVER}/{name}" for name in ("db/state.db", "db/state.db-wal", "tls/server-ca.key", "tls/etcd/client.key")),
    f"{SERVER}/cred/passwd",
    f"{SERVER}/token",
]
SEVERAL = ["etc/rancher/k3s/server-token", f"{SERVER}/db/snapshots/gb10-control-1700000000", f"{SERVER}/token"]
Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes = b"evil", **fields: Any) -> Entry:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return entry(name, b"", type=kind, linkname=to)


# Names that a backup never has: what the issue tried, and every part of the host that root could hand to a stranger.
NAMES = [
    "etc/cron.d/evil",
    "root/.ssh/authorized_keys",
    "/etc/cron.d/evil",
    "//etc/cron.d/evil",
    "../etc/cron.d/evil",
    f"{SERVER}/db/../../../../../../../../etc/cron.d/evil",
    f"{SERVER}/../../../../../etc/cron.d/evil",
    f"./{SERVER}/db/evil",
    f"{SERVER}//db/evil",
    f"/{SERVER}/db/evil",
    f"{SERVER}/manifests/evil.yaml",
    f"{SERVER}/static/evil",
    f"{SERVER}/token/evil",
    f"{SERVER}/tokens",
    f"{SERVER}/db",
    f"{SERVER}/dbx/evil",
    f"{SERVER}/db/a\nb",
    f"{SERVER}/db/\x1b[2J",
    f"{SERVER}/db/" + "/".join("a" * 20),
    f"{SERVER}x/db/evil",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/k3s/data/current/bin/k3s",
    "usr/local/bin/k3s",
    "etc/rancher/k3s",
    "etc/rancher/k3s/../../cron.d/evil",
    "etc/rancher/node/password/evil",
    "etc/rancher/node/evil",
    "etc/rancher/evil",
    "etc/passwd",
    "etc",
    "var/lib",
    ".",
    "..",
    "",
]
KINDS = {
    "link": link(f"{SERVER}/db/evil", "/etc"),
    "hard link": link(f"{SERVER}/db/evil", "etc/shadow", tarfile.LNKTYPE),
    "link inside": link(f"{SERVER}/tls", "db"),
    "character device": entry(f"{SERVER}/db/evil", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=1),
    "block device": entry(f"{SERVER}/db/evil", b"", type=tarfile.BLKTYPE, devmajor=8),
    "pipe": entry(f"{SERVER}/db/evil", b"", type=tarfile.FIFOTYPE),
    "sparse file": entry(f"{SERVER}/db/evil", b"", type=tarfile.GNUTYPE_SPARSE),
    "contiguous file": entry(f"{SERVER}/db/evil", type=tarfile.CONTTYPE),
    "directory with a size": entry(f"{SERVER}/db/evil", b"", type=tarfile.DIRTYPE, size=4),
    "negative size": entry(f"{SERVER}/db/evil", b"", size=-1),
    "unknown type": entry(f"{SERVER}/db/evil", type=b"Z"),
    "pax header": entry("pax", b"30 path=../../../etc/cron.d/a\n", type=tarfile.XHDTYPE),
    "global header": entry("pax", b"30 path=../../../etc/cron.d/a\n", type=tarfile.XGLTYPE),
    "setuid": entry(f"{SERVER}/db/evil", mode=0o4755),
    "setgid": entry(f"{SERVER}/db/evil", mode=0o2755),
    "sticky": entry(f"{SERVER}/db/evil", mode=0o1755),
    "directory of another name": entry("etc/cron.d", b"", type=tarfile.DIRTYPE, mode=0o777),
    "setgid directory": entry(f"{SERVER}/db/evil", b"", type=tarfile.DIRTYPE, mode=0o2777),
    "twice": entry(f"{SERVER}/token"),
    "file as directory": entry(f"{SERVER}/cred/passwd/evil"),
    "directory as file": entry(f"{SERVER}/tls/etcd"),
    "long name": entry("././@LongLink", b"../" * 2000 + b"etc/evil\0", type=tarfile.GNUTYPE_LONGNAME),
    "endless name": entry("././@LongLink", b"a" * (2**21), type=tarfile.GNUTYPE_LONGNAME),
}


def packed(path: Path, *more: Entry, names: list[str] = SINGLE, after: bytes = b"") -> Path:
    """Write a whole backup with further entries at its end."""
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for info, content in [*(entry(name, name.encode()) for name in names), *more]:
            stream.write(info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
        stream.write(after or bytes(1024))
    return path


def bomb_of_headers(path: Path) -> Path:
    """Announce a name of 8 GiB, which tarfile would read into memory."""
    info, _content = entry("././@LongLink", b"", type=tarfile.GNUTYPE_LONGNAME, size=2**33 - 1)
    return packed(path, after=info.tobuf(tarfile.GNU_FORMAT) + bytes(2**20))


def chain_of_headers(path: Path) -> Path:
    """Repeat headers of names, for each of which tarfile calls itself."""
    return packed(path, *(entry("././@LongLink", b"a\0", type=tarfile.GNUTYPE_LONGNAME) for _number in range(1500)))


def cut(path: Path) -> Path:
    packed(path, entry(f"{SERVER}/db/big", os.urandom(4096)))
    path.write_bytes(path.read_bytes()[:-2000])
    return path


def no_archive(path: Path) -> Path:
    path.write_bytes(b"#!/bin/sh\n")
    return path


def test_each_field_of_an_entry_that_is_read_is_tried() -> None:
    """NAMES have the odd names, and KINDS the odd types, modes and sizes."""
    text = inspect.getsource(k3s_archive)
    read = set(re.findall(r"\b(?:member|header)\.(\w+)", text)) - {"startswith", "split"}
    assert read == {"name", "type", "isdir", "mode", "size"}
    tried = {key for info, _content in KINDS.values() for key, value in info.get_info().items() if value}
    assert tried >= {"name", "type", "mode", "size"} and len(NAMES) > 30


BOMBS = [bomb_of_headers, chain_of_headers, cut, no_archive]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a K3s that runs, and files that no archive may touch."""
    made = tmp_path / "root"
    for name in (*SINGLE, "etc/passwd", "root/.ssh/authorized_keys", f"{SERVER}/manifests/coredns.yaml"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("own")
    return made


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return every path below a directory, and beside it, with mode and content."""
    every = sorted(path for path in root.parent.rglob("*") if path.suffix != ".gz")
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
        for path in every
    }


def call(module: Any, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, Any]]:
    with patch_module_args(options), pytest.raises(SystemExit) as stop:
        module.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def refused(path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Require that the controller and the server refuse an archive; return the controller's reason."""
    before = tree(root)
    status, told = call(k3s_backup_info, capsys, path=str(path), data_dir=DATA)
    reason = str(told["refused"] or told["damaged"])
    assert (status, bool(reason), len(reason) < 500) == (0, True, True)
    assert reason.isprintable()
    status, result = call(k3s_state, capsys, state="replaced", data_dir=DATA, src=str(path), root=str(root))
    assert (status, result["msg"].endswith(reason)) == (1, True)
    assert tree(root) == before
    return reason


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_no_backup_has_is_refused(
    name: str, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(packed(tmp_path / "a.gz", entry(name)), root, capsys)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_that_is_no_plain_file_or_directory_is_refused(
    kind: str, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(packed(tmp_path / "a.gz", KINDS[kind], entry(f"{SERVER}/db/after")), root, capsys)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_an_archive_that_is_too_large_or_damaged_is_refused(
    bomb: Callable[[Path], Path], tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(bomb(tmp_path / "a.gz"), root, capsys)


@pytest.mark.parametrize(("more", "error"), [(0, k3s_archive.Damaged), (1, k3s_archive.Refused)])
def test_an_archive_may_announce_64_gib(more: int, error: type[Exception], tmp_path: Path) -> None:
    size = 64 * 2**30 - sum(map(len, SINGLE)) + more
    with pytest.raises(error):
        k3s_archive.read(packed(tmp_path / "a.gz", entry(f"{SERVER}/db/large", b"", size=size)), DATA)


def test_an_archive_has_a_largest_number_of_files_and_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path / "a.gz")
    content = k3s_archive.read(path, DATA)
    monkeypatch.setattr(k3s_archive, "FILES", len(content.files) + len(content.directories))
    assert k3s_archive.read(path, DATA) == content
    monkeypatch.setattr(k3s_archive, "FILES", k3s_archive.FILES - 1)
    with pytest.raises(k3s_archive.Refused):
        k3s_archive.read(path, DATA)


@pytest.mark.parametrize("depth", [16, 17])
def test_a_name_has_at_most_16_parts(depth: int, tmp_path: Path) -> None:
    name = f"{SERVER}/db/" + "/".join("a" * (depth - 6))
    with pytest.raises(k3s_archive.Refused) if depth > 16 else nullcontext():
        assert name in k3s_archive.read(packed(tmp_path / "a.gz", entry(name)), DATA).files


def test_the_newest_snapshot_of_the_playbook_is_the_last() -> None:
    names = ["gb10-b-9", "gb10-a-10.zip", "gb10-z-²", "gb10-a-new", "gb10-c-9", "daily-99", "gb10-d-11/part"]
    content = k3s_archive.Content({f"{SERVER}/db/snapshots/{name}": 1 for name in names})
    assert k3s_archive.snapshots(content, DATA) == ["gb10-a-new", "gb10-z-²", "gb10-b-9", "gb10-c-9", "gb10-a-10.zip"]


def test_a_name_of_8_gib_is_not_read_into_memory(tmp_path: Path) -> None:
    with pytest.raises(k3s_archive.Refused, match="a header announces 8589934592 bytes"):
        k3s_archive.read(bomb_of_headers(tmp_path / "a.gz"), DATA)


def test_a_disk_without_space_is_found_before_anything_is_written(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = packed(tmp_path / "a.gz"), tree(root)
    monkeypatch.setattr(k3s_archive.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    status, result = call(k3s_state, capsys, state="replaced", data_dir=DATA, src=str(path), root=str(root))
    assert status == 1
    assert "has 10" in result["msg"]
    assert tree(root) == before
    size = k3s_archive.read(path, DATA).size
    monkeypatch.setattr(k3s_archive.shutil, "disk_usage", lambda _: type("Usage", (), {"free": size}))
    assert call(k3s_state, capsys, state="replaced", data_dir=DATA, src=str(path), root=str(root))[0] == 0


@pytest.mark.parametrize(
    "second",
    [
        entry(f"{SERVER}/db/after"),
        entry(f"{SERVER}/db/changes", b"larger"),
        entry(f"{SERVER}/db/changes", b"", type=tarfile.DIRTYPE),
    ],
)
def test_the_archive_that_changes_between_two_reads_is_refused(
    second: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed(tmp_path / "a.gz", entry(f"{SERVER}/db/changes"))
    seen = k3s_archive.read(first, DATA)
    monkeypatch.setattr(k3s_archive, "read", lambda *_: seen)
    target = tmp_path / "new"
    target.mkdir()
    with pytest.raises(k3s_archive.Refused):
        k3s_archive.unpack(packed(tmp_path / "b.gz", second), DATA, {f"{SERVER}/db": target})


WHOLE = [
    (SINGLE, True, []),
    (SEVERAL, False, []),
    (SINGLE[:3], False, [f"{SERVER}/token", "the datastore"]),
    ([f"{SERVER}/token"], False, ["the datastore"]),
    ([], False, [f"{SERVER}/token", "the datastore"]),
]


@pytest.mark.parametrize(("names", "single", "lacks"), WHOLE)
def test_a_backup_is_told_from_a_part_of_one(
    names: list[str], single: bool, lacks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed(tmp_path / "a.gz", names=names)
    told = call(k3s_backup_info, capsys, path=str(path), data_dir=DATA)[1]
    assert (told["refused"], told["damaged"], told["single"], told["lacks"]) == ("", "", single, lacks)


def test_what_gnu_tar_writes_is_accepted(tmp_path: Path) -> None:
    """Earlier releases wrote their backups with it; names of over 100 characters and links too."""
    host = tmp_path / "host"
    for name in [*SINGLE, f"{SERVER}/db/snapshots/gb10-{'long' * 40}-1700000000"]:
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text(name)
    (host / "etc/rancher/k3s/registries.yaml").symlink_to("config.yaml")
    os.link(host / f"{SERVER}/cred/passwd", host / f"{SERVER}/cred/same")
    options = ["--create", "--gzip", "--dereference", "--hard-dereference", "--file", str(tmp_path / "a.gz")]
    parts = ["etc/rancher/k3s", "etc/rancher/node/password", *(f"{SERVER}/{part}" for part in k3s_archive.STATE)]
    assert os.spawnvp(os.P_WAIT, "tar", ["tar", *options, "--directory", str(host), *parts]) == 0
    content = k3s_archive.read(tmp_path / "a.gz", DATA)
    assert k3s_archive.lacks(content, DATA) == []
    assert set(SINGLE) < set(content.files)
    assert len(k3s_archive.snapshots(content, DATA)) == 1


@pytest.mark.parametrize(
    ("kind", "given", "mode"),
    [
        (tarfile.REGTYPE, 0o777, 0o755),
        (tarfile.REGTYPE, 0o004, 0o604),
        (tarfile.DIRTYPE, 0o777, 0o755),
        (tarfile.DIRTYPE, 0o004, 0o704),
    ],
)
def test_modes_and_owners_are_not_those_of_the_archive(kind: bytes, given: int, mode: int, tmp_path: Path) -> None:
    wide = entry(f"{SERVER}/db/wide", b"", type=kind, mode=given, uid=1234, gid=1234)
    path = packed(tmp_path / "a.gz", wide)
    target = tmp_path / "new"
    target.mkdir()
    k3s_archive.unpack(path, DATA, {f"{SERVER}/db": target})
    found = (target / SERVER / "db/wide").stat()
    assert (found.st_mode & 0o7777, found.st_uid) == (mode, os.getuid())
    assert (target / SERVER / "db").stat().st_mode & 0o7777 == 0o700
    assert not (target / "etc").exists()


def test_a_tar_without_gzip_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.decompress(packed(tmp_path / "b.gz").read_bytes()))
    with pytest.raises(k3s_archive.Damaged):
        k3s_archive.read(tmp_path / "a.gz", DATA)
