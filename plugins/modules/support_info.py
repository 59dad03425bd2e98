#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: support_info
short_description: Read what a support bundle contains of a host
version_added: 0.1.0
description:
  - Reads versions, the kernel's log, PCIe AER counters, NVRM messages, counters of ports and RDMA devices, addresses,
    netplan, logs of K3s and of serving groups from an allow-list of commands and files.
  - Removes known forms of private keys, tokens, passwords and the tokens of K3s before the text leaves the host.
  - What cannot be read is named in RV(missing). It never makes the module fail.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs, gb10.cluster.shared.readonly]
options:
  limit_kib:
    description: Size in KiB up to which the end of each text is kept.
    type: int
    default: 512
  log_dir:
    description: Directory of the serving groups' logs, as O(root) has it.
    type: path
    default: /var/log/gb10
  root:
    description: Root of the host's file system.
    type: path
    default: /
  around:
    description:
      - A time in UTC, as V(2026-11-30 02:00:00). Only what the kernel said about the GPU, PCIe, the fabric and memory
        from ten minutes before it until a minute after is read, in whichever boot, and returned as RV(msg).
      - The user needs no sudo, if group C(adm) or C(systemd-journal) has it.
    type: str
"""

EXAMPLES = r"""
- name: Read the host for a support bundle
  gb10.cluster.support_info:
  register: support_bundle_host

- name: Read what the kernel said before a hang
  gb10.cluster.support_info:
    around: "2026-11-30 02:00:00"
  register: kernel
"""

RETURN = r"""
texts:
  description: The texts by name, without known forms of secrets.
  returned: always
  type: dict
missing:
  description: Why a text, or a part of it, is missing, by the name of the text.
  returned: always
  type: dict
msg:
  description: What the kernel said, the first ten lines, or why that can't be read.
  returned: with O(around)
  type: str
"""

import datetime
import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import end, redact

COMMANDS: Mapping[str, Sequence[str]] = {
    "addresses": ["ip", "-d", "-s", "address"],
    "counters_rdma": ["rdma", "statistic", "show"],
    "disks": ["df", "-h"],
    "dmesg": ["dmesg", "--time-format", "iso"],
    "dmesg_boot_before": ["journalctl", "--dmesg", "--boot=-1", "--no-pager", "--lines=2000"],
    "failed_units": ["systemctl", "--failed", "--no-pager"],
    "firewall": ["nft", "list", "ruleset"],
    "gpu": ["nvidia-smi", "-q"],
    "k3s_objects": ["k3s", "kubectl", "get", "nodes,pods,services,network-attachment-definitions", "-A", "-o", "wide"],
    "k3s_version": ["k3s", "--version"],
    "log_kubernetes": [
        "journalctl",
        *(f"--unit={unit}" for unit in ("k3s", "k3s-agent", "kubelet", "containerd", "crio", "rke2-*", "k0s*")),
        *("--unit=snap.microk8s.*", "--no-pager", "--lines=3000"),
    ],
    "log_network": ["journalctl", "--unit=NetworkManager", "--unit=systemd-networkd", "--no-pager", "--lines=1000"],
    "memory": ["free", "-m"],
    "neighbours": ["ip", "-s", "neighbour"],
    "packages": ["dpkg-query", "-W", "nvidia*", "mlnx*", "doca*", "rdma*", "netplan*", "linux-image*", "mstflint"],
    "pci": ["lspci", "-nn"],
    "rdma_links": ["rdma", "link", "show"],
    "routes": ["ip", "route", "show", "table", "all"],
    "system": ["uname", "-a"],
    "time": ["timedatectl"],
}
FILES: Mapping[str, tuple[str, Sequence[str]]] = {
    "aer": ("sysfs", ["bus/pci/devices/*/aer_dev_*"]),
    "counters_ports": ("sysfs", ["class/infiniband/*/ports/*/counters/*", "class/infiniband/*/ports/*/hw_counters/*"]),
    "gids": ("sysfs", ["class/infiniband/*/ports/*/gids/[0-7]", "class/infiniband/*/ports/*/gid_attrs/types/[0-7]"]),
    "netplan": ("etc", ["netplan/*.yaml"]),
    "os": ("etc", ["os-release", "dgx-release"]),
    "driver": ("proc", ["driver/nvidia/version", "cmdline", "meminfo", "pressure/*"]),
    "virtual_functions": ("sysfs", ["class/net/*/device/sriov_numvfs", "class/net/*/mtu", "class/net/*/speed"]),
    "group_logs": ("group_logs", ["*/*/*", "*/*/*/*"]),
}
ERRORS = re.compile(
    r"NVRM|Xid|AER|pcieport|mlx5_core.*(?:err|fail|warn|Link down)|Out of memory|oom-kill|hung|lockup", re.I
)
"""The lines of the kernel's log that go into a file of their own."""
BEFORE = datetime.timedelta(minutes=10)
AFTER = datetime.timedelta(minutes=1)
AROUND = 10
"""Lines that are kept of the kernel's log around a time; the first ones tell the cause."""
WIDTH = 240
"""Characters that are kept of such a line."""

# Of K3s and RKE2
SECRET_FILES = {"lib": "rancher/*/server/*token", "etc": "rancher/*/*token"}
"""Files that are read only to remove their content from everything else. The tokens of role k3s have no known shape."""
REGISTRIES = "rancher/*/registries.yaml"
# The value is in the line of its key: "auth:" alone opens a mapping, and its first key is no secret.
_OF_REGISTRY = re.compile(r"(?:password|token|auth)[\"']?:[ \t]+(?:\"([^\"\n]+)\"|'([^'\n]+)'|([^\s\"'{},]+))")


# A file is read from this much before its part that is kept, so that the beginning of a key or of a value is known.
MARGIN = 256 * 1024


# Where files may be in truth, as os-release of /etc, and the devices of a simulated /sys.
ELSEWHERE = ("/usr/lib/", "/sys/")


def _end_of(path: Path, root: Path, limit: int) -> str:
    """Return the last lines of a file, of which none begins in the middle; raise OSError.

    A pod writes the directory of its group's logs, and root reads it here: a link must not lead to another file.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        real = str(Path(f"/proc/self/fd/{stream.fileno()}").readlink())
        if not real.startswith((f"{root.resolve()}/", *ELSEWHERE)):
            raise OSError(errno.ELOOP, f"is a link to {real}")
        before = max(0, os.fstat(stream.fileno()).st_size - limit - MARGIN)
        if before:
            stream.seek(before)
        text = stream.read().decode("utf-8", "replace")
    return text.partition("\n")[2] if before else text


def _read(root: Path, patterns: Sequence[str], limit: int, without: Callable[[str], str]) -> tuple[str, list[str]]:
    """Return the newest files that fit the limit, each below its path, and the reasons why others are missing."""
    texts, problems, left = [], [], limit
    paths = [p for pattern in patterns for p in root.glob(pattern) if p.is_file()]
    for path in sorted(paths, key=lambda p: -p.stat().st_mtime):
        try:
            text = without(_end_of(path, root, limit))
        except OSError as error:
            # Unused GID slots answer EINVAL on mlx5.
            problems.append(f"{path}: {error.strerror}")
            continue
        if left <= 0:
            problems.append(f"{path}: left out, because the limit is reached")
            continue
        text = end(text.strip(), left)
        left -= len(text)
        texts.append(f"{path}: {text}" if "\n" not in text else f"==> {path}\n{text}")
    return "\n".join(sorted(texts)), problems


def known_secrets(roots: Mapping[str, Path]) -> set[str]:
    """Return the tokens of K3s or RKE2 on this host, their parts, and the passwords of its registries.

    A user without sudo cannot read them, and neither the logs in which they could be.
    """
    found: set[str] = set()
    for root, pattern in SECRET_FILES.items():
        for path in roots[root].glob(pattern):
            with suppress(OSError):
                token = path.read_text(encoding="utf-8").strip()
                found.update((token, token.rpartition(":")[2]))
    for path in roots["etc"].glob(REGISTRIES):
        with suppress(OSError):
            found.update("".join(match) for match in _OF_REGISTRY.findall(path.read_text(encoding="utf-8")))
    return found


Run = Callable[[Sequence[str]], tuple[Any, str, str]]
"""Runs a command and returns status, output and error; the status is None if the program is not installed."""


def gather(run: Run, roots: Mapping[str, Path], limit: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts by name, without secrets, and the reasons why others are missing."""
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    secrets = known_secrets(roots)

    def without(text: str) -> str:
        # Before the text is cut, because a value without its name is no longer known to be a secret.
        return redact(text, secrets)

    for name, command in COMMANDS.items():
        status, output, error = run(command)
        output = without(output)
        if name == "dmesg" and (lines := [line for line in output.splitlines() if ERRORS.search(line)]):
            found["kernel_errors"] = end("\n".join(lines), limit)
        if output.strip():
            found[name] = end(output, limit)
        if status != 0:
            said = (without(error).strip().splitlines() or [f"exit status {status}"])[0]
            missing[name] = f"{command[0]} is not installed" if status is None else f"{' '.join(command)}: {said}"
    for name, (root, patterns) in FILES.items():
        text, problems = _read(roots[root], patterns, limit, without)
        if text:
            found[name] = text
        if problems or not text:
            missing[name] = "; ".join(problems[:5]) or f"no file {' or '.join(patterns)} in {roots[root]}"
    return found, missing


def around(run: Run, when: str) -> str:
    """Return what the kernel said around a time, or why that can't be read."""
    try:
        middle = datetime.datetime.strptime(when, "%Y-%m-%d %H:%M:%S")
    except ValueError as wrong:
        return str(wrong)
    # journalctl's own option for the kernel's log shows only this boot.
    words = ["journalctl", "_TRANSPORT=kernel", f"--since={middle - BEFORE} UTC", f"--until={middle + AFTER} UTC"]
    status, output, errors = run([*words, "--output=short-iso", "--no-pager"])
    # It also succeeds for a user who sees only the messages of his own programs.
    if status != 0 or "not seeing messages" in errors:
        said = redact(" ".join(errors.split())[:WIDTH]) or "journalctl is not installed, or failed"
        return f"it cannot be read: {said}"
    lines = [line[:WIDTH] for line in redact(output).splitlines() if ERRORS.search(line)]
    more = [f"and {len(lines) - AROUND} more lines"] if len(lines) > AROUND else []
    return "\n".join([*lines[:AROUND], *more]) or "nothing about the GPU, PCIe, the fabric or memory"


PLACES = {"proc": "proc", "etc": "etc", "lib": "var/lib"}
# A command that takes longer, for example on a host whose GPU driver hangs, is recorded as missing.
SECONDS = "30"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "root": {"type": "path", "default": "/"},
            "log_dir": {"type": "path", "default": "/var/log/gb10"},
            "limit_kib": {"type": "int", "default": 512},
            "around": {"type": "str"},
        },
        supports_check_mode=True,
    )

    def run(command: Any) -> tuple[int | None, str, str]:
        program = module.get_bin_path(command[0])
        if program is None:
            return None, "", ""
        status, output, error = module.run_command(["timeout", SECONDS, program, *command[1:]])
        return status, output, error

    if module.params["around"]:
        module.exit_json(changed=False, texts={}, missing={}, msg=around(run, module.params["around"]))
    root = Path(module.params["root"])
    places = PLACES | {"group_logs": module.params["log_dir"].lstrip("/")}
    roots = {"sysfs": Path(module.params["sysfs_root"])} | {name: root / place for name, place in places.items()}
    texts, missing = gather(run, roots, 1024 * module.params["limit_kib"])
    module.exit_json(changed=False, texts=texts, missing=missing)


if __name__ == "__main__":
    main()
