# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's facts for the checklist and preflight without changing anything.

Tests and the lab can change the root of every path, and one function runs every command. A value that cannot be read
is None; the rules treat it as unknown and never as good.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._sriov.physical_functions import read_pfs, read_text
from . import cluster, devices, kernel_log, network, software
from . import memory as holders
from .commands import Run
from .model import Area, Disk, Facts, Kubernetes, System, User, Written

# Services that start the containers: K3s, kubeadm, CRI-O and OpenShift, RKE2, k0s, MicroK8s
RUNTIME_UNITS = (
    *("k3s.service", "k3s-agent.service", "containerd.service", "docker.service", "crio.service"),
    *("rke2-server.service", "rke2-agent.service", "k0scontroller.service", "k0sworker.service"),
    "snap.microk8s.daemon-containerd.service",
)
# The images of Kubernetes in K3s's containerd, and in that of another distribution
IMAGES = ("--namespace", "k8s.io", "images", "list", "--quiet")
WRITTEN = ("etc", "usr/local", "var/lib")  # directories that the roles write to
NETWORK_UNITS = ("NetworkManager.service", "systemd-networkd.service")
K3S_UNITS = ("k3s.service", "k3s-agent.service")
OUR_UNIT = "installed by gb10.cluster"  # part of the description in the unit that the role writes
# Paths that only other Kubernetes distributions create.
OTHER_DISTRIBUTIONS = {
    "etc/kubernetes/kubelet.conf": "kubeadm",
    "var/lib/rancher/rke2": "RKE2",
    "var/snap/microk8s": "MicroK8s",
    "etc/rke2": "RKE2",
    "var/lib/k0s": "k0s",
}


@dataclass(frozen=True)
class Roots:
    """Root directories of the kernel's and the system's trees."""

    sysfs: str = "/sys"
    proc: str = "/proc"
    etc: str = "/etc"
    dev: str = "/dev"
    netns: str = "/run/netns"
    cgroup: str = "/sys/fs/cgroup"
    top: str = "/"


def read_host(
    roots: Roots,
    paths: Iterable[str],
    run: Run,
    controller_time: float | None = None,
    k3s_binary: str = "/usr/local/bin/k3s",
    models_dir: str = "",
    cache_dir: str = "",
) -> Facts:
    """Return the facts of a host; ``paths`` are the directories whose free space is read, ``models_dir`` is one.

    ``cache_dir`` has the directories of compiled kernels, in which servers keep what their loads took.

    ``controller_time`` (seconds since 1970, just before this call) serves to compute the offset of the host's clock.
    """
    clock_offset = None if controller_time is None else round(time.time() - controller_time, 1)
    sysfs, proc, etc, top = Path(roots.sysfs), Path(roots.proc), Path(roots.etc), Path(roots.top)
    links = run(["ip", "-d", "-j", "address", "show"]).output
    pfs, addresses = read_pfs(roots.sysfs, links), network.addresses_of(links)
    masters = network.masters_of(links)
    memory = _memory(proc)
    return {
        "user": _user(),
        "os": _os_release(etc),
        "arch": platform.machine(),
        "kernel": read_text(proc / "sys/kernel/osrelease"),
        "boot_id": read_text(proc / "sys/kernel/random/boot_id"),
        "command_line": read_text(proc / "cmdline"),
        "memory_kib": memory.get("MemTotal"),
        "cma_kib": memory.get("CmaTotal"),
        "cma_free_kib": memory.get("CmaFree"),
        "swap": _swap(proc),
        "memory_holders": holders.read_holders(proc, run),
        "kernel_log": kernel_log.read_kernel_log(run),
        "cgroup_version": _cgroup_version(Path(roots.cgroup)),
        "time_synchronized": _yes_no(run(["timedatectl", "show", "--property=NTPSynchronized", "--value"]).output),
        "clock_offset_s": clock_offset,
        "disks": [_disk(path) for path in paths],
        "images": [name for ctr in ([k3s_binary, "ctr"], ["ctr"]) for name in run([*ctr, *IMAGES]).output.split()],
        "staged": _staged(models_dir),
        "loads": holders.read_loads(cache_dir),
        "written": {f"/{path}": _written(top / path) for path in WRITTEN},
        "iommu": any((sysfs / "class/iommu").glob("*")),
        "runtime_memlock": _memlocks(run),
        "kubernetes": _kubernetes(etc, top, k3s_binary, run),
        "dgx_os": software.read_dgx_os(etc),
        "bios": read_text(sysfs / "class/dmi/id/bios_version"),
        "modules": software.read_modules(proc),
        "packages": software.read_packages(run),
        "gpu_driver": devices.read_gpu_driver(proc),
        "gpu_module": devices.read_gpu_module(proc),
        "gpu_runtime": devices.read_gpu_runtime(top),
        "gpus": devices.read_gpus(run),
        "rdma": devices.read_rdma(sysfs, Path(roots.dev)),
        "pfs": devices.read_ports(sysfs, pfs, addresses, masters),
        "interfaces": network.read_interfaces(proc),
        "addresses": {name: [each["address"].partition("/")[0] for each in found] for name, found in addresses.items()},
        "wifi": sorted(path.parent.name for path in (sysfs / "class/net").glob("*/wireless")),
        "default_routes": network.read_default_routes(proc),
        "routes": network.read_routes(run),
        "nameservers": network.read_nameservers(etc, top),
        "listeners": network.read_listeners(proc),
        "orphan_namespaces": network.read_orphans(proc, Path(roots.netns), run),
        "network_services": _units(run, NETWORK_UNITS, "LoadState,ActiveState"),
        "netplan": network.read_netplan(etc, [pf.name for pf in pfs], run),
        "firewall": network.read_firewall(run),
    }


def _user() -> User:
    """Return the user that reads the host: the effective user, and the login name if sudo was used."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return {"uid": uid, "name": name, "sudo_from": os.environ.get("SUDO_USER")}


def _swap(proc: Path) -> list[Area] | None:
    text = read_text(proc / "swaps")
    rows = [line.split() for line in (text or "").splitlines()[1:]]
    areas: list[Area] = [
        {"name": row[0], "kind": row[1], "kib": int(row[2])} for row in rows if len(row) > 2 and row[2].isdigit()
    ]
    return None if text is None else areas


def _kubernetes(etc: Path, top: Path, binary: str, run: Run) -> Kubernetes:
    """Return the installed K3s, whether the role wrote its units, and any other distribution that left files.

    ``kubeconfig`` tells whether a server was started, because K3s then writes this file.
    """
    units = {name: read_text(etc / "systemd/system" / name) for name in K3S_UNITS}
    version = re.match(r"k3s version (v\S+)", run([binary, "--version"]).output)
    return {
        "units": {name: OUR_UNIT in text for name, text in units.items() if text},
        "version": version[1] if version else "",
        "others": sorted({name for path, name in OTHER_DISTRIBUTIONS.items() if (top / path).exists()}),
        "settings": cluster.read_settings(etc, top),
        "kubeconfig": (etc / cluster.KUBECONFIG).exists(),
    }


def _os_release(etc: Path) -> System:
    pairs = (line.partition("=") for line in (read_text(etc / "os-release") or "").splitlines())
    values = {key: value.strip('"') for key, _equals, value in pairs if value}
    return {"id": values.get("ID", ""), "version": values.get("VERSION_ID", ""), "name": values.get("PRETTY_NAME", "")}


def _memory(proc: Path) -> dict[str, int]:
    lines = (line.split() for line in (read_text(proc / "meminfo") or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _cgroup_version(root: Path) -> int | None:
    if not root.is_dir():
        return None
    # only the root of the unified hierarchy has this file (cgroups(7))
    return 2 if (root / "cgroup.controllers").exists() else 1


def _yes_no(text: str) -> bool | None:
    return {"yes": True, "no": False}.get(text.strip())


def _disk(path: str) -> Disk:
    """Return size and free space of the file system that contains ``path`` or will contain it."""
    try:
        place = _existing(Path(path))
        usage, device = shutil.disk_usage(place), place.stat().st_dev
    except OSError:  # a stale mount, for example of NFS
        return {"path": path, "device": None, "total_gib": None, "free_gib": None}
    total, free = (round(size / 2**30, 1) for size in (usage.total, usage.free))
    return {"path": path, "device": device, "total_gib": total, "free_gib": free}


def _staged(models_dir: str) -> dict[str, float]:
    """Return the GiB of the files in each directory of the models, with those that are not whole yet."""
    found = {}
    try:
        for directory in sorted(Path(models_dir).glob("*")) if models_dir else ():
            sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
            found[directory.name] = round(sum(sizes) / 2**30, 2)
    except OSError:  # the disk has its own finding
        return {}
    return found


def _existing(path: Path) -> Path:
    """Return the path or the nearest directory above it that exists."""
    return next(parent for parent in (path, *path.parents) if os.access(parent, os.F_OK))


def _written(path: Path) -> Written:
    """Return whether the file system of a directory can be written, and its free space."""
    try:
        state = os.statvfs(_existing(path))
    except OSError:
        return {"read_only": None, "free_mib": None}
    return {"read_only": bool(state.f_flag & os.ST_RDONLY), "free_mib": state.f_bavail * state.f_frsize >> 20}


def _units(run: Run, units: Sequence[str], properties: str) -> dict[str, dict[str, str]] | None:
    """Return properties of units; systemctl answers in their order, with an empty line between two units.

    None means that systemd did not answer: it is not installed, or it is not process 1.
    """
    answers = run(["systemctl", "show", f"--property={properties}", *units]).output.split("\n\n")
    found = [dict(line.split("=", 1) for line in answer.splitlines() if "=" in line) for answer in answers]
    return dict(zip(units, found, strict=False)) if any(found) else None


def _memlocks(run: Run) -> dict[str, int | None] | None:
    """Return ``{unit: memlock limit in bytes, None for no limit}`` of runtimes that run now or start at boot."""
    limits: dict[str, int | None] = {}
    units = _units(run, RUNTIME_UNITS, "ActiveState,UnitFileState,LimitMEMLOCK")
    for unit, values in (units or {}).items():
        if values.get("ActiveState") == "active" or values.get("UnitFileState") == "enabled":
            limit = values.get("LimitMEMLOCK", "")
            limits[unit] = int(limit) if limit.isdigit() else None
    return None if units is None else limits
