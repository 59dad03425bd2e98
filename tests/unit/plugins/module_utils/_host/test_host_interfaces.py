# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import (
    NETDEV_MAX,
    is_interface_name,
    is_vf_name,
    is_vlan_name,
)


@pytest.mark.parametrize(
    ("name", "valid", "vf", "vlan"),
    [
        ("enP2p1s0f0np0", True, False, False),
        ("enp1s0f0v12", True, True, False),
        ("enp1s0f0np0.10", True, False, True),
        ("vlan100", True, False, True),
        ("a" * NETDEV_MAX, True, False, False),
        ("a" * (NETDEV_MAX + 1), False, False, False),
        ("1eth", False, False, False),
        ("a b", False, False, False),
        ("", False, False, False),
    ],
)
def test_the_parts_of_an_interface_name(name: str, valid: bool, vf: bool, vlan: bool) -> None:
    assert (is_interface_name(name), is_vf_name(name), is_vlan_name(name)) == (valid, vf, vlan)
