# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the hosts as systemd containers that look like ordinary machines to Ansible."""

import concurrent.futures
import dataclasses
import json
import re
import secrets
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .lab import CHECKOUT, CONTROLLER, Lab
from .machines import USER, Host
from .podman import Podman
from .shell import LabError, command, say

TOTAL_VFS = 4
# What /proc/meminfo of a DGX Spark says before a model is loaded, in KiB
MEMORY_KIB = {"MemTotal": 125_513_964, "MemFree": 110_000_000, "MemAvailable": 115_000_000}
# containerd and kubelet cannot mount an overlay on the container's own overlay
BIND_MOUNTED = ("/var/lib/rancher", "/var/lib/containerd", "/var/lib/kubelet")
_READY_S = 90
# K3s's unit ends the boot when its API answers: 60 s were too few for two hosts that start at once on a busy machine.
_BOOT_S = 180
_WANTS = "etc/systemd/system/{target}.wants/{unit}"
_UNITS = {
    "spark": (("multi-user.target", "NetworkManager.service"),),
    "kind": (("multi-user.target", "systemd-networkd.service"), ("sockets.target", "systemd-networkd.socket")),
}


def start(lab: Lab, podman: Podman, hosts: Sequence[Host], image: str, *, everybody: Sequence[Host], kind: str) -> None:
    """Start hosts and wait until each runs and answers ssh. Their /etc/hosts contains ``everybody``."""
    (lab.run / "cp").mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        _all(pool, lambda host: _start_one(lab, podman, host, everybody, image, kind), hosts)
    say(f"{len(hosts)} hosts started; waiting for ssh")
    wait(lab, hosts)


def wait(lab: Lab, hosts: Sequence[Host]) -> None:
    """Wait until each host answers ssh and systemd has started all units; raise LabError otherwise."""
    _wait_for_ssh(lab, hosts)
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        _all(pool, lambda host: _wait_for_systemd(lab, host), hosts)


def _all(pool: concurrent.futures.Executor, work: Callable[[Host], None], hosts: Sequence[Host]) -> None:
    for done in [pool.submit(work, host) for host in hosts]:
        done.result()


def container(lab: Lab, host: Host) -> str:
    """Return the name of the host's container."""
    return lab.netns(host)


def _start_one(lab: Lab, podman: Podman, host: Host, hosts: Sequence[Host], image: str, kind: str) -> None:
    directory = lab.host_dir(host)
    volumes = [f"{CHECKOUT / 'lab' / 'hosts'}:/opt/gb10-lab/hosts:ro", f"{lab.cache}:/opt/gb10-lab-cache:ro"]
    for path in BIND_MOUNTED:
        own = directory / path.lstrip("/")
        own.mkdir(parents=True)
        volumes.append(f"{own}:{path}")
    settings = directory / "host"
    settings.mkdir()
    (settings / "login").write_text(f"{USER}:{lab.become_password.read_text()}\n")
    (settings / "login").chmod(0o600)
    (settings / "kind").write_text(kind)
    (settings / "management").write_text(host.management)
    volumes.append(f"{settings}:/opt/gb10-lab/host:ro")
    if host.is_node:
        (settings / "host.json").write_text(
            json.dumps({"name": host.name, "total_vfs": TOTAL_VFS, "ports": _ports(host)}, indent=2)
        )
        (settings / "meminfo").write_text(spark_memory(Path("/proc/meminfo").read_text(encoding="ascii")))
        volumes += [f"/run/netns/{lab.name}:/opt/gb10-lab/switch.netns", f"{settings / 'meminfo'}:/proc/meminfo:ro"]
    _write_files(lab, host, hosts, kind, directory / "root")
    podman(
        "create", f"--name={container(lab, host)}", f"--hostname={host.name}", "--privileged",
        # with podman's systemd mode on cgroup v1, services of the same name on all hosts would share a cgroup
        "--systemd=false", "--env=container=podman", "--stop-signal=SIGRTMIN+3",
        "--cgroupns=private", f"--cgroup-parent=/{lab.name}", f"--network=ns:/run/netns/{lab.netns(host)}",
        "--no-hosts", "--dns=none", "--pids-limit=-1", "--restart=always", "--pull=never",
        *(f"--volume={volume}" for volume in volumes),
        # without this argument systemd 257 does not run on cgroup v1; on v2 it has no effect
        image, "/sbin/init", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",
    )  # fmt: skip
    podman("cp", f"{directory / 'root'}/.", f"{container(lab, host)}:/")
    podman("start", container(lab, host))


def spark_memory(meminfo: str) -> str:
    """Return this machine's /proc/meminfo with the sizes of a DGX Spark; they are simulated, and never change.

    Preflight reads them on the hosts. The pods' own /proc has those of this machine.
    """
    return re.sub(
        rf"^({'|'.join(MEMORY_KIB)}):.*$", lambda line: f"{line[1]}: {MEMORY_KIB[line[1]]} kB", meminfo, flags=re.M
    )


def _ports(host: Host) -> list[dict[str, str | None]]:
    return [{**dataclasses.asdict(port), "vf": port.vf} for port in host.ports]


def _write_files(lab: Lab, host: Host, hosts: Sequence[Host], kind: str, root: Path) -> None:
    """Write the files in which one host differs from the image."""
    names = "".join(f"{other.address} {other.name}\n" for other in hosts)
    files = {
        "etc/hosts": (f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{CONTROLLER} controller\n{names}", 0o644),
        "etc/ssh/ssh_host_ed25519_key": ((lab.state / "ssh" / "host_ed25519").read_text(), 0o600),
        "etc/machine-id": (f"{uuid.uuid4().hex}\n", 0o444),
        f"home/{USER}/.ssh/authorized_keys": (lab.key.with_suffix(".pub").read_text(), 0o600),
        **{name: (text, 0o600) for name, text in _netplan(host, kind).items()},
    }
    for name, (text, mode) in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    for path in (root / "home" / USER, root / "home" / USER / ".ssh"):
        path.chmod(0o700)
    for target, unit in _UNITS[kind]:
        link = root / _WANTS.format(target=target, unit=unit)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/usr/lib/systemd/system/{unit}")


def _netplan(host: Host, kind: str) -> dict[str, str]:
    """Return the netplan files that a host is delivered with; a fabric role must not change them."""
    management = f"      addresses: [{host.address}/24]\n      routes: [{{to: default, via: {CONTROLLER}}}]\n"
    start = "network:\n  version: 2\n"
    if kind == "kind":
        return {"etc/netplan/50-cloud-init.yaml": f"{start}  ethernets:\n    {host.management}:\n{management}"}
    identity = str(uuid.uuid4())
    files = {
        "etc/netplan/01-network-manager-all.yaml": f"{start}  renderer: NetworkManager\n",
        # the form in which Ubuntu's NetworkManager stores a connection
        f"etc/netplan/90-NM-{identity}.yaml": (
            f"{start}  ethernets:\n    NM-{identity}:\n      renderer: NetworkManager\n"
            f"      match: {{name: {host.management}}}\n"
            f"{management}      networkmanager: {{uuid: {identity}, name: Wired connection 1}}\n"
        ),
    }
    if host.is_node:
        # the result of NVIDIA's playbook for two connected Sparks: static addresses on one host, DHCP on the next
        ports = "".join(
            f"    {port.pf}: "
            + (
                "{dhcp4: true}\n"
                if host.number % 2 == 0
                else f"{{addresses: [192.168.{100 + index}.{host.number}/24]}}\n"
            )
            for index, port in enumerate(port for port in host.ports if port.switch)
        )
        files["etc/netplan/40-cx7.yaml"] = f"{start}  ethernets:\n{ports}"
    return files


def make_keys(lab: Lab) -> None:
    """Create the user's key and the host key that all hosts share."""
    directory = lab.key.parent
    directory.mkdir(mode=0o700)
    lab.become_password.touch(mode=0o600)
    lab.become_password.write_text(secrets.token_urlsafe(12))
    for name in ("id_ed25519", "host_ed25519"):
        comment = f"{lab.name} {name}"
        command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(directory / name)])


def write_ssh(lab: Lab, hosts: Sequence[Host]) -> None:
    """Write known_hosts and a configuration for `ssh -F`."""
    directory = lab.key.parent
    public = " ".join((directory / "host_ed25519.pub").read_text().split()[:2])
    lab.known_hosts.write_text("".join(f"{host.name},{host.name}.local,{host.address} {public}\n" for host in hosts))
    blocks = "".join(f"Host {host.name} {host.name}.local\n  HostName {host.address}\n" for host in hosts)
    (directory / "config").write_text(
        f"{blocks}Host *\n  User {USER}\n  IdentityFile {lab.key}\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {lab.known_hosts}\n  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )


def write_inventory(lab: Lab, hosts: Sequence[Host]) -> None:
    """Write a complete inventory of exactly these hosts, with the variables of inventory/lab."""
    directory = lab.state / "inventory"
    directory.mkdir(exist_ok=True)
    if not (directory / "group_vars").is_symlink():
        (directory / "group_vars").symlink_to(CHECKOUT / "inventory" / "lab" / "group_vars")
    nodes = [host for host in hosts if host.is_node]
    of_nodes: dict[str, dict[str, Any]] = {
        host.name: {"ansible_host": host.address, "gb10_node_id": host.number} for host in nodes
    }
    # rail -> host -> PF
    rails: dict[str, dict[str, str]] = {}
    for host in nodes:
        for port in host.ports:
            if port.switch:
                rails.setdefault(port.switch, {})[host.name] = port.pf
    networks: list[dict[str, Any]] = []
    for number, (rail, pfs) in enumerate(rails.items(), start=100):
        usual = next(iter(pfs.values()))
        networks.append({"name": rail, "pf": usual, "network": f"10.{number}.0.0/16"})
        if len(pfs) < len(nodes):
            networks[-1]["hosts"] = list(pfs)
        for name, pf in pfs.items():
            if pf != usual:
                of_nodes[name].setdefault("gb10_fabric_pfs", {})[rail] = pf
    servers = {host.name: {"ansible_host": host.address} for host in hosts if not host.is_node}
    cluster = {
        "children": {"gb10_servers": {"hosts": servers}, "gb10_nodes": {"hosts": of_nodes}},
        "vars": {
            "ansible_user": USER,
            "ansible_become": True,
            "gb10_management_interface": nodes[0].management,
            "gb10_fabric_topology": "ring" if "hosts" in networks[0] else "switch",
            "gb10_fabric_rails": networks,
        },
    }
    # JSON is YAML
    (directory / "hosts.yml").write_text(json.dumps({"gb10_cluster": cluster}, indent=2) + "\n")


def discard(lab: Lab, podman: Podman, host: Host) -> None:
    """Remove the remains of one host after an interrupted `up`."""
    podman("rm", "--force", "--time=0", "--ignore", container(lab, host))
    if Path("/run/netns", lab.netns(host)).exists():
        command(["ip", "netns", "delete", lab.netns(host)])
    if lab.host_dir(host).exists():
        shutil.rmtree(lab.host_dir(host))


def introduce(lab: Lab, podman: Podman, new: Sequence[Host], to: Sequence[Host]) -> None:
    """Add the names of new hosts to /etc/hosts of the running ones."""
    lines = "".join(f"{host.address} {host.name}\\n" for host in new)
    for host in to:
        podman("exec", container(lab, host), "sh", "-c", f"printf '{lines}' >> /etc/hosts")


def inside(lab: Lab) -> list[str]:
    """Return the beginning of a command line that runs the rest in the lab's network namespace."""
    return ["nsenter", f"--net=/run/netns/{lab.name}", "--"]


_BANNERS = """
import socket, sys, time
waiting, end = set(sys.argv[2:]), time.monotonic() + float(sys.argv[1])
while waiting and time.monotonic() < end:
    for address in sorted(waiting):
        try:
            with socket.create_connection((address, 22), timeout=0.5) as s:
                if s.recv(4) == b"SSH-":
                    waiting.discard(address)
        except OSError:
            pass
    if waiting:
        time.sleep(0.1)
print(*sorted(waiting))
"""


def _wait_for_ssh(lab: Lab, hosts: Sequence[Host]) -> None:
    addresses = [host.address for host in hosts]
    argv = [*inside(lab), sys.executable, "-c", _BANNERS, str(_READY_S), *addresses]
    silent = command(argv, timeout=_READY_S + 10).stdout.split()
    if silent:
        names = ", ".join(host.name for host in hosts if host.address in silent)
        raise LabError(f"no ssh from {names} after {_READY_S} s. See `lab/labctl exec HOST -- journalctl -b`.")


def ssh(lab: Lab, host: Host, *argv: str, check: bool = True, timeout: float = 60) -> str:
    """Run a command on a host by ssh, like Ansible; return its standard output."""
    line = [*inside(lab), "ssh", "-F", str(lab.state / "ssh" / "config"), host.name, *argv]
    return command(line, check=check, timeout=timeout).stdout


def _wait_for_systemd(lab: Lab, host: Host) -> None:
    # Without --wait: for an ordinary user that never ends if systemd reloads meanwhile, as it does when netplan starts
    # (systemd 257).
    end = time.monotonic() + _BOOT_S
    while (state := ssh(lab, host, "systemctl", "is-system-running", check=False).strip()) != "running":
        if state == "degraded" or time.monotonic() > end:
            units = ssh(
                lab, host, "systemctl list-units --state=failed --no-legend --plain; systemctl list-jobs", check=False
            )
            raise LabError(f"{host.name} is {state or 'not reachable'}; failed units and jobs:\n{units}")
        time.sleep(0.5)


def alive(podman: Podman, lab: Lab, hosts: Sequence[Host]) -> list[str]:
    """Return the names of the hosts whose container runs, in order."""
    out = podman("ps", "--format", "{{.Names}} {{.Pid}}", check=False).stdout.splitlines()
    pids = dict(line.split(" ", 1) for line in out if " " in line)
    return [host.name for host in hosts if Path(f"/proc/{pids.get(container(lab, host), 'none')}").exists()]
