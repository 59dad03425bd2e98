# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start the virtual machines of each file of tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab" / "vm"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from vms import Vms


def _running(directory: Path, count: int, memory: int = 1024) -> Iterator[Vms]:
    if os.geteuid() != 0:
        pytest.fail("building the machines' disk needs root: run these tests with sudo")
    made = Vms(directory, count, memory)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vms]:
    """Return two booted, untouched machines; remove them at the end."""
    yield from _running(tmp_path_factory.mktemp("vm"), 2)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vms]:
    """Return three booted, untouched machines, each with a cable to both others; remove them at the end."""
    yield from _running(tmp_path_factory.mktemp("ring"), 3)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vms]:
    """Return one booted, untouched machine with 4 GiB and without a card; remove it at the end."""
    yield from _running(tmp_path_factory.mktemp("small"), 1, 4096)
