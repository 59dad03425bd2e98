# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive the names of VFs and RDMA devices, and check the names of network interfaces."""

from __future__ import annotations

import re

NETDEV_MAX = 15  # characters; IFNAMSIZ is 16 with its closing zero (linux/if.h)

# The names that udev creates. The kernel allows more, but netplan keys and Kubernetes object names do not.
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9_.-]{{0,{NETDEV_MAX - 1}}}")
_VF = re.compile(r"v\d+$")
# Usual names of VLANs in `ip link` and netplan: enp1s0f0np0.100, vlan100
_VLAN = re.compile(r"(.+\.|vlan)\d{1,4}")
_PORT_SUFFIX = re.compile(r"np\d+$")


def is_interface_name(name: str) -> bool:
    """Tell whether a text is a valid name for a network interface here."""
    return _NAME.fullmatch(name) is not None


def is_vf_name(name: str) -> bool:
    """Tell whether udev would give this name to a VF."""
    return _VF.search(name) is not None


def is_vlan_name(name: str) -> bool:
    """Tell whether a name has the usual form of a VLAN interface's name."""
    return _VLAN.fullmatch(name) is not None


def port_stem(pf: str) -> str:
    """Return a PF's name without its physical port number: ``enp1s0f0np0`` gives ``enp1s0f0``."""
    return _PORT_SUFFIX.sub("", pf)


def vf_netdev(pf: str, vf_index: int) -> str:
    """Return the name udev gives VF ``vf_index`` of ``pf``: ``enp1s0f0v0``.

    systemd.net-naming-scheme(7): a VF carries ``vN`` and no ``npN``, because it has no port of its own.
    """
    return f"{port_stem(pf)}v{vf_index}"


def pf_of_rdma(device: str) -> str | None:
    """Return the PF of an RDMA device with a predictable name (``rocep1s0f0``: ``enp1s0f0np0``), or None.

    ConnectX names the only port of each of its functions by the number of the function.
    """
    found = re.fullmatch(r"roce((?:P\d+)?p\d+s\d+f(\d+))", device)
    return f"en{found[1]}np{found[2]}" if found else None


def rdma_name(pf: str) -> str | None:
    """Return the RDMA device of a PF (``enp1s0f0np0``: ``rocep1s0f0``), or None if the name does not determine it.

    rdma-core's rdma_rename builds the name from the PCI path as udev builds the netdev's, with ``roce`` for ``en``.
    """
    return "roce" + port_stem(pf)[2:] if pf.startswith("en") else None
