# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find files of an inventory that Ansible does not read, or cannot read."""

from __future__ import annotations

import difflib
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import yaml
from ansible import constants
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._controller.data import Rules

KINDS = ("group_vars", "host_vars")
READ = ("", *constants.config.get_config_value("YAML_FILENAME_EXTENSIONS"))
YAML = (".yml", ".yaml", ".json")
TEXT = (*READ, ".ini", ".cfg")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
VAULT = b"$ANSIBLE_VAULT"
UTF_16 = (BOM_UTF16_LE, BOM_UTF16_BE)
# A number that YAML 1.1 reads as octal; one with an 8 or 9 is text, which the plan reads as decimal.
OCTAL = re.compile(rb"""^[^#\n]*\bgb10_node_id["']?:\s+(0[0-7]+)\s*(?=[,}#\n]|$)""", re.MULTILINE)
_OF_ALL = re.compile(r"/group_vars/all[./:]")
# Similarity from which the name of a file or directory counts as a misspelling.
ALIKE = 0.8

_finding = Rules("_inventory").finding


def check_files(directories: Iterable[Path], groups: Iterable[str], hosts: Iterable[str]) -> list[Finding]:
    """Return a finding for each file of group_vars and host_vars in an inventory that Ansible does not read."""
    names = {"group_vars": sorted(groups), "host_vars": [*sorted(hosts), "localhost"]}
    return [finding for directory in directories for finding in _check_directory(directory, names)]


def check_places(directories: Iterable[Path], groups: Iterable[str], working: Path) -> list[Finding]:
    """Return a finding for each group_vars above an inventory without one, or in the directory of the command.

    Ansible reads those beside the inventory and beside the playbook only.
    """
    names, found = {*groups}, {}
    for directory in directories:
        if any((directory / kind).is_dir() for kind in KINDS):
            continue
        for place in dict.fromkeys((directory.resolve().parent, working.resolve())):
            path = place / "group_vars"
            meant = {one.stem for one in path.glob("[!.]*") if _is_read(one)} & names
            # Beside the hosts of another inventory they are that one's.
            if meant and place != directory.resolve() and not any(place.glob("hosts*")):
                found[path] = _finding("inventory.unread/place", None, key=str(path), place=directory)
    return list(found.values())


def _check_directory(directory: Path, names: dict[str, list[str]]) -> Iterator[Finding]:
    for path in sorted(directory.glob("[!.]*/")):
        close = difflib.get_close_matches(path.name, KINDS, 1, ALIKE)
        if close and path.name not in KINDS:
            yield _finding("inventory.unread/directory", None, key=str(path), alike=close[0])
    for kind in KINDS:
        for name in names[kind]:
            for path in (directory / f"{name}{ending}" for ending in YAML):
                if _has_variables(path):
                    there = directory / kind / path.name
                    case = "both" if there.exists() else "beside"
                    yield _finding(f"inventory.unread/{case}", None, key=str(path), place=there.parent, there=there)
        paths = sorted((directory / kind).glob("[!.]*"))
        read = [path for path in paths if _is_read(path)]
        for path in paths:
            if path in read:
                yield from _check_name(kind, path, names[kind])
            elif (stem := path.name.partition(".")[0]) in names[kind] and stem not in {one.stem for one in read}:
                yield _finding("inventory.unread/extension", None, key=f"{kind}/{path.name}", stem=f"{kind}/{stem}")


def _has_variables(path: Path) -> bool:
    """Tell whether a file has variables: where it has hosts, the value of every name is a mapping."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    values = {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}
    other = [value for value in values.values() if not isinstance(value, yaml.MappingNode) and value.value]
    return bool(other) and "plugin" not in values


def _is_read(path: Path) -> bool:
    return not path.name.endswith("~") and (path.is_dir() or path.suffix in READ)


def _check_name(kind: str, path: Path, names: list[str]) -> Iterator[Finding]:
    name = path.stem if path.is_file() else path.name
    if name in names:
        return
    # Names of hosts differ by their number only.
    alike = difflib.get_close_matches(name, names, 1, ALIKE) if kind == "group_vars" else []
    words = {"what": kind.partition("_")[0], "name": name, "there": ", ".join(names)}
    case = "misspelt" if alike else "unknown"
    yield _finding(f"inventory.unread/{case}", None, key=f"{kind}/{name}", alike="".join(alike), **words)


def check_sources(sources: Iterable[str]) -> list[Finding]:
    """Return a finding for each directory of whole inventories: Ansible reads their hosts, but not their group_vars."""
    found = []
    for source in sources:
        inside = sorted(str(path.parent) for path in Path(source).glob("[!.]*/group_vars"))
        if inside:
            found.append(_finding("inventory.several", None, key=f"-i {source}", inside=", ".join(inside)))
    return found


def check_text(sources: Iterable[str], password: bool = True) -> list[Finding]:
    """Return a finding for each file that can't be read, each node id that YAML reads as octal, and each repeated key.

    Without a ``password``, an encrypted file can't be read either. Ansible itself stops at the first file.

    Ansible's message about the encoding has no line, and the loaded number is no longer what the owner wrote. With its
    own settings, Ansible only warns of a key that occurs twice.
    """
    found = []
    for path in (file for source in sources for file in _files(Path(source))):
        content = path.read_bytes()
        if b"\0" in content and not content.startswith(UTF_16):
            continue  # not text
        if content.startswith(VAULT) and not password:
            found.append(_finding("inventory.vault/missing", None, key=str(path)))
        for octal in OCTAL.finditer(content):
            text, line = octal[1].decode(), content[: octal.start(1)].count(b"\n") + 1
            number = int(text, 8)
            if number != int(text):
                found.append(
                    _finding(
                        "inventory.octal", text, key=f"{path}:{line}: gb10_node_id", number=number, meant=int(text)
                    )
                )
        try:
            text = content.decode()
            found += _unreadable(path, text)
            found += [
                _finding("inventory.twice", None, key=f"{path}:{line}: {key}", first=first)
                for key, first, line in _twice(text)
            ]
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            found.append(_finding("inventory.encoding", None, key=f"{path}:{line}", path=path))
    return found


def check_passwords(sources: Iterable[str], load: Callable[[str], object]) -> list[Finding]:
    """Return a finding for each encrypted file that ``load`` cannot open. Ansible itself names none of them."""
    found = []
    for path in (file for source in sources for file in _files(Path(source))):
        if path.read_bytes().startswith(VAULT):
            try:
                load(str(path))
            except AnsibleError:
                found.append(_finding("inventory.vault/password", None, key=str(path)))
    return found


def read_for_all(sources: Iterable[str], password: bool, load: Callable[[str], object]) -> list[Finding]:
    """Return the findings of check_text, and of check_passwords, if a file of group_vars/all has one.

    Ansible reads these files before the first task. It stops at the first that it can't read, and may not name it.
    """
    found = check_text(sources, password) + (check_passwords(sources, load) if password else [])
    return found if any(_OF_ALL.search(finding.key) for finding in found) else []


def _unreadable(path: Path, text: str) -> Iterator[Finding]:
    """Yield the first fault of a file that is not YAML; a file of hosts without an extension may be an INI file."""
    variables = bool(set(path.parts[-3:-1]) & set(KINDS))
    if path.suffix not in YAML and not variables:
        return
    with suppress(ValueError):
        # Ansible tries JSON first, which may have tabs.
        json.loads(text)
        return
    try:
        for node in yaml.compose_all(text, LOADER):
            if variables and isinstance(node, yaml.SequenceNode):
                yield _finding("inventory.mapping", None, key=f"{path}:{node.start_mark.line + 1}")
    except yaml.reader.ReaderError as error:  # it has no mark
        line = text.encode()[: error.position].count(b"\n") + 1
        yield _finding("inventory.yaml", None, key=f"{path}:{line}", problem=error.reason)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        yield _finding("inventory.yaml", None, key=f"{path}:{line}", problem=error.problem)


def _twice(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each key that a mapping has twice, with both lines; nothing for what is not YAML, which Ansible reports."""
    try:
        nodes = list(yaml.compose_all(text, LOADER))
    except yaml.YAMLError:
        return
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines and name != "<<":
                yield name, lines[name], line
            lines[name] = line
            nodes.append(value)


def _files(source: Path) -> Iterator[Path]:
    """Yield the text files of an inventory and of the variables beside it; a program may be anything."""
    if not source.exists():
        return  # a list of hosts
    directory = source if source.is_dir() else source.parent
    beside = {path for kind in KINDS for path in (directory / kind).rglob("*")}
    for path in sorted(beside | (set(source.glob("[!.]*")) if source.is_dir() else {source})):
        if path.is_file() and path.suffix in TEXT and not path.stat().st_mode & 0o111:
            yield path
