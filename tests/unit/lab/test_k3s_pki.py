# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the certificates of the simulated K3s with the machine's openssl."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lab" / "k3s"))
pki = importlib.import_module("standin.pki")


def test_a_certificate_is_kept_until_it_would_differ_or_does_not_fit_its_key(tmp_path: Path) -> None:
    ca = pki.authority(tmp_path / "ca", "one")

    def made(subject: str = "/CN=a", *names: str, by: Any = ca) -> Any:
        return pki.certificate(tmp_path / "leaf", by, subject, names).cert.read_bytes()

    first = made()
    assert made() == first
    other_name = made("/CN=a", "b.lab")
    other_ca = made("/CN=a", "b.lab", by=pki.authority(tmp_path / "ca2", "one"))
    assert len({first, other_name, other_ca, made("/CN=c")}) == 4
    kept = made("/CN=c")
    pair = pki.Pair(tmp_path / "leaf")
    for wrong in (ca.key.read_bytes(), b""):
        pair.key.write_bytes(wrong)
        again = made("/CN=c")
        assert again != kept
        assert made("/CN=c") == again
