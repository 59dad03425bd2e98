# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write container images without a registry or daemon, as archives for `ctr images import`."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

LABEL = "cluster.gb10.simulated"


@dataclass
class Image:
    """One image: its name, its layers (paths of uncompressed tars), its configuration."""

    name: str
    layers: list[Path]
    entrypoint: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    user: str = ""
    origin: str = "built by gb10.cluster's lab; no upstream image"


def layer(path: Path, files: Iterable[tuple[str, Path]], links: Iterable[tuple[str, str]] = ()) -> Path:
    """Write a layer of files, all owned by root and dated 1970, so that the same input gives the same image."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        made: set[str] = set()
        for name, source in sorted(files):
            for parent in reversed(Path(name).parents):
                if str(parent) not in {".", *made}:
                    made.add(str(parent))
                    tar.addfile(_entry(str(parent), tarfile.DIRTYPE, 0o755))
            entry = _entry(name, tarfile.REGTYPE, 0o755 if os.access(source, os.X_OK) else 0o644)
            entry.size = source.stat().st_size
            with source.open("rb") as stream:
                tar.addfile(entry, stream)
        for name, target in links:
            entry = _entry(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = target
            tar.addfile(entry)
    return path


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def archive(path: Path, images: Iterable[Image], arch: str) -> None:
    """Write a Docker archive. A layer that several images share is stored once."""
    manifest = []
    stored: dict[Path, str] = {}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for image in images:
            for source in image.layers:
                if source not in stored:
                    with source.open("rb") as stream:
                        stored[source] = hashlib.file_digest(stream, "sha256").hexdigest()
                    tar.add(source, f"{stored[source]}/layer.tar", filter=_neutral)
            config = json.dumps({
                "architecture": arch, "os": "linux", "created": "1970-01-01T00:00:00Z",
                "config": {"Entrypoint": image.entrypoint, "Env": image.env, "User": image.user, "WorkingDir": "/",
                           "Labels": {LABEL: image.origin}},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{stored[source]}" for source in image.layers]},
            }).encode()  # fmt: skip
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            entry = _entry(name, tarfile.REGTYPE, 0o644)
            entry.size = len(config)
            tar.addfile(entry, io.BytesIO(config))
            layers = [f"{stored[source]}/layer.tar" for source in image.layers]
            manifest.append({"Config": name, "RepoTags": [image.name], "Layers": layers})
        text = json.dumps(manifest).encode()
        entry = _entry("manifest.json", tarfile.REGTYPE, 0o644)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))


def _neutral(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry
