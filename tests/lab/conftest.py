# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the tests a lab with its own state directory and the user's cache."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from labcommand import LabCommand

_LAB = Path(__file__).resolve().parents[2] / "lab"
_SAMPLES = _LAB.parent / "tests" / "unit" / "samples"
# lab/kubernetes/build imports a file beside it.
sys.path[:0] = [str(_LAB / name) for name in (".", "hosts", "kubernetes", "../collections")] + [str(_SAMPLES)]


@pytest.fixture(scope="module")
def make_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LabCommand]]:
    """Return a function that creates a lab with the named inventories; remove all these labs at the end."""
    if os.geteuid() != 0:
        pytest.fail("the lab needs root: run these tests with sudo")
    made = []

    def make(*inventories: str) -> LabCommand:
        paths = tuple(_LAB.parent / "inventory" / name for name in inventories)
        made.append(LabCommand(tmp_path_factory.mktemp("lab") / "state", paths))
        return made[-1]

    yield make
    for lab in made:
        lab("down")
