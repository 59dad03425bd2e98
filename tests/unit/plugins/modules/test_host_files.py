# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that all files of a role are written, kept and removed in one run."""

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import host_files
from module_runs import Step, steps_of


class Host:
    """A host with an old file, and a role that wants one entry of every kind."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.etc, self.hides = place, place / "etc/rancher", rf"\b{os.geteuid()}:{os.getegid()}\b"
        (place / "plugin").write_bytes(b"\x7fELF\xff")
        (place / "old").write_text("old")
        (place / "old").chmod(0o644)
        self.owners: list[tuple[str, int, int]] = []
        self.files = [
            {"path": str(self.etc / "config.yaml"), "content": "port: 1\n", "mode": "0600"},
            {"path": str(self.etc / "token"), "content": "first", "mode": "0600", "keep": True},
            {"path": str(self.etc / "host-device"), "source": str(place / "plugin"), "mode": "0755"},
        ]
        self.directories = [{"path": str(self.etc), "mode": "0750"}]
        self.absent = [str(place / "old")]
        patch.setattr(os, "chown", lambda path, user, group: self.owners.append((Path(path).name, user, group)))

    @property
    def options(self) -> dict[str, Any]:
        return {"directories": self.directories, "files": self.files, "absent": self.absent}

    def shows(self) -> dict[str, Any]:
        shown = []
        for path in sorted({*self.place.rglob("*")} - {self.place / "etc", self.place / "plugin"}):
            text = f" {path.read_bytes()!r}" if path.is_file() else ""
            link = " link" * path.is_symlink()
            shown.append(f"{path.relative_to(self.place)} {path.lstat().st_mode & 0o7777:o}{link}{text}")
        owners, self.owners = [str(each) for each in self.owners], []
        return {"files": shown, "owners": owners}


def edit(name: str, text: str | None = None, mode: int | None = None) -> Step:
    def step(host: Host) -> None:
        if text is not None:
            (host.etc / name).write_text(text)
        if mode is not None:
            (host.etc / name).chmod(mode)

    return step


def link(name: str) -> Step:
    """Replace a file by a link to one that is as wanted."""

    def step(host: Host) -> None:
        (host.etc / name).rename(host.place / "elsewhere")
        (host.etc / name).symlink_to(host.place / "elsewhere")

    return step


def want(number: int, **more: Any) -> Step:
    return lambda host: host.files[number].update(more)


def secret(content: str, **more: Any) -> Step:
    only: dict[str, Any] = {"directories": [], "files": [], "absent": []}
    return lambda host: {**only, "secret_files": [{"path": str(host.place / "secret"), "content": content, **more}]}


def owned(user: int) -> Step:
    return lambda host: {"directories": [{"path": str(host.etc), "mode": "0750", "owner": user}]}


def link_others(host: Host) -> None:
    """A link to a directory is one, and a link to nothing goes away."""
    (host.place / "real").mkdir(mode=0o750)
    host.etc.parent.mkdir()
    host.etc.symlink_to(host.place / "real")
    (host.place / "old").unlink()
    (host.place / "old").symlink_to("nothing")


CASES: dict[str, list[Step]] = {
    "all, twice": [{"check": True}, {}, {}, {"check": True}],
    "a kept file": [
        {},
        want(1, content="second"),
        edit("token", mode=0o644),
        {"check": True},
        {},
        want(1, keep=False),
        {},
    ],
    **{
        f"{name} changed by hand": [{}, edit(name, "changed by hand\n"), {}, edit(name, mode=0o777), {}, link(name), {}]
        for name in ("config.yaml", "host-device")
    },
    "an owner": [{}, owned(12345), owned(12345)],
    "secrets": [
        *(step for content in ("0ld-t0ken", "s3cr3t-token") for step in (secret(content), secret(content))),
        secret("another", keep=True),
    ],
    **{f"mode {bad!r}": [want(2, mode=bad), {}] for bad in ("u=rw", "", "0o644")},
    "links": [link_others, {}, {}],
    "another mode of the directory": [{}, lambda host: host.etc.chmod(0o755), {"check": True}, {}],
    "a file in the place of a directory": [
        lambda host: (host.place / "etc").write_text("a file where a directory has to be"),
        {},
    ],
}
test_each_step_of_the_files = steps_of(host_files=(host_files, Host, CASES))
