# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that schedule the checks between hosts and judge their results; each is documented in its YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import results
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import check_matrix


def fabric_matrix(hostvars: Mapping[str, Any], hosts: list[str], variable: str) -> results.Verdict:
    """Return the verdict on the registered fabric_ping results of all hosts."""
    return check_matrix.ping_verdict(
        {host: (hostvars[host].get(variable) or {}).get("results") for host in hosts}, hosts
    )


def fabric_bandwidth_matrix(
    hostvars: Mapping[str, Any], hosts: list[str], variable: str, plan: Mapping[str, Any]
) -> results.Verdict:
    """Return the verdict on the fabric_bandwidth results that every client collected in a list."""
    collected = [one for host in hosts for one in hostvars[host].get(variable) or []]
    return check_matrix.bandwidth_verdict(collected, hosts, plan)


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters."""
        return {
            "fabric_bandwidth_matrix": fabric_bandwidth_matrix,
            "fabric_matrix": fabric_matrix,
            "fabric_rounds": check_matrix.meetings,
        }
