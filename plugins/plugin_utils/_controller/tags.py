# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the tags that the playbooks of this run have. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.vars.manager import VariableManager

from .._paths import COLLECTION

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
