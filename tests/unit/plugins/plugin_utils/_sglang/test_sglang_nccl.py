# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which NCCL a release of SGLang is known to come with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.nccl import oldest_nccl


@pytest.mark.parametrize(
    ("torch", "carries", "nccl"),
    [
        ("2.9.1", (), "2.27.5"),
        ("2.11.0", ("sglang#24436",), "2.28.9"),
        ("2.12.1", (), "2.28.9"),
        ("2.14.1", (), "2.30.7"),
        ("2.15.0", (), "2.30.7"),
        ("2.11.0", ("nccl>=2.31.2",), "2.31.2"),
        ("2.8.0", (), "2.0"),
        (None, (), "2.0"),
    ],
)
def test_the_oldest_nccl_of_an_image(torch: str | None, carries: tuple[str, ...], nccl: str) -> None:
    requires = {} if torch is None else {"torch": torch}
    assert oldest_nccl(SimpleNamespace(requires=requires), carries) == nccl  # type: ignore[arg-type]
