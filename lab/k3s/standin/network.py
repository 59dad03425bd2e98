# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure the pods' first network with the bridge plugin and routes, like flannel in host-gw mode."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from . import pki
from .children import background, log
from .server import api_context
from .settings import Settings, node_programs

_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
_PROTOCOL = "200"  # marks the routes made here


def bin_dir(settings: Settings) -> Path:
    """Return K3s's directory of CNI plugins, whose name stays the same across upgrades."""
    return settings.data / "data" / "cni"


def install_plugins(settings: Settings) -> None:
    """Link the plugins that K3s includes, with absolute links as in K3s."""
    bin_dir(settings).mkdir(parents=True, exist_ok=True)
    for name in _PLUGINS:
        link = bin_dir(settings) / name
        link.unlink(missing_ok=True)
        link.symlink_to(node_programs() / name)


def start(settings: Settings, url: str) -> None:
    """Follow the cluster's nodes in the background."""
    background("network", lambda: _follow(settings, url))


def _follow(settings: Settings, url: str) -> None:
    agent = settings.agent
    context = api_context(agent / "server-ca.crt", pki.Pair(agent / "client-kube-proxy"))
    _accept(settings.cluster_cidr)
    while True:
        with urllib.request.urlopen(f"{url}/api/v1/nodes", context=context, timeout=10) as answer:
            nodes = {node["metadata"]["name"]: node for node in json.load(answer)["items"]}
        own = nodes.pop(settings.node_name, {}).get("spec", {}).get("podCIDR")
        if own:
            _configure(settings, own)
            _route(
                {n["spec"]["podCIDR"]: _address(n) for n in nodes.values() if n["spec"].get("podCIDR") and _address(n)}
            )
        time.sleep(5 if own else 0.3)


def _accept(cluster_cidr: str) -> None:
    """Accept forwarded packets of pods, as flannel does: Docker leaves the policy of this chain at DROP."""
    for end in ("-s", "-d"):
        rule = ["FORWARD", end, cluster_cidr, "-m", "comment", "--comment", "flanneld forward", "-j", "ACCEPT"]
        if subprocess.run(["iptables", "-w", "-C", *rule], capture_output=True, check=False).returncode:
            subprocess.run(["iptables", "-w", "-A", *rule], check=True)


def _address(node: dict[str, Any]) -> str:
    addresses = node.get("status", {}).get("addresses", [])
    return next((entry["address"] for entry in addresses if entry["type"] == "InternalIP"), "")


def _configure(settings: Settings, subnet: str) -> None:
    """Write the CNI configuration under K3s's name; then the node becomes ready."""
    path = settings.agent / "etc" / "cni" / "net.d" / "10-flannel.conflist"
    text = json.dumps({
        "name": "cbr0", "cniVersion": "1.0.0",
        "plugins": [
            {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True, "forceAddress": True,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]],
                      "routes": [{"dst": settings.cluster_cidr}]}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }, indent=2)  # fmt: skip
    if not path.exists() or path.read_text() != text:
        pki.write_private(path, text, 0o644)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        log(f"pods of this node get addresses of {subnet}")


def _route(wanted: dict[str, str]) -> None:
    argv = ["ip", "-json", "route", "show", "proto", _PROTOCOL]
    present = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout or "[]")
    for route in present:
        if wanted.get(route["dst"]) != route.get("gateway"):
            subprocess.run(["ip", "route", "del", route["dst"], "proto", _PROTOCOL], check=False)
    known = {route["dst"]: route.get("gateway") for route in present}
    for subnet, address in wanted.items():
        if known.get(subnet) != address:
            subprocess.run(["ip", "route", "replace", subnet, "via", address, "proto", _PROTOCOL], check=True)
