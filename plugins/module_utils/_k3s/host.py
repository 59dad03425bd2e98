# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host must be like before K3s is put on it: read its state, then judge it. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._common.findings import Finding, Severity
from .._common.versions import Version

EXAMPLE = "v1.36.4+k3s1"
MARKER = "installed by gb10.cluster"
UNITS = ("k3s.service", "k3s-agent.service")
SERVER_PORTS = (6443, 10250)
ETCD_PORTS = (2379, 2380)
AGENT_PORTS = (10250,)
CGROUP_V1_REFUSED_FROM = (1, 35)
# Directories that only another distribution of Kubernetes creates.
FOREIGN = {
    "etc/kubernetes/kubelet.conf": "kubeadm",
    "var/lib/rancher/rke2": "RKE2",
    "var/snap/microk8s": "MicroK8s",
    "etc/rke2": "RKE2",
}
_TCP_LISTEN = "0A"
_DEFAULT_ROUTE = "00000000"
_DEFAULT_ROUTE6 = "0" * 32


@dataclass(frozen=True)
class HostState:
    """What was read from one host; ``units`` maps each K3s unit that exists to "was written by this collection"."""

    cgroup_v2: bool
    swap_devices: tuple[str, ...] = ()
    listening: frozenset[int] = frozenset()
    default_route: bool = True
    units: dict[str, bool] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    installed_version: str = ""
    epoch: float = 0.0


def parse_k3s_version(text: str) -> Version:
    """Return the version of ``v1.36.4+k3s1``; raise ValueError for a text that is not a full K3s version."""
    version = Version.parse(text, EXAMPLE)
    if len(version.release) != 3:
        raise ValueError(f"{text!r} is not a full K3s version; write it like {EXAMPLE}")
    return version


def parse_k3s_version_output(text: str) -> str:
    """Return ``v1.36.4+k3s1`` from the first line of ``k3s --version``, or an empty string."""
    match = re.match(r"k3s version (v\S+)", text)
    return match.group(1) if match else ""


def listening_ports(tables: Iterable[str]) -> frozenset[int]:
    """Return the local TCP ports in state LISTEN of the texts of /proc/net/tcp and /proc/net/tcp6."""
    ports = set()
    for table in tables:
        for line in table.splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _TCP_LISTEN:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return frozenset(ports)


def swap_devices(table: str) -> tuple[str, ...]:
    """Return the names in the text of /proc/swaps."""
    return tuple(line.split()[0] for line in table.splitlines()[1:] if line.strip())


def has_default_route(route: str, ipv6_route: str) -> bool:
    """Tell from /proc/net/route and /proc/net/ipv6_route whether a default route exists (lo does not count)."""
    for line in route.splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == _DEFAULT_ROUTE and words[7] == _DEFAULT_ROUTE:
            return True
    for line in ipv6_route.splitlines():
        words = line.split()
        if len(words) == 10 and words[0] == _DEFAULT_ROUTE6 and words[1] == "00" and words[9] != "lo":
            return True
    return False


def read_host(root: Path, installed_version: str, epoch: float) -> HostState:
    """Read the state below ``root`` (``/`` on a host, a directory in a test)."""

    def text(name: str) -> str:
        path = root / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    units = {}
    for name in UNITS:
        unit = text(f"etc/systemd/system/{name}")
        if unit:
            units[name] = MARKER in unit
    return HostState(
        cgroup_v2=(root / "sys/fs/cgroup/cgroup.controllers").is_file(),
        swap_devices=swap_devices(text("proc/swaps")),
        listening=listening_ports([text("proc/net/tcp"), text("proc/net/tcp6")]),
        default_route=has_default_route(text("proc/net/route"), text("proc/net/ipv6_route")),
        units=units,
        foreign=tuple(sorted({name for path, name in FOREIGN.items() if (root / path).exists()})),
        installed_version=installed_version,
        epoch=epoch,
    )


def judge(
    state: HostState,
    *,
    role: str,
    version: str,
    kubelet_args: Sequence[str],
    embedded_etcd: bool,
    reference_epoch: float,
    clock_skew: float,
    upgrading: bool = False,
) -> list[Finding]:
    """Return everything that stands against K3s ``version`` on this host as ``role`` (``server`` or ``agent``)."""
    findings: list[Finding] = []

    def add(rule: str, key: str, value: object, *, reason: str, remedy: str, severity: Severity = "error") -> None:
        findings.append(Finding(severity, f"k3s.{rule}", key, value, reason, remedy))

    wanted = parse_k3s_version(version)
    if (
        not state.cgroup_v2
        and wanted.release[:2] >= CGROUP_V1_REFUSED_FROM
        and "fail-cgroupv1=false" not in kubelet_args
    ):
        add(
            "cgroup.v1",
            "/sys/fs/cgroup",
            "cgroup v1",
            reason="the kubelet of Kubernetes 1.35 and later does not start on cgroup v1",
            remedy="Boot with systemd.unified_cgroup_hierarchy=1, or add fail-cgroupv1=false to k3s_kubelet_args",
        )
    if state.swap_devices:
        add(
            "swap.on",
            "/proc/swaps",
            ", ".join(state.swap_devices),
            reason="model memory that is swapped out stalls every rank of the group",
            remedy="Switch swap off (swapoff -a and /etc/fstab), or leave it when the host is no GPU node",
            severity="warning",
        )
    if not state.default_route:
        add(
            "route.default",
            "/proc/net/route",
            None,
            reason="K3s needs a default route to find the node's address and the service network",
            remedy="Add one; without an uplink a route through a dummy or blackhole device is enough",
        )
    ours = any(state.units.values())
    for unit, written_by_us in state.units.items():
        expected = "k3s.service" if role == "server" else "k3s-agent.service"
        if not written_by_us:
            add(
                "installation.other",
                f"/etc/systemd/system/{unit}",
                state.installed_version or None,
                reason="K3s was installed here by something else",
                remedy="Run its uninstall script first: its data and tokens are not ours to take over",
            )
        elif unit != expected:
            add(
                "installation.role",
                f"/etc/systemd/system/{unit}",
                role,
                reason=f"this host already runs {unit} and the inventory now makes it a K3s {role}",
                remedy="Reset the host first (playbook reset, --limit this host), or put it back into its old group",
            )
    for name in state.foreign:
        add(
            "installation.foreign",
            name,
            None,
            reason=f"{name} is or was installed here and owns kubelet, CNI and iptables rules",
            remedy=f"Remove {name} first",
        )
    if ours and state.installed_version and not upgrading and parse_k3s_version(state.installed_version) != wanted:
        add(
            "version.differs",
            "k3s_version",
            version,
            reason=f"K3s {state.installed_version} runs here, and replacing it would stop the model of the whole group",
            remedy="Run playbook upgrade, or set k3s_version to what is installed",
        )
    if not ours:
        needed = AGENT_PORTS if role == "agent" else SERVER_PORTS + (ETCD_PORTS if embedded_etcd else ())
        for port in sorted(set(needed) & state.listening):
            add(
                "port.taken",
                f"tcp/{port}",
                None,
                reason=f"something else listens on port {port}, which a K3s {role} needs",
                remedy=f"Find it with `ss -ltnp sport = :{port}` and stop it",
            )
    skew = abs(state.epoch - reference_epoch)
    if reference_epoch and skew > clock_skew:
        add(
            "clock.skew",
            "clock",
            f"{skew:.0f} s",
            reason=f"the clock is more than {clock_skew:.0f} s off the controller's: certificates would be refused",
            remedy="Start a time service (timedatectl set-ntp true) on both and wait until they agree",
        )
    return findings


def parse_properties(text: str) -> dict[str, str]:
    """Return {name: value} of the output of ``systemctl show``."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def is_stale(properties: dict[str, str], changed: Iterable[float]) -> bool:
    """Tell whether a running service was started before one of its files changed last.

    ``properties`` come from ``systemctl show --timestamp=unix``, which gives whole seconds (``@1700000000``);
    ``changed`` are times of change in seconds. A file of the same second was written just before the start.
    """
    if properties.get("ActiveState") not in ("active", "activating", "reloading"):
        return False
    started = properties.get("ExecMainStartTimestamp", "").removeprefix("@")
    return started.isdigit() and any(int(time) > int(started) for time in changed)
