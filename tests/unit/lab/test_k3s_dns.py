# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the answers of the simulated CoreDNS."""

from __future__ import annotations

import importlib
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lab" / "k3s"))
dns = importlib.import_module("standin.dns")

A, AAAA = 1, 28


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def services(name: str, space: str) -> list[str] | None:
    if name == "broken":
        raise OSError("the API does not answer")
    return ["10.42.0.5", "10.42.1.6"] if (name, space) == ("gemma-ranks", "gb10-serving") else None


@pytest.mark.parametrize(
    ("name", "kind", "status", "end"),
    [
        ("gemma-ranks.gb10-serving.svc.cluster.local", A, 0, [bytes([10, 42, 0, 5]), bytes([10, 42, 1, 6])]),
        ("gemma-ranks.gb10-serving.svc.cluster.local", AAAA, 0, []),
        ("gemma-ranks.other.svc.cluster.local", A, 3, []),
        ("example.org", A, 3, []),
        ("broken.gb10-serving.svc.cluster.local", A, 2, []),
    ],
)
def test_only_services_of_the_cluster_have_addresses(name: str, kind: int, status: int, end: list[Any]) -> None:
    asked = query(name, kind)
    told = dns.answer(asked, services)
    number, flags, _questions, answers = struct.unpack("!HHHH", told[:8])
    assert (number, flags & 0x800F, answers) == (7, 0x8000 | status, len(end))
    assert told[12 : len(asked)] == asked[12:]
    assert [told[len(asked) + 16 * n + 12 : len(asked) + 16 * (n + 1)] for n in range(answers)] == end
