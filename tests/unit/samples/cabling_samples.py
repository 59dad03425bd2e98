# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sample values of the fact gb10_cabling: the neighbours that each port of a host sees."""

from typing import Any

NAMES = {(0, 0): "enp1s0f0np0", (0, 1): "enP2p1s0f0np0", (1, 0): "enp1s0f1np1", (1, 1): "enP2p1s0f1np1"}
End = tuple[int, int, int]  # host, cage, half


def mac(end: End) -> str:
    return f"48:b0:2d:00:{end[0]:02x}:{end[1]}{end[2]}"


def facts(hosts: int, *links: tuple[End, ...], **changes: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the facts of hosts whose ports are joined by ``links``; ``changes`` are those of spark1's first port."""
    seen = {end: [mac(other) for other in link if other != end] for link in links for end in link}
    found = {
        f"spark{host}": [
            {
                "name": name,
                "mac": mac((host, *place)),
                "carrier": (host, *place) in seen,
                "neighbours": seen.get((host, *place), []),
                "speed_mbps": 200000 if (host, *place) in seen else -1,
                "mtu": 9000,
                "mtu_passes": 9000 if (host, *place) in seen else None,
                "pcie_width": 4,
                "pcie_max_width": 4,
            }
            for place, name in NAMES.items()
        ]
        for host in range(1, hosts + 1)
    }
    found["spark1"][0].update(changes)
    return found


def cable(one: tuple[int, int], two: tuple[int, int], crossed: bool = False) -> list[tuple[End, ...]]:
    return [((*one, half), (*two, 1 - half if crossed else half)) for half in (0, 1)]


def ring(count: int) -> list[tuple[End, ...]]:
    return [link for host in range(1, count + 1) for link in cable((host, 0), (host % count + 1, 1))]
