# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the settings that K3s was started with, and that hold as long as the cluster exists."""

from __future__ import annotations

import re
from pathlib import Path

from .._sriov.physical_functions import read_text

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
