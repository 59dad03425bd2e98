# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the tests of the programs in pods a rank and an API server."""

import ssl
import urllib.request
from pathlib import Path

import pytest
from gate_rank import Rank, Server


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return the API server of all clients whose account is in ``tmp_path``."""
    made = Server()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setattr(ssl, "create_default_context", made.trusted.update)
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_handlers: made)
    (tmp_path / "token").write_text("first\n")
    return made
