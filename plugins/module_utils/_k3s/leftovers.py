# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what K3s leaves behind when it stops: containers, mounts, links, rules."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

MOUNT_ROOTS = ("/run/k3s", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/run/netns/cni-")
# Interfaces that K3s's CNI plugins create; a host's own interfaces never have these names.
LINKS = ("cni0", "flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "kube-ipvs0", "nodelocaldns")
_RULE_OF_OURS = re.compile(r"KUBE-|CNI-|FLANNEL|cali-", re.IGNORECASE)
_OCTAL = re.compile(r"\\(\d{3})")


@dataclass(frozen=True)
class StrayLink:
    """A host interface that is still in a pod's namespace; ``name`` is its name there."""

    netns: str
    name: str
    host_name: str


def mounts_below(table: str, roots: tuple[str, ...]) -> list[str]:
    """Return the mount points of /proc/self/mounts below the roots, deepest first so that they can be unmounted."""
    points = []
    for line in table.splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), words[1])
        if any(point == root or point.startswith(root if root.endswith("-") else root + "/") for root in roots):
            points.append(point)
    return sorted(set(points), key=lambda point: (-point.count("/"), point))


def container_processes(commands: Mapping[int, str], parents: Mapping[int, int], data_dir: str) -> list[int]:
    """Return the containerd shims of K3s and all their descendants, shims first.

    ``commands`` maps a process to its command line with spaces, ``parents`` maps it to its parent process. A shim
    belongs to K3s if its command line contains K3s's socket or data directory.
    """
    shims = [
        pid
        for pid, command in sorted(commands.items())
        if "containerd-shim" in command.split(" ")[0] and ("/run/k3s/" in command or data_dir + "/" in command)
    ]
    found = list(shims)
    for pid in found:
        found.extend(child for child, parent in sorted(parents.items()) if parent == pid and child not in found)
    return found


def stray_links(netns: str, links: str) -> list[StrayLink]:
    """Return host interfaces in a pod's namespace from the text of ``ip -json -details link``.

    The host-device plugin stores the interface's host name in its alias before it renames the interface; no other
    interface in a pod has an alias. A killed pod gets no CNI DEL, so its VF must be returned to the host by this alias.
    """
    return [
        StrayLink(netns, link["ifname"], link["ifalias"])
        for link in json.loads(links or "[]")
        if link.get("ifalias") and link["ifname"] != "lo"
    ]


def pod_routes(routes: str, cidr: str) -> list[str]:
    """Return the destinations inside the pods' network from the text of ``ip -json route``; host-gw creates these.

    ``cidr`` may also have an IPv6 network, separated by a comma.
    """
    networks = [ipaddress.IPv4Network(each.strip()) for each in cidr.split(",") if ":" not in each]
    destinations = [route["dst"] for route in json.loads(routes or "[]")]
    return [
        destination
        for destination in destinations
        if destination != "default"
        and ":" not in destination
        and any(ipaddress.IPv4Network(destination, strict=False).subnet_of(network) for network in networks)
    ]


def filtered_rules(saved: str) -> str:
    """Return the text of ``iptables-save`` without the chains and rules of kube-proxy, CNI and flannel."""
    return "".join(line + "\n" for line in saved.splitlines() if not _RULE_OF_OURS.search(line))
