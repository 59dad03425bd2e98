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
returned_links:
  description: VFs that were returned to the host.
  returned: always
  type: list
  elements: str
processes:
  description: Processes of containers that were killed.
  returned: always
  type: list
  elements: int
mounts:
  description: Mount points that were unmounted.
  returned: always
  type: list
  elements: str
links:
  description: Interfaces that were removed.
  returned: always
  type: list
  elements: str
routes:
  description: Destinations of the routes that were removed.
  returned: always
  type: list
  elements: str
rules:
  description: Tools whose packet filter rules were cleaned.
  returned: always
  type: list
  elements: str
directories:
  description: Directories that were removed or emptied.
  returned: always
  type: list
  elements: str
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import leftovers

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
            for link in leftovers.stray_links(netns.name, links):
                returned.append(link.host_name)
                if self.act:
                    inside = ["ip", "-netns", netns.name, "link", "set", "dev"]
                    self.run(*inside, link.name, "down")
                    self.run(*inside, link.name, "name", link.host_name)
                    self.run(*inside, link.host_name, "netns", "1")
        return returned

    def kill_containers(self) -> list[int]:
        """Kill the containerd shims and their descendants, and wait until all have ended."""
        pids = leftovers.container_processes(*processes(), self.data_dir)
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
        roots = (*leftovers.MOUNT_ROOTS, self.data_dir)
        points = leftovers.mounts_below(Path("/proc/self/mounts").read_text(encoding="utf-8"), roots)
        points = [point for point in points if point != self.data_dir]  # it may be a separate disk
        if self.act:
            for point in points:
                self.run("umount", "--lazy", point)
            for netns in NETNS.glob("cni-*"):
                netns.unlink()
        return points

    def remove_links(self) -> list[str]:
        """Remove the bridges and tunnels of the CNI plugins."""
        found = [name for name in leftovers.LINKS if Path("/sys/class/net", name).exists()]
        if self.act:
            for name in found:
                self.run("ip", "link", "delete", name)
        return found

    def remove_routes(self) -> list[str]:
        """Remove the routes to the pods of other nodes."""
        found = leftovers.pod_routes(self.run("ip", "-json", "route"), self.module.params["cluster_cidr"])
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
            kept = leftovers.filtered_rules(saved)
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
    result: dict[str, Any] = {name: [] for name in steps}
    try:
        for name, step in steps.items():
            result[name] = step()
    except OSError as error:
        advice = "Stop the process that uses it (fuser -vm PATH shows it), and run playbook reset again"
        module.fail_json(msg=f"{error}. {advice}.", changed=any(result.values()), **result)
    module.exit_json(changed=any(result.values()), **result)


if __name__ == "__main__":
    main()
