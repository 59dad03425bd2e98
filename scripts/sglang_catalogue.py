#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the flag catalogue of an SGLang release as its own parser defines it.

``sglang_catalogue.py VERSION`` downloads the release's wheel from the package index with pip, runs its parser (without
torch or a GPU) and writes ``plugins/profiles/catalogue/VERSION.json``. ``--check`` compares instead of writing and
exits 1 on any difference; without versions it checks the oldest and the newest catalogue. Needs pip, msgspec and
packaging.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = ROOT / "plugins" / "profiles" / "catalogue"
CACHE = ROOT / ".cache" / "sglang"
RUNNER = Path(__file__).with_name("_sglang_release.py")
VERSION = re.compile(r"\d+\.\d+\.\d+(\.post\d+|rc\d+)?")
PINNED = re.compile(r"Requires-Dist: ([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;]+)\s*$")
RENAMED = re.compile(r'get\("architectures"\) == \["(\w+)"\]')
REQUIREMENTS = ("flashinfer_python", "nvidia-cutlass-dsl", "sglang-kernel", "torch", "transformers")
"""Pinned packages that decide whether a model or a patch works; the others do not affect a profile."""
METHODS = ("get", "post", "put", "delete", "head", "patch", "api_route", "websocket")
INDEX_PLATFORM = (
    *("--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64"),
    *("--platform", "any", "--python-version", "3.12"),
)
"""Only the Python sources are read, so the wheel of one platform is enough."""


class ReleaseError(Exception):
    """The release can't be downloaded or its parser doesn't load; the message says which and why."""


def download(name: str, version: str, wheels: Path) -> Path:
    """Download a wheel from the package index; raise ReleaseError if that fails."""
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    got = subprocess.run(
        [*command, *INDEX_PLATFORM, "--dest", str(wheels), f"{name}=={version}"],
        check=False,
        capture_output=True,
        text=True,
    )
    found = sorted(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if got.returncode or not found:
        last = got.stderr.strip().splitlines()[-1:] or ["no wheel came"]
        raise ReleaseError(f"{name} {version} can't be downloaded (is a package index reachable?): {last[0]}")
    return found[0]


def unpack(version: str, cache: Path = CACHE) -> Path:
    """Return a directory with the release's Python sources, which are downloaded on the first call."""
    target = cache / version
    if (target / "complete").exists():
        return target
    found = download("sglang", version, cache / "wheels")
    with zipfile.ZipFile(found) as wheel:
        for name in wheel.namelist():
            if name.endswith(("dist-info/METADATA", ".py")) and not name.startswith("sglang/multimodal_gen/"):
                wheel.extract(name, target)
    (target / "complete").touch()
    found.unlink()
    return target


def run_release(directory: Path, command: str, lines: str = "") -> str:
    """Return the output of a command of ``_sglang_release.py``, which no variable for SGLang influences."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SGLANG_")}
    words = [sys.executable, str(RUNNER), str(directory), command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, input=lines, env=clean)
    if done.returncode:
        raise ReleaseError(f"{directory.name}: the release did not load: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def pins(directory: Path) -> dict[str, str]:
    """Return the exact versions that the wheel requires of the packages in question."""
    metadata = next(directory.glob("sglang-*.dist-info/METADATA"))
    found: dict[str, str] = {}
    for line in metadata.read_text(encoding="utf-8").splitlines():
        match = PINNED.match(line)
        if match and match[1] in REQUIREMENTS:
            found[match[1]] = match[2]
    return dict(sorted(found.items()))


def architectures(directory: Path) -> list[str]:
    """Return the model classes that a config.json can name: EntryClass of every module of the release's models
    package, and the names that its configurations replace by one of these."""
    names: set[str] = set()
    for path in (directory / "sglang" / "srt" / "configs").glob("*.py"):
        names |= set(RENAMED.findall(path.read_text(encoding="utf-8")))
    for path in (directory / "sglang" / "srt" / "models").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "EntryClass" for t in node.targets):
                names |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return sorted(names)


def routes(directory: Path) -> list[str]:
    """Return the paths of the head's HTTP server: those of http_server.py and of the routers that it includes.

    Raise ReleaseError for one that is not written as a text: it would be missing where the paths are judged.
    """
    entrypoints = directory / "sglang" / "srt" / "entrypoints"
    texts = {path: path.read_text(encoding="utf-8") for path in entrypoints.glob("*.py")}
    found: set[str] = set()
    for path, text in texts.items():
        if path.name != "http_server.py" and "APIRouter()" not in text:
            continue
        for call in filter(_is_route, ast.walk(ast.parse(text))):
            words = [part.value for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant)]
            if words:
                found.add(str(words[-1]))  # of os.environ.get(NAME, PATH) the path
            elif not re.search(rf'{ast.unparse(call.args[0])} = os.environ.get\("\w+"\)\n', text):
                raise ReleaseError(f"{path}:{call.lineno}: the path of a route is no text")
    return sorted(found)


def _is_route(node: ast.AST) -> TypeGuard[ast.Call]:
    """Tell whether a node is ``app.post(PATH)`` or the like."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return isinstance(owner, ast.Name) and owner.id in ("app", "router") and node.func.attr in METHODS


def render(
    version: str, requires: dict[str, str], models: list[str], paths: list[str], flags: list[dict[str, Any]]
) -> str:
    """Return the text of the catalogue: one flag per line, so that two releases can be compared by eye."""
    body = ",\n".join(f"    {json.dumps(flag)}" for flag in flags)
    head = f'{{\n  "sglang": {json.dumps(version)},\n  "requires": {json.dumps(requires)},\n'
    head += f'  "architectures": {json.dumps(models)},\n  "routes": {json.dumps(paths)},\n'
    return f'{head}  "flags": [\n{body}\n  ]\n}}\n'


def catalogue(version: str, cache: Path = CACHE) -> str:
    directory = unpack(version, cache)
    flags = json.loads(run_release(directory, "catalogue"))
    return render(version, pins(directory), architectures(directory), routes(directory), flags)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the requested catalogues."""
    parser = argparse.ArgumentParser(description="Write the flag catalogue of SGLang releases.")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="release on the package index")
    parser.add_argument("--check", action="store_true", help="compare with the existing file; exit 1 if different")
    parser.add_argument("--output", type=Path, default=CATALOGUE, help="directory of the catalogues")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where unpacked releases are kept")
    options = parser.parse_args(argv)
    if not options.versions and not options.check:
        parser.error("name the releases to write, such as 0.5.12.post1")
    different = 0
    shipped = load_history(options.output).catalogues
    for version in options.versions or [str(shipped[0].version), str(shipped[-1].version)]:
        if not VERSION.fullmatch(version):
            print(f"{version}: not a release; write it like 0.5.12 or 0.5.12.post1", file=sys.stderr)
            return 2
        path = options.output / f"{version}.json"
        try:
            text = catalogue(version, options.cache)
        except ReleaseError as problem:
            print(problem, file=sys.stderr)
            return 2
        if not options.check:
            options.output.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{path}: {len(json.loads(text)['flags'])} flags")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            different += 1
            print(f"{path}: not what the parser of {version} says; run this again without --check", file=sys.stderr)
        else:
            print(f"{path}: as the parser of {version} says")
    return 1 if different else 0


if __name__ == "__main__":
    run(main)
