# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that turn the fabric plan into Kubernetes objects; each is documented in its YAML file."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import attachments


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


def attachment_findings(pods: list[dict[str, Any]]) -> str:
    """Return the problems with the attachments of all pods, one line each; an empty string if there are none."""
    return findings.format_findings(finding for pod in pods for finding in attachments.compare_status(pod))


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {
            "nads": attachments.nads,
            "stale_nads": attachments.stale_nads,
            "probe_pods": probe_pods,
            "attachment_findings": attachment_findings,
            "sriov_offers": attachments.sriov_offers,
            "sriov_resources": attachments.sriov_resources,
        }
