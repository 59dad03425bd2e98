# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe a group as text for ``--diff``: what each rank runs, one setting per line. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, RANK, REVISION, number

from .._fabric.attachments import read_networks
from .model import flags
from .pods import NETWORKS


def _rank(template: Mapping[str, Any], revision: str) -> Iterator[str]:
    container, *beside = template["spec"]["containers"]
    yield f"rank {(template['metadata'].get('labels') or {}).get(RANK)}:"
    yield f"  node: {(template['spec'].get('nodeSelector') or {}).get('kubernetes.io/hostname', '')}"
    yield f"  image: {container['image']}"
    yield "  command:"
    yield from (f"    {line}" for line in flags(container["command"]))
    yield "  env:"
    for variable in container.get("env") or []:
        source = "from a Secret" if "valueFrom" in variable else variable.get("value", "")
        yield f"    {variable['name']}={source}"
    yield "  networks:"
    for network in read_networks((template["metadata"].get("annotations") or {}).get(NETWORKS)):
        addresses = network.get("ips")
        shown = ", ".join(map(str, addresses)) if isinstance(addresses, list) else ""
        yield f"    {network.get('interface')}: {network.get('name')} {shown}"
    limits = container.get("resources", {}).get("limits") or {}
    # The API returns quantities as text.
    yield "  limits: " + ", ".join(f"{name}={value}" for name, value in sorted(limits.items()))
    for other in beside:
        yield f"  {other['name']}:"
        yield from (f"    {line}" for line in flags(other["command"]))
    yield f"  revision: {revision}"


def _revisions(objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get(REVISION, "")
        for item in objects
        if item["kind"] == "StatefulSet" and not _waits(item)
    }


def _waits(item: Mapping[str, Any]) -> bool:
    """Tell whether a workload is the fallback's: it has no pods that would have to be replaced."""
    return FALLBACK in (item["metadata"].get("labels") or {})


def outdated(live: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a running group differs from the wanted one in its workloads or its revision."""
    running = _revisions(live)
    return bool(running) and running != _revisions(wanted)


def describe(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the ranks among ``objects`` as text, rank 0 first; an empty string when there are none."""
    found = [
        (item["spec"]["template"], (item["metadata"].get("annotations") or {}).get(REVISION, ""))
        for item in objects
        if item["kind"] == "StatefulSet" and RANK in (item["metadata"].get("labels") or {}) and not _waits(item)
    ]
    found.sort(key=lambda rank: number((rank[0]["metadata"].get("labels") or {}).get(RANK)) or 0)
    return "".join(f"{line}\n" for template, revision in found for line in _rank(template, revision))
