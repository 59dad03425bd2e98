# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that schedule and judge the checks between hosts; each is documented in its YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import matrix


def fabric_matrix(hostvars: Mapping[str, Any], hosts: list[str], variable: str) -> dict[str, Any]:
    """Judge the registered fabric_ping results of all hosts."""
    results = {host: (hostvars[host].get(variable) or {}).get("results") for host in hosts}
    return matrix.summarize(results, hosts)


def fabric_bandwidth_matrix(hostvars: Mapping[str, Any], hosts: list[str], variable: str) -> dict[str, Any]:
    """Judge the fabric_bandwidth results that every client collected in a list."""
    results = [result for host in hosts for result in hostvars[host].get(variable) or []]
    return matrix.summarize_bandwidth(results, hosts)


def fabric_rounds(hosts: list[str]) -> list[dict[str, dict[str, str]]]:
    """Return rounds of ``{host: {partner, side}}`` in which every host has one partner."""
    return [
        {
            name: {"partner": partner, "side": side}
            for one, two in pairs
            for name, partner, side in ((one, two, "server"), (two, one, "client"))
        }
        for pairs in matrix.rounds(hosts)
    ]


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters."""
        return {
            "fabric_bandwidth_matrix": fabric_bandwidth_matrix,
            "fabric_matrix": fabric_matrix,
            "fabric_rounds": fabric_rounds,
        }
