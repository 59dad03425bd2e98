# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is listed, which damage is found, and that a model in use is not removed."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.modules import model_files, model_files_info, model_stage
from module_runs import Step, steps_of

FILES = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"one" * 99, "sub/two.bin": b"two" * 999}


def download(root: Path, repo: str = "org/tiny", complete: bool = True) -> Path:
    """Write a model and the record that a download leaves: SHA-256 of large files, git's SHA-1 of the others."""
    directory = root / repo.replace("/", "--")
    recorded = {}
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        recorded[name] = git if name == "config.json" else hashlib.sha256(content).hexdigest()
    store.write_marker(directory, repo, "c0ffee" * 7, recorded, complete)
    return directory


class Host:
    """A host with models, and with a process that ended while it was read."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.root, self.patch, self.last = place, place / "models", patch, dict[str, Any]()
        self.options = {"path": str(self.root)}
        patch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=4 * 10**12, free=10**12))
        self.proc = place / "proc"
        (self.proc / "7").mkdir(parents=True)
        patch.setattr(model_files, "PROC", self.proc)

    def shows(self) -> dict[str, Any]:
        marked = [path.parent.name for path in sorted(self.root.glob(f"*/{store.MARKER}"))]
        there = [path.name for path in sorted(self.root.glob("*"))]
        lost = []
        for directory in (self.root / name for name in marked):
            known = store.read_marker(directory)["files"]
            wanted = [
                store.File(n, len(c), hashlib.sha256(c).hexdigest(), "sha256") for n, c in FILES.items() if "/" in n
            ]
            lost += [f"{directory.name}/{file.name}" for file in store.missing(directory, wanted, known)]
        return {"there": there, "marked": marked, "to fetch": lost}


def has(*repos: str, complete: bool = True) -> Step:
    return lambda host: [download(host.root, repo, complete) for repo in repos]


def write(name: str, content: bytes = b"{}") -> Step:
    def step(host: Host) -> None:
        (host.root / name).parent.mkdir(parents=True, exist_ok=True)
        (host.root / name).write_bytes(content)

    return step


def remove(*names: str) -> Step:
    return lambda host: [(host.root / name).unlink() for name in names]


def use(host: Host) -> None:
    (host.proc / "8").mkdir()
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", "/srv/models/org--tiny"]
    (host.proc / "8/cmdline").write_text("\0".join(argv))


def link(host: Host) -> None:
    host.root.mkdir()
    (host.root / "org--tiny").symlink_to(download(host.place / "elsewhere"))


def go_on(host: Host) -> dict[str, Any]:
    return {"digests": True, "progress": host.last.get("progress", {})}


TINY, DIGESTS = {"state": "absent", "repo": "org/tiny"}, {"digests": True}
DAMAGED = {"state": "damaged", "files": ["org/tiny/sub/two.bin"]}
CASES: dict[str, list[Step]] = {
    "models with faults": [
        has("org/tiny", "org/lost"),
        has("org/half", complete=False),
        remove("org--lost/sub/two.bin"),
        write("org--copied/config.json"),
        write(".jit-cache/some-key/x"),
        {},
        {"repo": "org/half"},
    ],
    "digests match": [has("org/tiny"), DIGESTS],
    "a damaged file is fetched again": [
        has("org/tiny"),
        write("org--tiny/sub/two.bin", b"wot" * 999),
        DIGESTS,
        {**DAMAGED, "check": True},
        DAMAGED,
        DAMAGED,
        DIGESTS,
    ],
    "slices": [
        has("org/tiny"),
        write("org--tiny/config.json", b"broken"),
        lambda host: host.patch.setattr(model_files_info, "SLICE_SECONDS", -1),
        go_on,
        go_on,
        go_on,
    ],
    "a copied model without weights": [write("org--copied/config.json"), DIGESTS],
    # A longer name is another model.
    "a model in use": [has("org/tiny", "org/tiny-two"), use, TINY, {**TINY, "repo": "org/tiny-two"}],
    "removed once": [has("org/tiny"), {**TINY, "check": True}, TINY, TINY],
    "rests of a removal and of a download": [
        has("org/tiny"),
        remove(f"org--tiny/{store.MARKER}", "org--tiny/config.json"),
        write("org--begun/model.safetensors.part", b"x" * 1000),
        {},
        TINY,
        {**TINY, "repo": "org/begun"},
    ],
    "wrong names": [
        has("org/tiny"),
        *({**TINY, "repo": name} for name in ("org/tyni", "../models", "org--tiny", ".", "")),
        {"repo": "org/tny"},
    ],
    "a link": [link, TINY, lambda host: (host.place / "elsewhere/org--tiny").rename(host.root / "kept"), {}],
    "no directory": [{}, TINY],
}


class Copied:
    """A directory with a model that somebody has copied."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = place, patch
        self.options = {"repo": "org/tiny", "dest": str(place)}
        (place / "config.json").write_text("{}")


def lack(host: Copied) -> None:
    index = {"weight_map": {str(n): f"model-{n:05}.bin" for n in range(9)}}
    (host.root / "model.safetensors.index.json").write_text(json.dumps(index))


def refuse(host: Copied) -> None:
    def refused(path: Path, *_arguments: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    host.patch.setattr(store, "faults", refused)


STAGED: dict[str, list[Step]] = {
    "no weights, and then some": [{}, write("pytorch_model.bin", b"x" * 10), {}],
    "many missing files": [lack, {}],
    "no right to read": [refuse, {}],
}
test_each_step = steps_of(
    model_files=(lambda options: model_files if "state" in options else model_files_info, Host, CASES),
    model_stage=(model_stage, Copied, STAGED),
)
