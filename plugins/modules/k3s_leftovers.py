#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_leftovers
short_description: Remove the processes, mounts and interfaces that a stopped K3s leaves behind
version_added: 0.1.0
description:
  - Returns VFs that are still in pods' namespaces to the host under their original names. Kills the containers of a
    stopped K3s, unmounts their file systems, and removes the interfaces and packet filter rules of its CNI plugins.
  - Then removes the directories. A directory that is a mount point, such as a separate disk, is emptied but kept.
  - Stop the services first, because a running K3s would start its containers again.
author: The gb10.cluster authors (@gb10)
attributes:
  check_mode:
    description: Lists what would be removed and removes nothing.
    support: full
  diff_mode:
    description: The module's result lists what is removed, so there is no separate diff.
    support: none
options:
  data_dir:
    description: K3s's data directory.
    type: path
    default: /var/lib/rancher/k3s
  cluster_cidr:
    description: The network of the pods, or an IPv4 and an IPv6 network separated by a comma. Routes into the IPv4
      network are removed.
    type: str
    default: 10.42.0.0/16
  directories:
    description: Directories to remove with their contents.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Remove what a stopped K3s left
  gb10.cluster.k3s_leftovers:
"""

RETURN = r"""
removed:
  description: What was removed, in lists. C(returned_links) are VFs that were returned to the host, C(processes) those
    of containers that were killed, C(mounts) mount points, C(links) interfaces, C(routes) destinations, C(rules) tools
    whose packet filter rules were cleaned, C(directories) those that were removed or emptied.
  returned: always
  type: dict
"""

import ipaddress
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

# Find what K3s leaves behind when it stops: containers, mounts, links, rules.

MOUNT_ROOTS = ("/run/k3s", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/run/netns/cni-")
# Interfaces that K3s's CNI plugins create; a host's own interfaces never have these names.
LINKS = ("cni0", "flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "kube-ipvs0", "nodelocaldns")
_RULE_OF_OURS = re.compile(r"KUBE-|CNI-|FLANNEL|cali-", re.IGNORECASE)
_OCTAL = re.compile(r"\\(\d{3})")


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


def stray_links(links: str) -> dict[str, str]:
    """Return ``{name there: name on the host}`` of host interfaces in a pod's namespace (``ip -json -details link``).

    The host-device plugin stores the interface's host name in its alias before it renames the interface; no other
    interface in a pod has an alias. A killed pod gets no CNI DEL, so its VF must be returned to the host by this alias.
    """
    there = [link for link in json.loads(links or "[]") if link.get("ifalias") and link["ifname"] != "lo"]
    return {link["ifname"]: link["ifalias"] for link in there}


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


NETNS = Path("/run/netns")


def processes() -> tuple[dict[int, str], dict[int, int]]:
    """Return command lines and parents of all processes that can be read."""
    commands, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            commands[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            parents[int(entry.name)] = int((entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # the process ended in the meantime
    return commands, parents


class Cleaner:
    """Finds what K3s left behind and removes it; in check mode it only finds."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.act = not module.check_mode
        self.data_dir = module.params["data_dir"]

    def run(self, *command: str, data: str | None = None) -> str:
        """Run a command that must succeed and return its output."""
        return str(self.module.run_command(list(command), check_rc=True, data=data)[1])

    def return_links(self) -> list[str]:
        """Move VFs out of the pods' namespaces."""
        returned = []
        for netns in sorted(NETNS.glob("cni-*")):
            code, links = self.module.run_command(["ip", "-netns", netns.name, "-json", "-details", "link"])[:2]
            if code != 0:
                continue  # the namespace no longer exists; its mount point is removed below
            for name, host_name in stray_links(links).items():
                returned.append(host_name)
                if self.act:
                    inside = ["ip", "-netns", netns.name, "link", "set", "dev"]
                    self.run(*inside, name, "down")
                    self.run(*inside, name, "name", host_name)
                    self.run(*inside, host_name, "netns", "1")
        return returned

    def kill_containers(self) -> list[int]:
        """Kill the containerd shims and their descendants, and wait until all have ended."""
        pids = container_processes(*processes(), self.data_dir)
        if self.act:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(Path(f"/proc/{pid}/exe").is_symlink() for pid in pids):
                time.sleep(0.1)
        return pids

    def unmount(self) -> list[str]:
        """Unmount the file systems of containers, lazily because a process that is ending may still use one."""
        roots = (*MOUNT_ROOTS, self.data_dir)
        points = mounts_below(Path("/proc/self/mounts").read_text(encoding="utf-8"), roots)
        points = [point for point in points if point != self.data_dir]  # it may be a separate disk
        if self.act:
            for point in points:
                self.run("umount", "--lazy", point)
            for netns in NETNS.glob("cni-*"):
                netns.unlink()
        return points

    def remove_links(self) -> list[str]:
        """Remove the bridges and tunnels of the CNI plugins."""
        found = [name for name in LINKS if Path("/sys/class/net", name).exists()]
        if self.act:
            for name in found:
                self.run("ip", "link", "delete", name)
        return found

    def remove_routes(self) -> list[str]:
        """Remove the routes to the pods of other nodes."""
        found = pod_routes(self.run("ip", "-json", "route"), self.module.params["cluster_cidr"])
        if self.act:
            for destination in found:
                self.run("ip", "route", "delete", destination)
        return found

    def clean_rules(self) -> list[str]:
        """Remove the rules of kube-proxy and CNI from the packet filter and keep all others."""
        cleaned = []
        for tool in ("iptables", "ip6tables"):
            if self.module.get_bin_path(f"{tool}-save") is None:
                continue
            code, saved = self.module.run_command([f"{tool}-save"])[:2]
            kept = filtered_rules(saved)
            if code != 0 or kept == "".join(line + "\n" for line in saved.splitlines()):
                continue
            cleaned.append(tool)
            if self.act:
                self.run(f"{tool}-restore", data=kept)
        return cleaned

    def remove_directories(self) -> list[str]:
        """Remove the directory trees; a mount point is kept as an empty directory."""
        removed = []
        for directory in map(Path, self.module.params["directories"]):
            if not directory.is_dir() or (directory.is_mount() and not any(directory.iterdir())):
                continue
            removed.append(str(directory))
            if not self.act:
                continue
            if not directory.is_mount():
                shutil.rmtree(directory)
                continue
            for entry in directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        return removed


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data_dir": {"type": "path", "default": "/var/lib/rancher/k3s"},
            "cluster_cidr": {"type": "str", "default": "10.42.0.0/16"},
            "directories": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    cleaner = Cleaner(module)
    steps: dict[str, Callable[[], list[Any]]] = {
        "returned_links": cleaner.return_links,
        "processes": cleaner.kill_containers,
        "mounts": cleaner.unmount,
        "links": cleaner.remove_links,
        "routes": cleaner.remove_routes,
        "rules": cleaner.clean_rules,
        "directories": cleaner.remove_directories,
    }
    removed: dict[str, list[Any]] = {name: [] for name in steps}
    try:
        for name, step in steps.items():
            removed[name] = step()
    except OSError as error:
        advice = "If a process uses it (fuser -vm PATH shows it), stop the process, and run playbook reset again"
        module.fail_json(msg=f"{error}. {advice}.", changed=any(removed.values()), removed=removed)
    module.exit_json(changed=any(removed.values()), removed=removed)


if __name__ == "__main__":
    main()
