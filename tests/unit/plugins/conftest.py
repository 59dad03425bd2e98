# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures that the tests of several plugins use."""

import os
import time
from collections.abc import Iterator

import pytest
from model_transfers import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Return a running hub with one model."""
    with Hub() as running:
        yield running
        running.shutdown()


@pytest.fixture
def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make time pass only in ``time.sleep``."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Let files get the modes that stored texts have, whoever runs the tests."""
    before = os.umask(0o022)
    yield
    os.umask(before)
