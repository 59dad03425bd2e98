# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name the command with which a user goes on, as the user typed the one that runs. Private to the collection."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import context

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
