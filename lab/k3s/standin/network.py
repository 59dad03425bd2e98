# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure the pods' first network as K3s does: flannel with VXLAN, its CNI plugin, portmap and bandwidth."""

import json
import urllib.request
from pathlib import Path

from . import pki
from .children import Children, log
from .server import api_context
from .settings import Settings, node_programs

_PLUGINS = ("bandwidth", "bridge", "firewall", "flannel", "host-local", "loopback", "portmap")
_SUBNET = Path("/run/flannel/subnet.env")


def bin_dir(settings: Settings) -> Path:
    """Return K3s's directory of CNI plugins, whose name stays the same across upgrades."""
    return settings.data / "data" / "cni"


def install_plugins(settings: Settings) -> None:
    """Link the plugins that K3s includes to their one program, with absolute links as in K3s."""
    bin_dir(settings).mkdir(parents=True, exist_ok=True)
    for name in _PLUGINS:
        link = bin_dir(settings) / name
        link.unlink(missing_ok=True)
        link.symlink_to(node_programs() / "cni")


def start(settings: Settings, children: Children, url: str) -> None:
    """Start flannel when this node has its range of addresses, then let the kubelet see the CNI configuration."""
    context = api_context(settings.agent / "server-ca.crt", pki.Pair(settings.agent / "client-k3s-controller"))

    def has_range() -> bool:
        try:
            with urllib.request.urlopen(
                f"{url}/api/v1/nodes/{settings.node_name}", context=context, timeout=10
            ) as answer:
                return "podCIDR" in json.load(answer)["spec"]
        except OSError:  # the node is not registered yet, or a server starts
            return False

    children.wait_for("this node has a podCIDR", has_range, timeout=600)
    _SUBNET.unlink(missing_ok=True)
    config = settings.agent / "etc" / "flannel" / "net-conf.json"
    network = {"Network": settings.cluster_cidr, "EnableIPv4": True, "EnableIPv6": False, "Backend": {"Type": "vxlan"}}
    pki.write_private(config, json.dumps(network), 0o644)
    children.start("flannel", [
        f"{node_programs()}/flannel", f"--kubeconfig={settings.agent}/k3scontroller.kubeconfig",
        f"--node={settings.node_name}", f"--config={config}",
        f"--iface={settings.text('flannel-iface', settings.node_ip)}",
    ])  # fmt: skip
    children.wait_for("flannel has its subnet", _SUBNET.exists)
    pki.write_private(settings.agent / "etc" / "cni" / "net.d" / "10-flannel.conflist", json.dumps({
        "name": "cbr0", "cniVersion": "1.0.0",
        "plugins": [
            {"type": "flannel", "delegate": {"hairpinMode": True, "forceAddress": True, "isDefaultGateway": True}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        ],
    }, indent=2), 0o644)  # fmt: skip
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    log(f"pods of this node get addresses: {_SUBNET.read_text().split()}")
