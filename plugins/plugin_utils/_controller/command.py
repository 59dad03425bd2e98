# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name the command with which a user goes on, and the run of which this process is a part."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

from ansible import context
from ansible.constants import config
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.vars.manager import VariableManager

from .data import COLLECTION

try:
    from ansible._internal._datatag import _tags as _datatags
except ImportError:
    # Not a part of Ansible's interface. Without it, findings name no file.
    ORIGIN: Any = None
else:
    ORIGIN = _datatags.Origin


def place_of(name: str, variables: Mapping[str, Any]) -> str:
    """Return ``inventory/mine/hosts.yml:12`` or ``option -e of the command``; empty if Ansible does not say.

    The name in the file tells it: a value may be a template, and true and false have no origin.
    """
    key = next((key for key in variables if key == name), None)
    origin = ORIGIN.get_tag(key) if ORIGIN and key is not None else None
    if origin is None:
        return ""
    if not origin.path:
        return "option -e of the command" if "-e" in str(origin.description) else ""
    path = Path(origin.path)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{origin.line_num}" if origin.line_num else str(shown)


def has_password() -> bool:
    """Tell whether the user gave the password of a vault."""
    given = any(context.CLIARGS.get(name) for name in ("ask_vault_pass", "vault_ids", "vault_password_files"))
    settings = ("DEFAULT_VAULT_PASSWORD_FILE", "DEFAULT_VAULT_IDENTITY_LIST", "DEFAULT_ASK_VAULT_PASS")
    return given or any(config.get_config_value(name) for name in settings)


PREFIX = "gb10.cluster."


def tags_of_run() -> set[str] | None:
    """Return the tags of all tasks that Ansible knows at start; None if a playbook is of another collection."""
    names = context.CLIARGS.get("args") or ()
    paths = [path for name in ([names] if isinstance(names, str) else names) if (path := _path(name))]
    if not paths or len(paths) < len(names):
        return None
    loader = DataLoader()  # Reading a playbook changes the directory of its loader.
    manager = VariableManager(loader, InventoryManager(loader, parse=False))
    books = [Playbook.load(str(path), manager, loader) for path in paths]
    return set().union(*(tags_of(play) for book in books for play in book.get_plays()))


def tags_of(play: Any) -> set[str]:
    """Return the tags of a play and of its tasks."""
    return {*play.tags, *_tags(play.compile())}


def _path(name: str) -> Path | None:
    own = COLLECTION / "playbooks" / f"{name.removeprefix(PREFIX)}.yml"
    return next((path for path in (Path(name), own) if path.is_file()), None)


def _tags(tasks: Iterable[Any]) -> Iterator[str]:
    """Yield the tags of tasks and of the tasks in their blocks."""
    for task in tasks:
        yield from task.tags
        for part in ("block", "rescue", "always"):
            yield from _tags(getattr(task, part, ()))


FQCN = "gb10.cluster"
# Variables of the command line whose values are names
_PLAIN = re.compile(r"(?:profile|preset|instance|transport|vf_index|sweep)=[\w.-]+")


def again(name: str) -> str:
    """Return the command that runs the playbook ``name`` of this collection like the one that runs now."""
    return command(name, context.CLIARGS)


def command(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the command for these arguments of ansible-playbook: its inventories, questions for passwords, and limit.

    Extra variables may be secret: of all but a few, the command says only that there were some.
    """
    given = [str(path) for path in arguments.get("args") or () if isinstance(path, (str, Path))]
    words = ["ansible-playbook"]
    for source in arguments.get("inventory") or ():
        words += ["-i", _source(str(source))]
    words += [flag for key, flag in (("become_ask_pass", "-K"), ("ask_vault_pass", "-J")) if arguments.get(key)]
    if limit := arguments.get("subset"):
        words += ["--limit", str(limit)]
    text = " ".join(map(shlex.quote, [*words, _playbook(name, given)]))
    return " ".join([text, *_extra(arguments.get("extra_vars") or ())])


def _extra(given: Sequence[str]) -> list[str]:
    """Return the options -e that name a group or a sweep, and a sign for all others."""
    shown = [f"-e {shlex.quote(text)}" for text in given if _PLAIN.fullmatch(text)]
    return shown if len(shown) == len(given) else [*shown, "-e …"]


def _playbook(name: str, given: Sequence[str]) -> str:
    """Return the name of another playbook as the user named the one that runs: by collection, or by path."""
    last = Path(given[-1]) if given else Path(f"{FQCN}.site")
    if last.parent.name == "playbooks" and last.suffix:
        return str(last.with_name(f"{name}.yml"))
    return f"{FQCN}.{name}"


def _source(source: str) -> str:
    """Return an inventory relative to the working directory; Ansible has made the path absolute."""
    path = Path(source)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else source


# Name the run of which this process is a part, so that others can tell whether it still exists.


@dataclass(frozen=True)
class Holder:
    """A run: its user, machine and process, and the kernel's start time of the process, as numbers are used again."""

    user: str
    host: str
    pid: int
    started: str
    run: str

    def is_same(self, other: Holder | None) -> bool:
        """Tell whether both are one process, whatever it does."""
        return other is not None and (self.host, self.pid, self.started) == (other.host, other.pid, other.started)

    def has_ended(self, mine: Holder, proc: Path = Path("/proc")) -> bool:
        """Tell whether the process no longer exists; False for one on another machine, of which nothing is known."""
        return self.host == mine.host and started(self.pid, proc) != self.started

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.pid}, {self.run}"


def started(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the kernel's start time of a process in clock ticks (proc_pid_stat(5)), empty if it does not exist."""
    try:
        return (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):  # a host or a cluster may name any process
        return ""


def this_run(what: str) -> Holder:
    """Return the run of which this process is a part: Ansible forks a process per task."""
    pid = os.getppid()
    try:
        user = getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return Holder(user, platform.node(), pid, started(pid), what)
