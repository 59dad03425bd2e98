# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make `ansible_collections.gb10.cluster` importable in the same way as Ansible."""

import gc
import threading
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ansible_plays
import pytest
import yaml
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]

if AnsibleCollectionConfig.collection_finder is None:
    _AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()

# With libyaml, as the collection reads its own files. Without it, a tenth of the collecting is YAML (profiled).
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
yaml.safe_load, yaml.safe_load_all = partial(yaml.load, Loader=LOADER), partial(yaml.load_all, Loader=LOADER)

# The time of an example depends on the load of the machine, so examples have no deadline. The weekly run of the forge
# asks for the full profile with --hypothesis-profile.
settings.register_profile("quick", deadline=None, max_examples=30)
settings.register_profile("full", deadline=None, max_examples=300)
settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: a fifth of the time, because each time it looks at all tests so far."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test whose threads go on after it: they meet what the next test has patched, and that one fails."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(10)
    assert not [thread.name for thread in left if thread.is_alive()]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give the process that prints the summary the starts of this worker."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["starts"] = dict(ansible_plays.STARTS)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ansible_plays.STARTS.update(getattr(node, "workeroutput", {}).get("starts", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    forked, programs = (ansible_plays.STARTS[kind] for kind in ("forked", "program"))
    if forked or programs:
        terminalreporter.write_line(f"Ansible was started {forked + programs} times, {forked} of them by a fork.")


def pytest_unconfigure() -> None:
    ansible_plays.SERVER.stop()
