# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import service


def test_versions() -> None:
    assert service.parse_k3s_version("1.36.10").release == (1, 36, 10)
    for text in ("latest", "v1.36"):
        with pytest.raises(ValueError, match=f"'{text}'.*write it like v1.36.4"):
            service.parse_k3s_version(text)


@pytest.mark.parametrize(
    ("state", "changed", "stale"),
    [
        ("active", 1700000001.0, True),
        ("active", 1700000000.9, False),
        ("activating", 1700000005.0, True),
        ("inactive", 1700000005.0, False),
        ("failed", 1700000005.0, False),
    ],
)
def test_a_service_older_than_its_files(state: str, changed: float, stale: bool) -> None:
    properties = service.parse_properties(f"ActiveState={state}\n\nExecMainStartTimestamp=@1700000000\n")
    assert service.is_stale(properties, [1.0, changed]) is stale


def test_a_property_may_have_an_equals_sign() -> None:
    assert service.parse_properties("ExecStart=k3s --a=b\n") == {"ExecStart": "k3s --a=b"}


def test_a_service_that_never_started_is_not_stale() -> None:
    assert not service.is_stale({"ActiveState": "activating", "ExecMainStartTimestamp": ""}, [5.0])
