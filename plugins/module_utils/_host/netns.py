# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the pod or process whose network namespace holds an interface of this host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import system

NETNS_DIRECTORIES = (Path("/run/netns"), Path("/var/run/docker/netns"))
# libcni stores the arguments (K8S_POD_NAME) and the result of every ADD here until the DEL. containerd can't set the
# directory (containerd#9825), so the first is also that of kubeadm, RKE2, k0s and MicroK8s; CRI-O uses it too.
CNI_CACHES = (Path("/var/lib/cni/results"), Path("/var/lib/rancher/k3s/agent/cni/results"))


@dataclass(frozen=True)
class Holder:
    """A network namespace other than the host's, with its interfaces."""

    path: Path
    name: str
    pids: tuple[int, ...] = ()
    pod: str = ""
    links: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False, compare=False)
    pod_uid: str = ""

    def __str__(self) -> str:
        if self.pod:
            return f"pod {self.pod} (network namespace {self.name})"
        if self.pids:
            return f"network namespace {self.name} (process {self.pids[0]})"
        return f"network namespace {self.name} (no process in it: left behind by a deleted pod)"


def holders(
    proc_root: Path = Path("/proc"),
    netns_directories: Iterable[Path] = NETNS_DIRECTORIES,
    cni_caches: Iterable[Path] = CNI_CACHES,
) -> list[Holder]:
    """Return all other network namespaces of this host that can be entered, with their interfaces."""
    own = _inode(proc_root / "self/ns/net")
    spaces: dict[int, tuple[Path, list[int]]] = {}
    for directory in netns_directories:
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            inode = _inode(path)
            if inode and inode != own:
                spaces.setdefault(inode, (path, []))
    for pid in sorted(int(entry.name) for entry in proc_root.iterdir() if entry.name.isdigit()):
        path = proc_root / str(pid) / "ns/net"
        inode = _inode(path)
        if inode and inode != own:
            spaces.setdefault(inode, (path, []))[1].append(pid)
    pods = _pods_by_namespace(cni_caches)
    found = []
    for path, pids in spaces.values():
        try:
            inside = system.links(path)
        except system.HostError:
            continue  # the process ended in the meantime, and so did its namespace
        pod, uid = pods.get(path.name, ("", ""))
        name = path.name if not pids or path.name != "net" else f"of process {pids[0]}"
        found.append(Holder(path, name, tuple(pids), pod, inside, uid))
    return found


def holder_of(netdev: str, mac: str, pci: str, found: Iterable[Holder]) -> Holder | None:
    """Return the holder of an interface, found by PCI address, by the alias that host-device sets, or by MAC."""
    for holder in found:
        for link in holder.links.values():
            if (
                (pci and link.get("parentdev") == pci)
                or (netdev and link.get("ifalias") == netdev)
                or (mac and link.get("address", "").lower() == mac.lower())
            ):
                return holder
    return None


def _inode(path: Path) -> int | None:
    """Return the inode that identifies a namespace; None if it does not exist.

    Raise HostError if the user has no permission. Otherwise an interface inside a pod would be reported as missing.
    """
    try:
        return path.stat().st_ino
    except PermissionError as error:
        if system.root_remedy():
            raise system.HostError(system.explain(error, path)) from error
        return None
    except OSError:
        return None


def _pods_by_namespace(caches: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Return ``{file name of a namespace (cni-…): (namespace/pod, UID of the pod)}`` from libcni's cache."""
    pods: dict[str, tuple[str, str]] = {}
    for cache in caches:
        for path in sorted(cache.iterdir()) if cache.is_dir() else []:
            try:
                entry = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            arguments = dict(entry.get("cniArgs") or [])
            pod = arguments.get("K8S_POD_NAME")
            if not pod:
                continue
            owner = f"{arguments.get('K8S_POD_NAMESPACE', 'default')}/{pod}"
            interfaces = (entry.get("result") or {}).get("interfaces") or []
            # The result of Calico names no namespace; the entry itself does (cachedInfo in libcni/api.go).
            for space in (entry.get("netns"), *(interface.get("sandbox") for interface in interfaces)):
                if space:
                    pods[Path(space).name] = owner, arguments.get("K8S_POD_UID", "")
    return pods
