# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's facts for the checklist and preflight without changing anything.

Tests and the lab can change the root of every path, and one function runs every command. A value that cannot be read
is None; the rules treat it as unknown and never as good.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._fabric.physical_functions import read_pfs, read_text
from . import devices
from .commands import Run
from .model import Area, Disk, Facts, Holder, KernelMessage, Kubernetes, System, Taken, User, Written

# Read the settings that K3s was started with, and that hold as long as the cluster exists.

# With the values that K3s uses if config.yaml does not have them (docs.k3s.io/cli/server)
DEFAULTS = {
    "data-dir": "/var/lib/rancher/k3s",
    "cluster-cidr": "10.42.0.0/16",
    "service-cidr": "10.43.0.0/16",
    "cluster-dns": "",
    "secrets-encryption": "false",
    "node-ip": "",
}
# Files below data-dir that K3s writes when it starts
STARTED = ("server/token", "agent/kubelet.kubeconfig")
CONFIG, KUBECONFIG = "rancher/k3s/config.yaml", "rancher/k3s/k3s.yaml"

# One value, or a list
_SETTING = re.compile(r"^([a-z-]+):(?: +(['\"]?)(.+)\2|((?:\n *- .+)+))$", re.MULTILINE)


def read_settings(etc: Path, top: Path) -> dict[str, str]:
    """Return the settings in config.yaml that a started K3s uses; empty if K3s was never started with this file.

    A server's address holds only for a member of etcd: the others get an empty ``node-ip``.
    """
    found = _SETTING.findall(read_text(etc / CONFIG) or "")
    given = {name: value or ",".join(re.findall("- (.+)", listed)) for name, _quote, value, listed in found}
    settings = {name: given.get(name, default) for name, default in DEFAULTS.items()}
    data = top / settings["data-dir"].lstrip("/")
    if not given or not any((data / file).exists() for file in STARTED):
        return {}
    return settings if (data / "server/db/etcd").is_dir() else settings | {"node-ip": ""}


# Count what the kernel has said since boot about PCIe errors, the GPU and the links of the fabric.

# The first kind whose pattern a line contains counts. drivers/pci/pcie/aer.c, NVIDIA's Xid messages, mlx5/core/*.c
KINDS = {
    "aer": re.compile(r"AER: .*(?:[Uu]ncorrect|[Ff]atal)|PCIe Bus Error: severity=Uncorrect"),
    "corrected": re.compile(r"AER: .*[Cc]orrect|PCIe Bus Error: severity=Correct"),
    "xid": re.compile(r"NVRM: Xid "),
    "nvrm": re.compile(r"NVRM: .*(?:fail|[Ee]rror|[Oo]ut of memory)"),
    "nic": re.compile(
        r"mlx5_core .*(?:CQE error|health (?:compromised|recovery)|fatal|command .*failed|High temperature)"
    ),
    "link": re.compile(r"mlx5_core .*Link down"),
}
_SHOWN = 200
_COMMANDS = (
    ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=cat"],
    ["dmesg", "--notime"],
)


def read_kernel_log(run: Run) -> dict[str, KernelMessage] | None:
    """Return number and last line of each kind of message; None if neither journald nor dmesg shows the log."""
    for command in _COMMANDS:
        lines = run(command).output.splitlines()
        if lines:
            return _counted(lines)
    return None


def _counted(lines: list[str]) -> dict[str, KernelMessage]:
    found: dict[str, KernelMessage] = {}
    for line in lines:
        kind = next((name for name, pattern in KINDS.items() if pattern.search(line)), None)
        if kind is not None:
            count = found[kind]["count"] if kind in found else 0
            found[kind] = {"count": count + 1, "last": line.strip()[:_SHOWN]}
    return found


# Find out who holds memory outside Kubernetes, and what loads took, because GPU and CPU of a Spark share it.

SMALLEST_KIB = 2 * 2**20
_DOCKER = re.compile(r"docker[-/](?P<id>[0-9a-f]{12,64})")
# Bytes of a ledger, of which watch_load.py writes a few hundred; most ledgers that are read.
_MOST, _LEDGERS = 1 << 14, 64
# The phases of watch_load.py
_PHASES = ("start", "weights", "draft", "caches", "graphs", "compile", "warm-up")
_SERVICE = re.compile(r"/(?P<unit>[\w@:.-]+\.service)\b")


def read_holders(proc: Path, run: Run) -> list[Holder]:
    """Return the containers of Docker, units and programs with 2 GiB or more of memory, the largest first.

    A process counts with its resident memory or with what nvidia-smi says of its GPU memory, whichever is larger. Pods
    and the units that start them are left out.
    """
    of_gpu = _gpu_memory(run)
    sizes: Counter[tuple[str, str]] = Counter()
    names = _containers(run)
    for process in proc.glob("[0-9]*"):
        resident = re.search(r"^VmRSS:\s+(\d+) kB", read_text(process / "status") or "", re.MULTILINE)
        kib = max(int(resident[1]) if resident else 0, of_gpu.get(process.name, 0))
        group = read_text(process / "cgroup") or ""
        docker, service = _DOCKER.search(group), _SERVICE.search(group)
        starts_pods = service is not None and not docker and service["unit"] in RUNTIME_UNITS
        if kib and not starts_pods and "kubepods" not in group:
            name = read_text(process / "comm") or process.name
            if docker:
                holder = ("docker", names.get(docker["id"][:12], docker["id"][:12]))
            else:
                holder = ("unit", service["unit"]) if service else ("program", name)
            sizes[holder] += kib
    large = [(kind, name, kib) for (kind, name), kib in sizes.most_common() if kib >= SMALLEST_KIB]
    return [{"kind": kind, "name": name, "kib": kib} for kind, name, kib in large]


def _gpu_memory(run: Run) -> dict[str, int]:
    """Return ``{process id: KiB}`` of programs that use a GPU; a GB10 prints [N/A] for what it does not count."""
    answer = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"])
    rows = (line.replace(",", " ").split() for line in answer.output.splitlines())
    return {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 2 and row[1].isdecimal()}


def _containers(run: Run) -> dict[str, str]:
    """Return ``{first 12 digits of the id: name}`` of Docker's running containers."""
    rows = (line.split() for line in run(["docker", "ps", "--format", "{{.ID}} {{.Names}}"]).output.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def read_loads(cache_dir: str) -> list[Taken]:
    """Return what watch_load.py kept in the directories of compiled kernels, the oldest first.

    The servers own these directories, so a link is not followed, and what was never written by that program is left
    out.
    """
    found = []
    for file in sorted(Path(cache_dir).glob("*/load-*.json"))[:_LEDGERS] if cache_dir else ():
        try:
            taken = _taken(json.loads(_regular(file)))
        except (OSError, LookupError, TypeError, ValueError, RecursionError):
            continue
        found.append(taken)
    return sorted(found, key=lambda taken: taken["at"])


def _regular(file: Path) -> bytes:
    """Return the beginning of a regular file; raise OSError for anything else."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{file} is not a regular file")
        return stream.read(_MOST)


def _taken(told: Any) -> Taken:
    """Return a ledger; raise LookupError, TypeError or ValueError for anything else."""
    phases = {str(name): float(peak["taken_gib"]) for name, peak in told["phases"].items()}
    most = max(phases, key=lambda name: phases[name])
    if told["state"] not in ("ready", "ended"):
        raise ValueError(f"no load ends as {told['state']!r}")
    return {
        "key": str(told["key"]),
        "state": str(told["state"]),
        "phase": str(told["phase"]) if told["state"] == "ended" else most,
        "at": str(told["at"]),
        "total_gib": float(told["total_gib"]),
        "before_gib": float(told["before_gib"]),
        "taken_gib": phases[most],
        "peaks": {name: gib for name, gib in phases.items() if name in _PHASES},
        "graphs_gib": float(told.get("graphs_gib", 0)),
        "compiler_gib": float(told.get("compiler_gib", 0)),
        "compilers_gib": float(told.get("compilers_gib", 0)),
        "jobs": int(told.get("jobs") or 0),
    }


# Read the release of DGX OS, the loaded kernel modules and the installed packages that combinations depend on.

# The other keys of this file tell the serial number among others.
_DGX_VERSION = re.compile(r'^DGX_(OTA|SWBUILD)_VERSION="?([^"\s]+)', re.MULTILINE)
# Starts of the names of packages that can make the difference between two hosts.
PACKAGES = (
    *("containerd", "cuda-", "dgx", "docker", "doca", "grub", "libibverbs", "libnccl", "libnvidia", "linux-", "mft"),
    *("mlnx", "netplan", "nvidia", "ofed", "rdma-core"),
)


def read_dgx_os(etc: Path) -> str | None:
    """Return the release of DGX OS: of the last update over the network, or as delivered. None on other systems."""
    found = _DGX_VERSION.findall(read_text(etc / "dgx-release") or "")
    # The file gets a line for each update; the last one holds.
    updates = [version for kind, version in found if kind == "OTA"]
    versions = updates or [version for _kind, version in found]
    return str(versions[-1]) if versions else None


def read_packages(run: Run) -> dict[str, str]:
    """Return ``{package: version}`` of the installed packages in PACKAGES; empty where dpkg does not answer."""
    answer = run(["dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n"])
    rows = (line.split() for line in answer.output.splitlines() if line.startswith(PACKAGES))
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


# Services that start the containers: K3s, kubeadm, CRI-O and OpenShift, RKE2, k0s, MicroK8s
RUNTIME_UNITS = (
    *("k3s.service", "k3s-agent.service", "containerd.service", "docker.service", "crio.service"),
    *("rke2-server.service", "rke2-agent.service", "k0scontroller.service", "k0sworker.service"),
    "snap.microk8s.daemon-containerd.service",
)
# The images of Kubernetes in K3s's containerd, and in that of another distribution
IMAGES = ("--namespace", "k8s.io", "images", "list", "--quiet")
WRITTEN = ("etc", "usr/local", "var/lib")  # directories that the roles write to
RECORDS = ("etc/gb10/*", "etc/systemd/system/gb10-*")
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
    pfs, addresses = read_pfs(roots.sysfs, links), devices.addresses_of(links)
    masters = devices.masters_of(links)
    memory = _memory(proc)
    synchronized = run(["timedatectl", "show", "--property=NTPSynchronized", "--value"]).output
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
        "memory_holders": read_holders(proc, run),
        "kernel_log": read_kernel_log(run),
        "cgroup_version": _cgroup_version(Path(roots.cgroup)),
        "time_synchronized": {"yes": True, "no": False}.get(synchronized.strip()),
        "clock_offset_s": clock_offset,
        "disks": [_disk(path) for path in paths],
        "images": [name for ctr in ([k3s_binary, "ctr"], ["ctr"]) for name in run([*ctr, *IMAGES]).output.split()],
        "staged": _staged(models_dir),
        "loads": read_loads(cache_dir),
        "written": {f"/{path}": _written(top / path) for path in WRITTEN},
        "records": sorted(f"/{path.relative_to(top)}" for place in RECORDS for path in top.glob(place)),
        "runtime_memlock": _memlocks(run),
        "kubernetes": _kubernetes(etc, top, k3s_binary, run),
        "dgx_os": read_dgx_os(etc),
        "bios": read_text(sysfs / "class/dmi/id/bios_version"),
        "modules": sorted(line.split()[0] for line in (read_text(proc / "modules") or "").splitlines() if line.strip()),
        "packages": read_packages(run),
        "gpu_driver": devices.read_gpu_driver(proc),
        "gpu_module": devices.read_gpu_module(proc),
        "gpu_runtime": next((f"/{name}" for name in devices.RUNTIMES if (top / name).exists()), None),
        "gpus": devices.read_gpus(run),
        "rdma": devices.read_rdma(sysfs, Path(roots.dev)),
        "pfs": devices.read_ports(sysfs, pfs, addresses, masters),
        "interfaces": sorted(
            line.partition(":")[0].strip() for line in (read_text(proc / "net/dev") or "").splitlines()[2:]
        ),
        "addresses": {name: [each["address"].partition("/")[0] for each in found] for name, found in addresses.items()},
        "wifi": sorted(path.parent.name for path in (sysfs / "class/net").glob("*/wireless")),
        "default_routes": devices.read_default_routes(proc),
        "routes": devices.read_routes(run),
        "nameservers": devices.read_nameservers(etc, top),
        "listeners": devices.read_listeners(proc),
        "orphan_namespaces": devices.read_orphans(proc, Path(roots.netns), run),
        "network_services": _units(run, NETWORK_UNITS, "LoadState,ActiveState"),
        "netplan": devices.read_netplan(etc, [pf.name for pf in pfs], run),
        "firewall": devices.read_firewall(run),
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
        "settings": read_settings(etc, top),
        "kubeconfig": (etc / KUBECONFIG).exists(),
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
