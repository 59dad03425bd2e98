# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that turn the fabric plan into Kubernetes objects and judge checks of it; each has a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import check_results
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import attachments, check_matrix


def probe_pods(
    plan: dict[str, Any],
    nodes: dict[str, str],
    namespace: str,
    image: str,
    busy_pods: list[dict[str, Any]],
    resource_prefix: str = "",
) -> list[dict[str, Any]]:
    """Return a probe pod for every {host: node} whose VFs are free."""
    held = attachments.attached_nads(busy_pods)
    return [
        attachments.probe_pod(plan, host, namespace, node, image, resource_prefix)
        for host, node in nodes.items()
        if plan["hosts"][host]["vfs"] and not held.get(node)
    ]


def attachment_findings(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the problems with the attachments of all pods."""
    return findings.as_dicts(finding for pod in pods for finding in attachments.compare_status(pod))


def fabric_matrix(hostvars: Mapping[str, Any], hosts: list[str], variable: str) -> check_results.Verdict:
    """Return the verdict on the registered fabric_ping results of all hosts."""
    return check_matrix.ping_verdict(
        {host: (hostvars[host].get(variable) or {}).get("results") for host in hosts}, hosts
    )


def fabric_pinged(pods: list[dict[str, Any]], hostvars: Mapping[str, Any], hosts: list[str], variable: str) -> bool:
    """Return whether the registered fabric_ping results of all hosts show a ping from inside each of these pods."""
    found = {host: (hostvars[host].get(variable) or {}).get("results") for host in hosts}
    own = [check_matrix.own_results(host, results) or [] for host, results in found.items()]
    return attachments.all_pinged(pods, [one for results in own for one in results])


def fabric_bandwidth_matrix(
    hostvars: Mapping[str, Any], hosts: list[str], variable: str, plan: Mapping[str, Any]
) -> check_results.Verdict:
    """Return the verdict on the fabric_bandwidth results that every client collected in a list."""
    collected = [one for host in hosts for one in hostvars[host].get(variable) or []]
    return check_matrix.bandwidth_verdict(collected, hosts, plan)


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {
            "fabric_bandwidth_matrix": fabric_bandwidth_matrix,
            "fabric_matrix": fabric_matrix,
            "fabric_pinged": fabric_pinged,
            "fabric_rounds": check_matrix.meetings,
            "nads": attachments.nads,
            "stale_nads": attachments.stale_nads,
            "probe_pods": probe_pods,
            "attachment_findings": attachment_findings,
            "sriov_offers": attachments.sriov_offers,
            "sriov_resources": attachments.sriov_resources,
        }
