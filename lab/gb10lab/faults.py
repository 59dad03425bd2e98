# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inject faults that machines are delivered with into a running lab. A new lab has none of them."""

from .lab import Lab
from .machines import USER
from .shell import command

_PORT = "enp1s0f0np0"
# name -> description, script for a host
OF_HOST = {
    "broken-netplan": (
        "NetworkManager stored a file that netplan refuses",
        "printf 'network:\\n  version: 2\\n  ethernets:\\n    NM-broken:\\n      addresses: [10.0.0.300/24]\\n'"
        " > /etc/netplan/90-NM-broken.yaml; chmod 600 /etc/netplan/90-NM-broken.yaml",
    ),
    "no-become": ("the user may not use sudo", f"gpasswd --delete {USER} sudo"),
    "small-disk": (
        "images and models share a file system of 3 GB, until the host restarts",
        "mkdir -p /var/lib/rancher /srv/models; mount -t tmpfs -o size=3g,mode=755 small-disk /var/lib/rancher;"
        " mkdir /var/lib/rancher/models; mount --bind /var/lib/rancher/models /srv/models",
    ),
    "dhcp-server": (
        "this host offers addresses and a default route on the first rail",
        f"ip address replace 192.168.177.1/24 dev {_PORT}; ip link set {_PORT} up; systemd-run --quiet --unit=lab-dhcp"
        f" dnsmasq --keep-in-foreground --port=0 --interface={_PORT} --bind-dynamic --dhcp-leasefile=/run/lab-dhcp"
        " --dhcp-range=192.168.177.100,192.168.177.200,1h --dhcp-option=3,192.168.177.1",
    ),
}
ONE_DOMAIN = ("one-domain", "both rails are one layer-2 domain, as with one switch without VLANs")


def text() -> str:
    """Return the faults and their descriptions, for the help."""
    lines = [f"{name}: {what}" for name, (what, _script) in OF_HOST.items()]
    return "; ".join([*lines, f"{ONE_DOMAIN[0]} (HOST is all): {ONE_DOMAIN[1]}"])


def join_rails(lab: Lab) -> None:
    """Connect the rails' switches."""
    ends = ["one-domain0", "one-domain1"]
    pair = ["name", ends[0], "mtu", "9216", "type", "veth", "peer", "name", ends[1], "mtu", "9216"]
    command(["ip", "-n", lab.name, "link", "add", *pair])
    for index, end in enumerate(ends):
        command(["ip", "-n", lab.name, "link", "set", end, "master", f"rail{index}", "up"])
