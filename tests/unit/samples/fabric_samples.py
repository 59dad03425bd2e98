# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A valid fabric, which tests modify."""

from typing import Any

PFS = {"enp1s0f0np0": 4, "enp1s0f1np1": 4, "enP2p1s0f0np0": 4, "enP2p1s0f1np1": 4}

Variables = dict[str, dict[str, Any]]


def fabric(count: int = 4, **group: Any) -> Variables:
    """Return the variables of ``count`` DGX Sparks on a switch, with two rails."""
    return {
        f"spark{number}": {
            "gb10_node_id": number,
            "gb10_fabric_rails": [
                {"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/16"},
                {"name": "rail1", "pf": "enP2p1s0f0np0", "network": "10.101.0.0/16"},
            ],
            "gb10_management_interface": "enP7s7",
            "gb10_management_networks": ["192.168.10.0/24"],
            "gb10_pf_totalvfs": dict(PFS),
            "gb10_pf_max_mtu": dict.fromkeys(PFS, 9978),
            "ansible_host": f"192.168.10.{10 + number}",
            **group,
        }
        for number in range(1, count + 1)
    }


def ring() -> Variables:
    """Return three Sparks, cage 0 of each cabled to cage 1 of the next, both halves."""
    cables = {"12": ("spark1", "spark2"), "23": ("spark2", "spark3"), "31": ("spark3", "spark1")}
    rails = [
        {"name": f"ring{cable}{half}", "pf": pf, "network": f"10.{int(cable) + step}.0.0/16", "hosts": list(ends)}
        for cable, ends in cables.items()
        for half, pf, step in (("a", "enp1s0f0np0", 100), ("b", "enP2p1s0f0np0", 150))
    ]
    variables = fabric(3, gb10_fabric_topology="ring", gb10_fabric_rails=rails)
    for cable, (_near, far) in cables.items():
        variables[far]["gb10_fabric_pfs"] = {f"ring{cable}a": "enp1s0f1np1", f"ring{cable}b": "enP2p1s0f1np1"}
    return variables
