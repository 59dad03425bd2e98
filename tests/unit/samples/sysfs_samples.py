# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sysfs trees of mlx5 and rdma_rxe in a directory of the test."""

from ipaddress import IPv6Address
from pathlib import Path

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def pci_function(root: Path, netdev: str, bdf: str, *, mtu: int = 9000, total_vfs: int | None = None) -> Path:
    """Make a PCI function with a netdev; return the function's directory."""
    device = root / "devices" / bdf
    write(device / "net" / netdev / "mtu", mtu)
    for name, value in {"carrier": 1, "operstate": "up", "speed": 200000}.items():
        write(device / "net" / netdev / name, value)
    (device / "net" / netdev / "device").symlink_to(device)
    for which in ("current", "max"):
        write(device / f"{which}_link_speed", "32.0 GT/s PCIe")
        write(device / f"{which}_link_width", 4)
    if total_vfs is not None:
        write(device / "sriov_totalvfs", total_vfs)
        write(device / "sriov_numvfs", 0)
    (root / "class/net").mkdir(parents=True, exist_ok=True)
    (root / "class/net" / netdev).symlink_to(device / "net" / netdev)
    return device


def rdma_port(device: Path, gids: dict[int, tuple[str, str, str]], *, state: str = "4: ACTIVE", rate: str = "") -> None:
    """Fill port 1; ``gids`` is ``{index: (address, type, netdev)}``."""
    port = device / "ports/1"
    write(port / "state", state)
    write(port / "phys_state", "5: LinkUp" if state == "4: ACTIVE" else "3: Disabled")
    write(port / "rate", rate or "200 Gb/sec (4X HDR)")
    write(port / "link_layer", "Ethernet")
    for index in range(8):
        address, kind, netdev = gids.get(index, ("::", "", ""))
        write(port / "gids" / str(index), IPv6Address(address).packed.hex(":", 2))
        if kind:
            write(port / "gid_attrs/types" / str(index), kind)
            write(port / "gid_attrs/ndevs" / str(index), netdev)
        else:
            # reading an empty slot's attribute fails with EINVAL; a directory in its place fails as well
            (port / "gid_attrs/types" / str(index)).mkdir(parents=True)
            (port / "gid_attrs/ndevs" / str(index)).mkdir(parents=True)


def mlx5_vf(root: Path, *, address: str | None = "10.100.0.1", mtu: int = 9000, state: str = "4: ACTIVE") -> None:
    """Make VF enp1s0f0v0 / rocep1s0f0v0: mlx5 lists every address as RoCE v1 and v2, so IPv4's v2 is index 3."""
    function = pci_function(root, "enp1s0f0v0", "0000:01:00.2", mtu=mtu)
    device = function / "infiniband/rocep1s0f0v0"
    gids = {
        0: ("fe80::4ab0:2dff:fe00:100", "IB/RoCE v1", "enp1s0f0v0"),
        1: ("fe80::4ab0:2dff:fe00:100", "RoCE v2", "enp1s0f0v0"),
    }
    if address:
        mapped = f"::ffff:{address}" if "." in address else address
        gids |= {2: (mapped, "IB/RoCE v1", "enp1s0f0v0"), 3: (mapped, "RoCE v2", "enp1s0f0v0")}
    rdma_port(device, gids, state=state)
    write(device / "fw_ver", "28.45.4028")
    write(device / "hca_type", "MT4129")
    (device / "device").symlink_to(function)
    (root / "class/infiniband").mkdir(parents=True, exist_ok=True)
    (root / "class/infiniband/rocep1s0f0v0").symlink_to(device)


def rxe(root: Path) -> None:
    """Make rxe0 on enp1s0v0: no PCI function, RoCE v2 only, rate 2.5 Gb/s."""
    pci_function(root, "enp1s0v0", "0000:02:10.0")
    device = root / "class/infiniband/rxe0"
    gids = {
        0: ("fe80::5054:ff:feaa:1", "RoCE v2", "enp1s0v0"),
        1: ("::ffff:192.168.100.11", "RoCE v2", "enp1s0v0"),
    }
    rdma_port(device, gids, rate="2.5 Gb/sec (1X SDR)")
    write(device / "parent", "enp1s0v0")
